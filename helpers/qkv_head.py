"""05: a head, where queries and keys decide the scores."""

from torch import nn

from helpers import expect
from helpers.softmax_mask import causal_mask, masked_softmax


def attention(q, k, v, mask, dropout=nn.Identity()):
    """Let every query take from the values, most from those whose keys answer it best.

    Shape:
        q        (..., T, hs)
        k        (..., S, hs)
        v        (..., S, hs)
        mask     (T, S)        bool, True where a row may look
        out      (..., T, hs)
        weights  (..., T, S)   each row sums to 1, or is all 0 where it may look at nothing

    Returns (out, weights). `dropout` acts on the weights that are used, not on those returned.
    Raises ValueError for sizes that do not fit, TypeError for a mask that is not boolean.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.
    """
    expect.queries_keys_values(q, k, v)
    hs = q.shape[-1]
    scores = q @ k.transpose(-2, -1)  # (B, T, hs) @ (B, hs, T) -> (B, T, T)
    weights = masked_softmax(scores / hs**0.5, mask)  # (B, T, T)
    out = dropout(weights) @ v  # (B, T, T) @ (B, T, hs) -> (B, T, hs)
    return out, weights


class Head(nn.Module):
    """One head of causal self-attention: each position asks, and takes from its past what answers.

    Shape:
        x        (B, T, n_embd)     floating-point, T at most block_size
        return   (B, T, head_size)
        weights  (B, T, T)          kept in `self.weights`, detached, by a call in eval mode

    Raises ValueError for T above block_size, another rank or another width.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
    """

    def __init__(self, n_embd, head_size, block_size, dropout=0.0):
        super().__init__()
        expect.sizes(n_embd=n_embd, head_size=head_size, block_size=block_size)
        expect.rate(dropout=dropout)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", causal_mask(block_size), persistent=False)
        self.weights = None

    def forward(self, x):
        expect.vectors(x, self.query.in_features)
        expect.fits(x.shape[1], len(self.mask))
        B, T, C = x.shape
        q, k, v = self.query(x), self.key(x), self.value(x)  # each (B, T, C) -> (B, T, hs)
        out, weights = attention(q, k, v, self.mask[:T, :T], self.dropout)  # (B, T, hs), (B, T, T)
        if not self.training:
            self.weights = weights.detach()
        return out
