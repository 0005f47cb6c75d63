"""01: the mean of the past, written as two loops."""

import torch

from helpers import expect


def loop_mean(x):
    """Give every position the mean of itself and everything before it.

    Shape:
        x       (B, T, C)  floating-point
        return  (B, T, C)  row t is the mean of rows 0 to t

    Raises ValueError or TypeError for anything but a (B, T, C) tensor of floating-point numbers.

    >>> loop_mean(torch.tensor([[[2.0], [4.0], [9.0]]])).flatten()
    tensor([2., 3., 5.])
    """
    expect.vectors(x)
    B, T, C = x.shape
    out = torch.zeros_like(x)
    for b in range(B):
        for t in range(T):
            xprev = x[b, : t + 1]  # (t + 1, C)
            out[b, t] = torch.mean(xprev, 0)  # (t + 1, C) -> (C,)
    return out
