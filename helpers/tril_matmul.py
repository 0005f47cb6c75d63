"""02: the mean of the past, written as a matrix product."""

import torch

from helpers import expect


def mean_weights(T):
    """Make the weights of the mean of the past: row t shares 1 equally among columns 0 to t.

    Shape:
        return  (T, T)  zero above the diagonal; each row sums to 1

    Raises ValueError where T is not a whole number of at least 1.

    >>> mean_weights(3)
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    """
    expect.sizes(T=T)
    tril = torch.tril(torch.ones(T, T))
    return tril / tril.sum(dim=1, keepdim=True)  # (T, T) / (T, 1) -> (T, T)


def tril_mean(x):
    """Give every position the mean of its past with one matrix product.

    Shape:
        x       (B, T, C)  floating-point
        return  (B, T, C)  equal to loop_mean(x)

    Raises ValueError or TypeError for anything but a (B, T, C) tensor of floating-point numbers.
    """
    expect.vectors(x)
    B, T, C = x.shape
    weights = mean_weights(T).to(x)
    return weights @ x  # (T, T) @ (B, T, C) -> (B, T, C)
