"""03: markers for scores, masks and softmax."""

import torch

from helpers.checks.marker import SIZES, Prediction, exercise
from helpers.softmax_mask import causal_mask, masked_softmax

INF = float("inf")

predict_weight = Prediction(
    "predict_weight",
    0.5,
    {
        0.3: "the hidden score takes no part in the sum either",
        3 / 7: "a hidden score of 0 would still count as 1; that of -inf counts as 0",
        0.665: "those are the weights of scores 1, 2 and 3; these scores are ln 1, ln 2 and ln 3",
        0.613: "divide the exponentials, not the scores",
        1 / 3: "equal scores would share equally, but these differ",
        3.0: "that is the exponential; divide by the sum of those that are seen",
    },
)


def rows_of_scores(generator, B, T, C):
    """Draw one to three dimensions of scores; in the larger cases some rows are near 120."""
    shape = [(C,), (T, C), (B, T, C)][min(B, 2) if T > 1 else 0]
    far = torch.randint(0, 2, (*shape[:-1], 1), generator=generator) * (B * T > 2)
    return (torch.randn(shape, generator=generator) + 120 * far,)


@exercise(
    draw=rows_of_scores,
    not_allowed=["softmax", "log_softmax", "logsumexp", "softmin", "masked_softmax"],
    mistakes={
        "the exponential of a large score is inf; move the scores of each row first": lambda s: (
            s.exp() / s.exp().sum(dim=-1, keepdim=True)
        ),
        "each row has its own largest score; subtract that": lambda s: (
            (s - s.max()).exp() / (s - s.max()).exp().sum(dim=-1, keepdim=True)
        ),
        "that is one sum for everything; each row needs its own": lambda s: s.exp() / s.exp().sum(),
        "dim=0 is the first dimension; a row runs along the last": lambda s: (
            s.exp() / s.exp().sum(dim=0)
        ),
        "keep the dimension that is summed, so that rows meet their own sums": lambda s: (
            s.exp() / s.exp().sum(dim=-1)
        ),
        "divide the exponentials, not the scores": lambda s: s / s.sum(dim=-1, keepdim=True),
    },
)
def softmax_by_hand(scores):
    scores = scores - scores.amax(dim=-1, keepdim=True)  # the largest of each row is now 0
    exponentials = scores.exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def batch_of_scores(generator, B, T, C):
    return (torch.randn(B, T, T, generator=generator),)


def hiding(hidden, dim=-1):
    """Hide what hidden(ones) marks in a square of ones, and take the softmax along `dim`."""

    def weights_of(scores):
        T = scores.shape[-1]
        return scores.masked_fill(hidden(torch.ones(T, T)) == 1, -INF).softmax(dim=dim)

    return weights_of


@exercise(
    draw=batch_of_scores,
    mistakes={
        "nothing is mended yet; look at row 0: what may it see, and what is hidden from it?": (
            hiding(torch.triu, dim=1)
        ),
        "one bug is left: may a position look at itself?": hiding(torch.triu),
        "one bug is left: what should sum to 1, rows or columns?": (
            hiding(lambda ones: ones.triu(1), dim=1)
        ),
        "one diagonal too far: each position sees the one after it": hiding(
            lambda ones: ones.triu(2)
        ),
        "now the past is hidden, and the future is seen": hiding(lambda ones: ones.tril(-1)),
        "nan became 0, but position 0 should look at itself": lambda scores: hiding(torch.triu)(
            scores
        ).nan_to_num(0),
    },
)
def causal_weights(scores):
    T = scores.shape[-1]
    hidden = torch.ones(T, T).triu(1) == 1
    return scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)


def scores_and_temperature(generator, B, T, C):
    """Draw scores, and one of five temperatures."""
    return *batch_of_scores(generator, B, T, C), [2, 0.5, 0, 3, 0.25][(B + 2 * C + T) % 5]


def seen_alone(scores):
    return scores.masked_fill(~causal_mask(scores.shape[-1]), -INF)


def largest(scores):
    return (scores == scores.amax(dim=-1, keepdim=True)).float()


def cooled(warm, cold=lambda scores: largest(seen_alone(scores))):
    """Make a wrong answer: warm(scores, temperature), but cold(scores) at temperature 0."""
    return lambda scores, temperature: warm(scores, temperature) if temperature else cold(scores)


def divided(scores, temperature):
    return (seen_alone(scores) / temperature).softmax(dim=-1)


@exercise(
    draw=scores_and_temperature,
    mistakes={
        "at temperature 0 that divides by 0; treat it apart": lambda scores, temperature: (
            masked_softmax(scores / temperature, causal_mask(scores.shape[-1]))
        ),
        "that multiplies; a high temperature should bring the scores together": cooled(
            lambda scores, temperature: (seen_alone(scores) * temperature).softmax(dim=-1)
        ),
        "divide the scores, not the weights": cooled(
            lambda scores, temperature: seen_alone(scores).softmax(dim=-1) / temperature
        ),
        "at temperature 0 the largest score may lie in the future; mask first": cooled(
            divided, largest
        ),
        "temperature 0 is the sharpest of all, not the flattest": cooled(
            divided, lambda scores: divided(torch.zeros_like(scores), 1)
        ),
        "the future is not hidden": cooled(
            lambda scores, temperature: (scores / temperature).softmax(dim=-1), largest
        ),
    },
)
def with_temperature(scores, temperature):
    mask = causal_mask(scores.shape[-1])
    seen = scores.masked_fill(~mask, float("-inf"))
    if temperature == 0:
        return (seen == seen.amax(dim=-1, keepdim=True)).float()  # 1 for the largest of each row
    return (seen / temperature).softmax(dim=-1)


def scores_and_real(generator, B, T, C):
    """Draw scores, and which tokens are real."""
    return *batch_of_scores(generator, B, T, C), torch.rand(B, T, generator=generator) < 0.6


def with_mask(mask_of, zeros=True):
    """Make a wrong answer with the mask that mask_of(causal mask, real) gives."""

    def weights_of(scores, real):
        mask = mask_of(causal_mask(real.shape[1]), real)
        weights = scores.masked_fill(~mask, -INF).softmax(dim=-1)
        return weights.masked_fill(~mask, 0.0) if zeros else weights

    return weights_of


def too_late(scores, real):
    mask = causal_mask(real.shape[1]) & real[:, None, :]
    return scores.softmax(dim=-1).masked_fill(~mask, 0)


@exercise(
    draw=scores_and_real,
    mistakes={
        "that stops padding from looking; it should not be looked at": with_mask(
            lambda causal, real: causal & real[:, :, None]
        ),
        "hide only the columns of padding; its rows look at what is real, as all do": with_mask(
            lambda causal, real: causal & real[:, None, :] & real[:, :, None]
        ),
        "that looks at the padding only; True in real is a token": with_mask(
            lambda causal, real: causal & ~real[:, None, :]
        ),
        "a row that may look at nothing is nan; it should take nothing": with_mask(
            lambda causal, real: causal & real[:, None, :], zeros=False
        ),
        "mask before the softmax, so that what is seen shares 1": too_late,
        "the padding is hidden, but the future is not": with_mask(
            lambda causal, real: (causal | True) & real[:, None, :]
        ),
        "(T, T) and (B, T) do not fit; real needs a dimension for the rows": with_mask(
            lambda causal, real: causal & real
        ),
    },
)
def ignore_padding(scores, real):
    T = scores.shape[-1]
    mask = causal_mask(T) & real[:, None, :]  # (T, T) & (B, 1, T) -> (B, T, T)
    return masked_softmax(scores, mask)


def causal_rows(generator, B, T, C):
    """Draw weights with zeros among them."""
    (scores,) = batch_of_scores(generator, B, T, C)
    return (masked_softmax(2 * scores, causal_mask(T)),)


def logs(weights):
    return weights.clamp(min=1e-9).log()


@exercise(
    draw=causal_rows,
    sizes=SIZES[1:],
    mistakes={
        "ln 0 is -inf, and 0 times that is nan; it should count as 0": lambda weights: (
            -(weights * weights.log()).sum(dim=-1)
        ).exp(),
        "that is the entropy; take its exponential": lambda weights: (
            -(weights * logs(weights)).sum(dim=-1)
        ),
        "the entropy has a minus before its sum": lambda weights: (
            (weights * logs(weights)).sum(dim=-1).exp()
        ),
        "the entropy is a sum, not a mean": lambda weights: (
            -(weights * logs(weights)).mean(dim=-1)
        ).exp(),
        "that sums the columns; who looks is a row": lambda weights: (
            -(weights * logs(weights)).sum(dim=-2)
        ).exp(),
        "multiply each ln by its weight before the sum": lambda weights: (
            -logs(weights).sum(dim=-1)
        ).exp(),
    },
)
def effective_number(weights):
    logs = weights.clamp(min=1e-9).log()  # a number for 0 too, and 0 times a number is 0
    entropy = -(weights * logs).sum(dim=-1)  # (..., T, S) -> (..., T)
    return entropy.exp()
