"""01: markers for what loops can make of the past."""

import torch

from helpers.checks.marker import Prediction, exercise

predict_calls = Prediction(
    "predict_calls",
    15,
    {
        5: "that is for one sequence; there are three",
        3: "that is once for each sequence; the inner loop calls it for every position",
        30: "one call averages all channels at once",
        45: "one call for each position, however long its past",
    },
)


def vectors(generator, B, T, C):
    """Draw a batch of vectors."""
    return (torch.randn(B, T, C, generator=generator),)


def looped(value):
    """Make a layer from the value of one position, value(x, t), of shape (B, C)."""
    return lambda x: torch.stack([value(x, t) for t in range(x.shape[1])], dim=1)


@exercise(
    draw=vectors,
    mistakes={
        "position t itself is not before t": looped(lambda x, t: x[:, : t + 1].mean(1)),
        "position 0 has nothing before it; leave it at 0": looped(lambda x, t: x[:, :t].mean(1)),
        "there are t positions before t, not t + 1": looped(lambda x, t: x[:, :t].sum(1) / (t + 1)),
        "one position too few: x[:, :t] ends before t already": looped(
            lambda x, t: x[:, : max(t - 1, 0)].sum(1) / max(t - 1, 1)
        ),
        "that looks at what comes after t": looped(
            lambda x, t: x[:, t + 1 :].sum(1) / max(x.shape[1] - t - 1, 1)
        ),
    },
)
def mean_before(x):
    out = torch.zeros_like(x)
    for t in range(1, x.shape[1]):
        out[:, t] = x[:, :t].mean(dim=1)  # (B, t, C) -> (B, C)
    return out


@exercise(
    draw=lambda generator, B, T, C: (torch.randn(B, T, C, generator=generator), 1 + (B + C) % 4),
    mistakes={
        "one position too many: the window holds t itself": lambda x, window: looped(
            lambda x, t: x[:, max(t - window, 0) : t + 1].mean(1)
        )(x),
        "near the start there are fewer positions to divide by": lambda x, window: looped(
            lambda x, t: x[:, max(t - window + 1, 0) : t + 1].sum(1) / window
        )(x),
        "that looks ahead; the window ends at t": lambda x, window: looped(
            lambda x, t: x[:, t : t + window].mean(1)
        )(x),
        "the window is not used": lambda x, window: looped(lambda x, t: x[:, : t + 1].mean(1))(x),
        "a start below 0 counts from the end; cut it off at 0": lambda x, window: looped(
            lambda x, t: x[:, t - window + 1 : t + 1].mean(1)
        )(x),
    },
)
def window_mean(x, window):
    out = torch.zeros_like(x)
    for t in range(x.shape[1]):
        start = max(0, t - window + 1)
        out[:, t] = x[:, start : t + 1].mean(dim=1)  # (B, at most window, C) -> (B, C)
    return out


@exercise(
    draw=vectors,
    not_allowed=["cummax"],
    mistakes={
        "that is the largest of the whole sequence, the future included": looped(
            lambda x, t: x.amax(1)
        ),
        "that is the smallest": looped(lambda x, t: x[:, : t + 1].amin(1)),
        "that keeps only the position before t and t itself": looped(
            lambda x, t: x[:, max(t - 1, 0) : t + 1].amax(1)
        ),
        "max gives the numbers and their places; keep the numbers": looped(
            lambda x, t: x[:, : t + 1].max(1).indices
        ),
        "that compares the channels, not the positions": lambda x: x.amax(-1, keepdim=True).expand(
            x.shape
        ),
    },
)
def running_max(x):
    out = torch.zeros_like(x)
    for t in range(x.shape[1]):
        out[:, t] = x[:, : t + 1].amax(dim=1)  # (B, t + 1, C) -> (B, C)
    return out


def faded(power, divide=True):
    """Make a wrong recent_mean, in which position s counts decay ** power(t, s, T)."""

    def layer(x, decay):
        T = x.shape[1]
        weights = torch.tensor([[decay ** power(t, s, T) for s in range(T)] for t in range(T)])
        weights = weights.tril()
        return (weights / weights.sum(1, keepdim=True) if divide else weights) @ x

    return layer


def moving(x, decay):
    out = x.clone()
    for t in range(1, x.shape[1]):
        out[:, t] = decay * out[:, t - 1] + (1 - decay) * x[:, t]
    return out


@exercise(
    draw=lambda generator, B, T, C: (torch.randn(B, T, C, generator=generator), 0.3 + 0.1 * B),
    mistakes={
        "the weights do not sum to 1 yet": faded(lambda t, s, T: t - s, divide=False),
        "the oldest counts most; count back from t": faded(lambda t, s, T: s),
        "all count the same; the power is how far back a position lies": faded(lambda t, s, T: 1),
        "that keeps too much of position 0: it is a moving average, whose first weight is larger": (
            moving
        ),
        "the weight halves too fast: the distance is taken twice": faded(
            lambda t, s, T: 2 * (t - s)
        ),
    },
)
def recent_mean(x, decay):
    B, T, C = x.shape
    out = torch.zeros_like(x)
    for t in range(T):
        weights = decay ** torch.arange(t, -1, -1)[:, None]  # (t + 1, 1), 1 for t itself
        weights = weights / weights.sum()
        out[:, t] = (weights * x[:, : t + 1]).sum(dim=1)  # (B, t + 1, C) -> (B, C)
    return out


def some_layer(generator, B, T, C):
    """Draw a layer that averages, and T."""
    weights = torch.rand(T, T, generator=generator)
    weights = weights / weights.sum(dim=1, keepdim=True)
    return (lambda x: weights @ x), T


@exercise(
    draw=some_layer,
    not_allowed=["weights_of"],
    mistakes={
        "rows and columns are swapped: out[t, s] is what t takes from s, as it is": (
            lambda layer, T: layer(torch.eye(T)[None])[0].T
        ),
        "one sequence is left of the batch; take it out with [0]": (
            lambda layer, T: layer(torch.eye(T)[None])
        ),
        "with ones everywhere all colours are the same; use the identity": (
            lambda layer, T: layer(torch.ones(1, T, T))[0]
        ),
        "that is what goes in; let it go through the layer": lambda layer, T: torch.eye(T),
        "one channel is not enough; every position needs its own": (
            lambda layer, T: layer(torch.eye(T)[None, :, :1])[0].expand(T, T)
        ),
    },
)
def who_looks_at_whom(layer, T):
    dye = torch.eye(T)[None]  # (1, T, T): each position has a channel of its own
    return layer(dye)[0]  # (1, T, T) -> (T, T)
