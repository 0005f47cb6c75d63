"""03: the mean of the past, from scores, a mask and softmax."""

import torch

from helpers import expect


def causal_mask(T):
    """Say who may look at whom when nobody sees the future.

    Shape:
        return  (T, T)  bool, True where a row may look: at itself and to its left

    Raises ValueError where T is not a whole number of at least 1.

    >>> causal_mask(3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    expect.sizes(T=T)
    return torch.ones(T, T, dtype=torch.bool).tril()


def masked_softmax(scores, mask):
    """Turn scores into weights, giving none to what the mask hides.

    Shape:
        scores  (..., T, S)  floating-point, any size
        mask    (T, S)       bool, True where a row may look; may carry the sizes before them too
        return  (..., T, S)  each row is >= 0 and sums to 1; a row that may look at nothing is all 0

    Raises TypeError for a mask that is not boolean or scores that are not floating-point,
    ValueError for a mask of another shape.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3 (the mask).

    >>> masked_softmax(torch.zeros(3, 3), causal_mask(3))
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333]])
    """
    expect.floats(scores=scores)
    expect.bool_mask(mask, scores)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)  # a row with nothing to look at was NaN


def softmax_mean(x):
    """Give every position the mean of its past, from equal scores.

    Shape:
        x       (B, T, C)  floating-point
        return  (B, T, C)  equal to loop_mean(x) and tril_mean(x)

    Raises ValueError or TypeError for anything but a (B, T, C) tensor of floating-point numbers.
    """
    expect.vectors(x)
    B, T, C = x.shape
    weights = masked_softmax(torch.zeros(T, T), causal_mask(T)).to(x)
    return weights @ x  # (T, T) @ (B, T, C) -> (B, T, C)
