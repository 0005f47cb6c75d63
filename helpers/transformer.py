"""06: heads side by side, the block around them, and the whole model."""

from dataclasses import dataclass

import torch
from torch import nn

from helpers import expect
from helpers.positional import TokenAndPosition
from helpers.qkv_head import Head


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The sizes of a model, checked together when it is made.

    Raises ValueError where a size is below 1, n_embd does not split among n_head, or dropout is
    not in [0, 1).
    """

    vocab_size: int
    block_size: int
    n_embd: int
    n_head: int
    n_layer: int
    dropout: float = 0.0

    def __post_init__(self):
        expect.sizes(vocab_size=self.vocab_size, block_size=self.block_size, n_layer=self.n_layer)
        expect.heads_share(self.n_embd, self.n_head)
        expect.rate(dropout=self.dropout)


class MultiHeadAttention(nn.Module):
    """Several heads side by side, each looking for something of its own.

    Shape:
        x       (B, T, n_embd)  T at most block_size
        return  (B, T, n_embd)

    Raises ValueError where n_embd does not split among n_head; for x, see Head.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
    """

    def __init__(self, n_embd, n_head, block_size, dropout=0.0):
        super().__init__()
        expect.heads_share(n_embd, n_head)
        head_size = n_embd // n_head
        self.heads = nn.ModuleList(
            Head(n_embd, head_size, block_size, dropout) for _ in range(n_head)
        )
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat(
            [head(x) for head in self.heads], dim=-1
        )  # nh times (B, T, hs) -> (B, T, C)
        return self.dropout(self.proj(out))


class FeedForward(nn.Module):
    """The same small network at every position, which works on what attention brought.

    Shape:
        x       (..., n_embd)
        return  (..., n_embd)

    Source: Vaswani et al. 2017, section 3.3; GELU from Hendrycks and Gimpel 2016.
    """

    def __init__(self, n_embd, dropout=0.0):
        super().__init__()
        expect.sizes(n_embd=n_embd)
        expect.rate(dropout=dropout)
        self.net = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.GELU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.net(x)  # (B, T, C) -> (B, T, 4 C) -> (B, T, C)


class Block(nn.Module):
    """Look around, then think: attention and feed-forward, each added to what was there.

    Shape:
        x       (B, T, n_embd)  T at most block_size
        return  (B, T, n_embd)

    Raises ValueError as MultiHeadAttention does. `attention` is the class of its first half.
    Source: Vaswani et al. 2017, section 3.1; norms come first as in Radford et al. 2019, section
    2.3.
    """

    def __init__(self, n_embd, n_head, block_size, dropout=0.0, attention=MultiHeadAttention):
        super().__init__()
        self.ln1 = nn.LayerNorm(n_embd)
        self.attention = attention(n_embd, n_head, block_size, dropout)
        self.ln2 = nn.LayerNorm(n_embd)
        self.feed_forward = FeedForward(n_embd, dropout)

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.feed_forward(self.ln2(x))


class Transformer(nn.Module):
    """Read token ids and say, at every position, how likely each token is to come next.

    Shape:
        idx     (B, T)              integer ids below vocab_size, T at most block_size
        return  (B, T, vocab_size)  logits; row t has seen tokens 0 to t and no others

    Raises ValueError for T above block_size, ids outside the vocabulary or another rank, TypeError
    for other numbers.
    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
    """

    def __init__(self, config, attention=MultiHeadAttention):
        super().__init__()
        self.config = config
        C, block_size = config.n_embd, config.block_size
        self.embed = TokenAndPosition(config.vocab_size, block_size, C)
        self.dropout = nn.Dropout(config.dropout)
        sizes = C, config.n_head, block_size, config.dropout
        self.blocks = nn.Sequential(*(Block(*sizes, attention) for _ in range(config.n_layer)))
        self.ln_f = nn.LayerNorm(C)
        self.lm_head = nn.Linear(C, config.vocab_size, bias=False)
        self.apply(draw_weights)

    def forward(self, idx):
        x = self.dropout(self.embed(idx))  # (B, T) -> (B, T, C)
        x = self.blocks(x)  # (B, T, C)
        return self.lm_head(self.ln_f(x))  # (B, T, C) -> (B, T, V)


def draw_weights(layer):
    """Draw a layer's first weights with standard deviation 0.02, and set its bias to 0."""
    if isinstance(layer, nn.Linear | nn.Embedding):
        nn.init.normal_(layer.weight, std=0.02)
    if isinstance(layer, nn.Linear) and layer.bias is not None:
        nn.init.zeros_(layer.bias)
