"""05: markers for queries, keys and values."""

import math

import torch
from torch import nn

from helpers.checks.marker import SIZES, Prediction, exercise
from helpers.qkv_head import attention
from helpers.softmax_mask import causal_mask, masked_softmax

predict_weight = Prediction(
    "predict_weight",
    math.exp(3) / (math.exp(3) + 7),
    {
        0.955: "that is the weight for a query of 5",
        1.0: "the seven scores of 0 count too, each as e to the 0, which is 1",
        0.3: "softmax divides e to the score, not the score itself",
        0.573: "weights do not shrink in step with the scores; go through the softmax",
        0.69: "the tokens after She are hidden, so there are seven others, not nine",
    },
)


def queries_and_keys(generator, B, T, C):
    """Draw queries and keys of one size."""
    return torch.randn(B, T, C, generator=generator), torch.randn(B, T, C, generator=generator)


def of_query(scores, t=-1):
    """Make a wrong last_weights from the scores of all queries with all keys."""
    return lambda q, k: scores(q, k)[:, t].softmax(dim=-1)


def all_scores(q, k):
    return q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5


@exercise(
    draw=queries_and_keys,
    sizes=[*SIZES[1:], SIZES[0]],  # one position alone says little
    not_allowed=["scaled_dot_product_attention"],
    mistakes={
        "the scores are not divided yet": of_query(lambda q, k: q @ k.transpose(-2, -1)),
        "the scores are divided by head_size, not by its root": of_query(
            lambda q, k: all_scores(q, k) / q.shape[-1] ** 0.5
        ),
        "view cuts the keys anew; transpose turns them on their side": of_query(
            lambda q, k: q @ k.reshape(k.shape[0], k.shape[2], -1) / q.shape[-1] ** 0.5
        ),
        "the last key meets all queries; the last query asks all keys": of_query(
            lambda q, k: all_scores(k, q)
        ),
        "that is the first position": of_query(all_scores, 0),
        "there is one row left for each sequence; sum to 1 along its keys": (
            lambda q, k: all_scores(q, k)[:, -1:].softmax(dim=1)[:, 0]
        ),
    },
)
def last_weights(q, k):
    last = q[:, -1:]  # (B, T, hs) -> (B, 1, hs)
    scores = last @ k.transpose(-2, -1)  # (B, 1, hs) @ (B, hs, T) -> (B, 1, T)
    weights = (scores / q.shape[-1] ** 0.5).softmax(dim=-1)  # (B, 1, T)
    return weights[:, 0]  # (B, 1, T) -> (B, T)


def two_texts(generator, B, T, C):
    """Draw a text, another text of S positions, and matrices for queries, keys and values."""
    S = T + (B + C) % 3
    hs = 1 + C // 2
    sizes = [(B, T, C), (B, S, C), (C, hs), (C, hs), (C, hs)]
    x, memory, *matrices = [torch.randn(*size, generator=generator) for size in sizes]
    return x, memory, *[matrix / C**0.5 for matrix in matrices]


def looked_up(q, k, v, divide=None, dim=-1):
    """Attend without a mask, divided by the root of the width of a query or by something else."""
    scores = q @ k.transpose(-2, -1) / (divide or q.shape[-1] ** 0.5)
    return scores.softmax(dim=dim) @ v


@exercise(
    draw=two_texts,
    not_allowed=["scaled_dot_product_attention", "attention"],
    mistakes={
        "that never looks at memory; keys and values come from there": (
            lambda x, memory, w_q, w_k, w_v: looked_up(x @ w_q, x @ w_k, x @ w_v)
        ),
        "the keys come from x; what can be found is memory": (
            lambda x, memory, w_q, w_k, w_v: looked_up(x @ w_q, x @ w_k, memory @ w_v)
        ),
        "memory asks and x answers; it is the other way round": (
            lambda x, memory, w_q, w_k, w_v: looked_up(memory @ w_q, x @ w_k, x @ w_v)
        ),
        "the scores are not divided yet": (
            lambda x, memory, w_q, w_k, w_v: looked_up(x @ w_q, memory @ w_k, memory @ w_v, 1)
        ),
        "the scores are divided by the root of C; they are sums over hs channels": (
            lambda x, memory, w_q, w_k, w_v: looked_up(
                x @ w_q, memory @ w_k, memory @ w_v, x.shape[-1] ** 0.5
            )
        ),
        "the softmax runs down the columns; each position of x shares out 1 among memory": (
            lambda x, memory, w_q, w_k, w_v: looked_up(x @ w_q, memory @ w_k, memory @ w_v, dim=-2)
        ),
    },
)
def look_up(x, memory, w_q, w_k, w_v):
    q = x @ w_q  # (B, T, C) @ (C, hs) -> (B, T, hs)
    k, v = memory @ w_k, memory @ w_v  # each (B, S, C) @ (C, hs) -> (B, S, hs)
    scores = q @ k.transpose(-2, -1)  # (B, T, hs) @ (B, hs, S) -> (B, T, S)
    weights = (scores / q.shape[-1] ** 0.5).softmax(dim=-1)  # (B, T, S)
    return weights @ v  # (B, T, S) @ (B, S, hs) -> (B, T, hs)


def back(scores):
    """Say how far each column lies to the left of each row."""
    place = torch.arange(scores.shape[-1])
    return place[:, None] - place


def near(change, hide=True):
    """Make a wrong prefer_near, from change(scores, slope * distance)."""

    def weights(scores, slope):
        mask = causal_mask(scores.shape[-1]) if hide else torch.ones(scores.shape[-2:]).bool()
        return masked_softmax(change(scores, slope * back(scores)), mask)

    return weights


@exercise(
    draw=lambda generator, B, T, C: (
        torch.randn(B, T, T, generator=generator),
        [0.5, 1.0, 0.25][(T + C) % 3],
    ),
    sizes=[*SIZES[1:], SIZES[0]],
    mistakes={
        "what lies far back is preferred now; the sign is wrong": near(
            lambda scores, lost: scores + lost
        ),
        "the future is not hidden": near(lambda scores, lost: scores - lost, hide=False),
        "the distance is not used": near(lambda scores, lost: scores),
        "the distance alone counts, not its square": lambda scores, slope: masked_softmax(
            scores - slope * back(scores).square(), causal_mask(scores.shape[-1])
        ),
        "subtract before the softmax, so that the rows still sum to 1": lambda scores, slope: (
            masked_softmax(scores, causal_mask(scores.shape[-1])) - slope * back(scores)
        ).tril(),
        "a score of 0 hides nothing, since e to the 0 is 1; hide the future with -inf": (
            lambda scores, slope: (scores - slope * back(scores)).tril().softmax(dim=-1)
        ),
        "slope is not used; it says how much each step costs": lambda scores, slope: near(
            lambda scores, lost: scores - lost
        )(scores, 1.0),
    },
)
def prefer_near(scores, slope):
    T = scores.shape[-1]
    place = torch.arange(T)
    distance = place[:, None] - place  # (T, 1) - (T,) -> (T, T), how far back
    return masked_softmax(scores - slope * distance, causal_mask(T))  # (B, T, T)


def work(answer, x, block_size, **matrices):
    """Build a head, give it these matrices, and let it look at x."""
    head_size, n_embd = matrices["value"].shape
    layer = answer(n_embd, head_size, block_size).eval()
    given = {name: tuple(matrix.shape) for name, matrix in layer.named_parameters()}
    wanted = {f"{name}.weight": tuple(matrix.shape) for name, matrix in matrices.items()}
    if given and given != wanted:
        raise ValueError(f"its parameters are {listed(given)}; they should be {listed(wanted)}")
    if given:
        weights = {f"{name}.weight": matrix for name, matrix in matrices.items()}
        layer.load_state_dict(weights, strict=False)
    return layer(x)


def listed(shapes):
    return ", ".join(f"{name} {shape}" for name, shape in sorted(shapes.items()))


def vectors_and_matrices(*names):
    """Draw x, a block_size that is at times longer than x, and a matrix for each name."""

    def draw(generator, B, T, C):
        sizes = [(B, T, C), *[(1 + C // 2, C)] * len(names)]
        x, *matrices = [torch.randn(*size, generator=generator) for size in sizes]
        return x, T + (B + T) % 3, *[matrix / C**0.5 for matrix in matrices]

    return draw


def tied(weigh, take=lambda find, value: value):
    """Make a wrong TiedHead, which looks with weigh(found, mask, C) at take(found, values)."""

    class Tied(nn.Module):
        def __init__(self, n_embd, head_size, block_size):
            super().__init__()
            self.find = nn.Linear(n_embd, head_size, bias=False)
            self.value = nn.Linear(n_embd, head_size, bias=False)

        def forward(self, x):
            found = self.find(x)
            mask = causal_mask(x.shape[1])
            return weigh(found, mask, x.shape[-1]) @ take(found, self.value(x))

    return Tied


def products(found, root=None):
    return found @ found.transpose(-2, -1) / (root or found.shape[-1]) ** 0.5


@exercise(
    draw=vectors_and_matrices("find", "value"),
    run=lambda answer, x, block_size, find, value: work(
        answer, x, block_size, find=find, value=value
    ),
    mistakes={
        "the values come from find too; they have a layer of their own": tied(
            lambda found, mask, C: masked_softmax(products(found), mask),
            take=lambda found, value: found,
        ),
        "the future is not hidden": tied(lambda found, mask, C: products(found).softmax(dim=-1)),
        "the scores are not divided yet": tied(
            lambda found, mask, C: masked_softmax(products(found, 1), mask)
        ),
        "the scores are divided by the root of n_embd; they are sums over head_size channels": (
            tied(lambda found, mask, C: masked_softmax(products(found, C), mask))
        ),
        "the scores are divided by head_size, not by its root": tied(
            lambda found, mask, C: masked_softmax(products(found, found.shape[-1] ** 2), mask)
        ),
        "the softmax runs down the columns; each row shares out 1": tied(
            lambda found, mask, C: products(found).masked_fill(~mask, float("-inf")).softmax(dim=-2)
        ),
    },
)
class TiedHead(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.find = nn.Linear(n_embd, head_size, bias=False)  # for queries and keys
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("mask", causal_mask(block_size), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        found, v = self.find(x), self.value(x)  # each (B, T, C) -> (B, T, hs)
        out, weights = attention(found, found, v, self.mask[:T, :T])
        return out


def leaky(
    score=lambda q, k: q @ k.reshape(k.shape[0], k.shape[2], -1),
    weigh=masked_softmax,
    power=0.5,
    lowest=0,
):
    """Make a wrong LeakyHead; as it is, nothing is mended."""

    class Leaky(nn.Module):
        def __init__(self, n_embd, head_size, block_size):
            super().__init__()
            self.query = nn.Linear(n_embd, head_size, bias=False)
            self.key = nn.Linear(n_embd, head_size, bias=False)
            self.value = nn.Linear(n_embd, head_size, bias=False)

        def forward(self, x):
            q, k, v = self.query(x), self.key(x), self.value(x)
            mask = causal_mask(x.shape[1]).tril(lowest)
            return weigh(score(q, k) / q.shape[-1] ** power, mask) @ v

    return Leaky


def turned(q, k):
    return q @ k.transpose(-2, -1)


@exercise(
    draw=vectors_and_matrices("query", "key", "value"),
    run=lambda answer, x, block_size, query, key, value: work(
        answer, x, block_size, query=query, key=key, value=value
    ),
    mistakes={
        "it still does what it did": leaky(),
        "the mask was right: a position may look at itself": leaky(
            weigh=lambda scores, mask: scores.masked_fill(~mask, float("-inf")).softmax(dim=-1),
            lowest=-1,
        ),
        "the softmax was right: it runs along the rows": leaky(
            weigh=lambda scores, mask: scores.masked_fill(~mask, float("-inf")).softmax(dim=-2)
        ),
        "the mask was right before the softmax; after it, the rows no longer sum to 1": leaky(
            weigh=lambda scores, mask: scores.softmax(dim=-1).masked_fill(~mask, 0.0)
        ),
        "the leak is gone, and now the keys ask the queries": leaky(lambda q, k: turned(k, q)),
        "the leak is gone, and so is the root": leaky(turned, power=0),
    },
)
class LeakyHead(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("mask", causal_mask(block_size), persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.query(x), self.key(x), self.value(x)  # each (B, T, C) -> (B, T, hs)
        hs = q.shape[-1]
        scores = q @ k.transpose(-2, -1)  # (B, T, hs) @ (B, hs, T) -> (B, T, T)
        scores = (scores / hs**0.5).masked_fill(~self.mask[:T, :T], float("-inf"))
        weights = scores.softmax(dim=-1)  # (B, T, T)
        return weights @ v  # (B, T, T) @ (B, T, hs) -> (B, T, hs)
