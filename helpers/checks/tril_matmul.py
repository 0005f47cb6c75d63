"""02: markers for matrices of weights."""

import torch

from helpers.checks.marker import Prediction, exercise
from helpers.tril_matmul import mean_weights

predict_shape = Prediction(
    "predict_shape",
    (3, 4, 2),
    {
        (3, 5, 2): "each row of weights makes one row of the result, and there are 4",
        (4, 2): "that is for one sequence; there are three",
        (4, 5): "that is the shape of the weights; what comes out has channels",
        (3, 4, 5): "the 5 are added up; what is left is the channels",
        (4, 3, 2): "the batch stays in front",
        (3, 2, 4): "the channels stay last",
    },
)


def share(a):
    """Divide each row of a matrix by its sum."""
    return a / a.sum(dim=1, keepdim=True)


def positive(generator, B, T, C):
    """Draw a matrix, or a batch of them, of numbers above 0."""
    return (torch.rand((B, T, C) if B > 1 else (T, C), generator=generator) + 0.1,)


@exercise(
    draw=positive,
    not_allowed=["normalize"],
    mistakes={
        "that makes the columns sum to 1; a row runs along the last dimension": lambda a: (
            a / a.sum(dim=-2, keepdim=True)
        ),
        "the sums lost their dimension, and stand across from the wrong numbers": lambda a: (
            a / a.sum(dim=-1)
        ),
        "dim=1 is the last dimension of a matrix, but not of a batch; count from the end": (
            lambda a: a / a.sum(dim=1, keepdim=True)
        ),
        "that is one sum for everything; each row needs its own": lambda a: a / a.sum(),
        "divide by the sum of the numbers, not by how many there are": lambda a: a / a.shape[-1],
        "that divides by the largest of the row; divide by the sum": lambda a: (
            a / a.amax(dim=-1, keepdim=True)
        ),
    },
)
def share_rows(a):
    return a / a.sum(dim=-1, keepdim=True)  # (..., T, S) / (..., T, 1) -> (..., T, S)


def itself_first(T):
    weights = torch.ones(T, T).tril(-1)
    weights[0, 0] = 1
    return share(weights)


@exercise(
    draw=lambda generator, B, T, C: (T,),
    mistakes={
        "the diagonal is position t itself, which is not before t": mean_weights,
        "row 0 became 0 / 0, which is nan; it should stay at 0": lambda T: share(
            torch.ones(T, T).tril(-1)
        ),
        "row 0 looks at itself; it has nothing before it": itself_first,
        "there are t positions before t, not t + 1": lambda T: mean_weights(T).tril(-1),
        "that is what comes after; what comes before lies to the left": lambda T: share(
            torch.ones(T, T).triu(1)
        ),
        "each row but the first should sum to 1": lambda T: torch.ones(T, T).tril(-1),
    },
)
def before_weights(T):
    before = torch.ones(T, T).tril(-1)
    counts = before.sum(dim=1, keepdim=True)  # (T, T) -> (T, 1)
    return before / counts.clamp(min=1)  # row 0 is 0 / 1


def band(T, left, right):
    """Mark the diagonals from `left` to `right`; 0 is the main one."""
    return torch.ones(T, T).triu(left).tril(right)


@exercise(
    draw=lambda generator, B, T, C: (T, 1 + (B + C) % 4),
    mistakes={
        "one position too many: a window of 1 is position t alone": lambda T, window: share(
            band(T, -window, 0)
        ),
        "one position too few: a window of 2 is t and the one before": lambda T, window: share(
            band(T, 2 - window, 0)
        ),
        "the window is not used": lambda T, window: mean_weights(T),
        "near the start there are fewer positions to share among": lambda T, window: (
            band(T, 1 - window, 0) / window
        ),
        "that looks to both sides; cut off the future": lambda T, window: share(
            band(T, 1 - window, window - 1)
        ),
        "each row should sum to 1": lambda T, window: band(T, 1 - window, 0),
    },
)
def window_weights(T, window):
    seen = torch.ones(T, T).tril().triu(1 - window)
    return seen / seen.sum(dim=1, keepdim=True)  # (T, T) / (T, 1) -> (T, T)


def packed(generator, B, T, C):
    """Draw the numbers of some documents that stand one after another, in no order."""
    starts = torch.rand(T, generator=generator) < 0.4
    return (torch.randperm(T + 1, generator=generator)[starts.cumsum(dim=0)],)


def same(document):
    return (document[:, None] == document).float()


@exercise(
    draw=packed,
    mistakes={
        "a position also looks at what comes after it": lambda document: share(same(document)),
        "a position also looks at other documents": lambda document: mean_weights(len(document)),
        "each row should sum to 1": lambda document: same(document).tril(),
        "divide by how many of its own document a row sees, not by t + 1": lambda document: (
            same(document) * mean_weights(len(document))
        ),
        "that is the future of its document; the past lies to the left": lambda document: share(
            same(document).triu()
        ),
        "that looks at the other documents only": lambda document: share(
            (1 - same(document)).tril()
        ),
    },
)
def document_weights(document):
    same = document[:, None] == document[None, :]  # (T, 1) == (1, T) -> (T, T)
    seen = same.float().tril()
    return seen / seen.sum(dim=1, keepdim=True)  # (T, T) / (T, 1) -> (T, T)


def weights_and_x(generator, B, T, C):
    """Draw weights for each sequence, and the sequences."""
    return (
        torch.randn(B, T, T, generator=generator),
        torch.randn(B, T, C, generator=generator),
    )


@exercise(
    draw=weights_and_x,
    not_allowed=[
        "matmul",
        "__matmul__",
        "bmm",
        "einsum",
        "mm",
        "mv",
        "dot",
        "inner",
        "linear",
        "tensordot",
    ],
    mistakes={
        "rows and columns of the weights are swapped; row t says what t takes": lambda weights, x: (
            weights.mT @ x
        ),
        "all sequences use the weights of sequence 0": lambda weights, x: weights[0] @ x,
        "that adds up over the rows; each row is a sum over its columns": lambda weights, x: (
            weights.sum(dim=1)[..., None] * x
        ),
        "position t takes only itself, times the sum of its weights": lambda weights, x: (
            weights.sum(dim=2)[..., None] * x
        ),
        "add up, without dividing by T; the weights already say how much": lambda weights, x: (
            weights @ x / x.shape[1]
        ),
        "the sequences are mixed; each has its own weights and its own positions": (
            lambda weights, x: weights @ x.sum(dim=0)
        ),
    },
)
def weighted_sum(weights, x):
    products = weights[:, :, :, None] * x[:, None]  # (B, T, T, 1) * (B, 1, T, C) -> (B, T, T, C)
    return products.sum(dim=2)  # (B, T, T, C) -> (B, T, C)
