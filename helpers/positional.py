"""04: vectors for tokens, and for the places where they stand."""

import torch
from torch import nn

from helpers import expect


class TokenAndPosition(nn.Module):
    """Turn token ids into vectors that say which token it is and where it stands.

    Shape:
        idx     (B, T)          integer ids below vocab_size, T at most block_size
        return  (B, T, n_embd)

    Raises ValueError for T above block_size, ids outside the vocabulary or another rank, TypeError
    for other numbers.
    Source: learned positions as in Radford et al. 2018, "Improving Language Understanding by
    Generative Pre-Training", section 4.1.
    """

    def __init__(self, vocab_size, block_size, n_embd):
        super().__init__()
        expect.sizes(vocab_size=vocab_size, block_size=block_size, n_embd=n_embd)
        self.tokemb = nn.Embedding(vocab_size, n_embd)
        self.posemb = nn.Embedding(block_size, n_embd)

    def forward(self, idx):
        expect.token_ids(idx, self.tokemb.num_embeddings)
        expect.fits(idx.shape[1], self.posemb.num_embeddings)
        B, T = idx.shape
        tok = self.tokemb(idx)  # (B, T) -> (B, T, C)
        pos = self.posemb(torch.arange(T, device=idx.device))  # (T,) -> (T, C)
        return tok + pos  # (B, T, C) + (T, C) -> (B, T, C)


def sinusoidal_positions(block_size, n_embd, base=10000.0):
    """Make a vector for every place out of waves, fast in the first channels, slow in the last.

    Shape:
        return  (block_size, n_embd)  sines in even channels, cosines in odd ones, all in [-1, 1]

    An odd n_embd leaves the last sine without its cosine.
    Raises ValueError for sizes below 1 or a base that is not above 0.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5.

    >>> sinusoidal_positions(2, 3)
    tensor([[0.0000, 1.0000, 0.0000],
            [0.8415, 0.5403, 0.0022]])
    """
    expect.sizes(block_size=block_size, n_embd=n_embd)
    expect.positive(base=base)
    position = torch.arange(block_size)[:, None]  # (block_size, 1)
    rate = base ** (-torch.arange(0, n_embd, 2) / n_embd)  # one for each pair of channels
    angle = position * rate  # (block_size, 1) * (pairs,) -> (block_size, pairs)
    out = torch.zeros(block_size, n_embd)
    out[:, 0::2] = angle.sin()
    out[:, 1::2] = angle.cos()[:, : n_embd // 2]  # an odd width has one cosine fewer
    return out
