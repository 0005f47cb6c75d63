"""07: markers for heads in one product, softmax in parts, and a cache."""

import torch
from torch.nn import functional as F

from helpers.checks.marker import Prediction, exercise
from helpers.checks.transformer import counted, split
from helpers.transformer import TransformerConfig

predict_growth = Prediction(
    "predict_growth",
    16,
    {
        4: "so many times the queries take; a score has a row and a column, and both grow",
        2: "that counts how often T doubles; what does one doubling do to T times T?",
        8: "T doubles twice, and each time the scores become 4 times as many",
        64: "hs does not grow with T, so only two of the three sizes do",
        192: "so many tokens are added; how many times as many operations are there?",
    },
)

predict_reads = Prediction(
    "predict_reads",
    (18, 6),
    {
        (18, 7): "right without the cache; with it, too, the last token is written, but never read",
        (18, 4): "right without the cache; the cache starts empty, so the prompt must be read too",
        (18, 3): "right without the cache; the prompt is read once, and then each token written",
        (25, 7): "the last token is written, but nothing is asked of it, so it is never read",
        (22, 7): "the prompt alone, 3 tokens, is enough to write the first",
        (12, 6): "right with the cache; without it the text that is read again grows each time",
        (6, 18): "the other way round: first without the cache, then with it",
        18: "that is without the cache; write both numbers, as (18, ...)",
        6: "that is with the cache; write both numbers, as (..., 6)",
    },
)


def dealt(x, n_head):
    """Cut the channels into rounds, in which each head gets one.  (B, T, C) -> (B, T, hs, nh)"""
    return x.unflatten(-1, (-1, n_head))


@exercise(
    draw=lambda generator, B, T, C: (counted(B, T, 2 * C), [2, C, max(2, C // 2)][(B + T) % 3]),
    mistakes={
        "view does not move anything: head 0 has all of the first tokens, not a part of each": (
            lambda x, n_head: x.view(len(x), n_head, x.shape[1], -1)
        ),
        "that is for heads whose channels stand next to each other; here the heads take turns": (
            lambda x, n_head: split(x, n_head).transpose(1, 2)
        ),
        "the heads come last; bring them before the positions": dealt,
        "positions and channels have changed places within each head": (
            lambda x, n_head: dealt(x, n_head).transpose(1, 3)
        ),
        "what came to the front counts the rounds, not the heads": (
            lambda x, n_head: dealt(x, n_head).transpose(1, 2)
        ),
        "the turns are too short or too long: after n_head channels, head 0 is next again": (
            lambda x, n_head: split(x, n_head).permute(0, 3, 1, 2)
        ),
        "batch and heads stay two axes": lambda x, n_head: (
            dealt(x, n_head).permute(0, 3, 1, 2).flatten(0, 1)
        ),
    },
)
def split_heads(x, n_head):
    B, T, C = x.shape
    x = x.view(B, T, C // n_head, n_head)  # (B, T, C) -> (B, T, hs, nh), nh channels a round
    return x.permute(0, 3, 1, 2)  # (B, T, hs, nh) -> (B, nh, T, hs)


def sizes_of_cache(generator, B, T, C):
    """Draw the sizes of a model, a batch size, and how many positions were read."""
    n_head = 2 + (B + T) % 3
    config = TransformerConfig(
        vocab_size=10 + T,
        block_size=T + 1 + C,
        n_embd=n_head * C,
        n_head=n_head,
        n_layer=1 + (T + C) % 5,
    )
    return config, B, T


@exercise(
    draw=sizes_of_cache,
    mistakes={
        "that is half of it; keys are kept, and values": (
            lambda config, B, T: 4 * config.n_layer * B * T * config.n_embd
        ),
        "queries are not kept; each is used once": (
            lambda config, B, T: 4 * 3 * config.n_layer * B * T * config.n_embd
        ),
        "each block has keys and values of its own": (
            lambda config, B, T: 4 * 2 * B * T * config.n_embd
        ),
        "those are bits; a byte has 8": (
            lambda config, B, T: 32 * 2 * config.n_layer * B * T * config.n_embd
        ),
        "so many numbers there are; each takes 4 bytes": (
            lambda config, B, T: 2 * config.n_layer * B * T * config.n_embd
        ),
        "scores are not kept; a position adds one key, not one for each other position": (
            lambda config, B, T: 4 * 2 * config.n_layer * B * T * T * config.n_embd
        ),
        "n_embd channels are those of all heads together": (
            lambda config, B, T: 4 * 2 * config.n_layer * B * T * config.n_embd * config.n_head
        ),
        "that is for one head; there are n_head of them": (
            lambda config, B, T: 4 * 2 * config.n_layer * B * T * config.n_embd // config.n_head
        ),
        "B texts are kept, not one": (
            lambda config, B, T: 4 * 2 * config.n_layer * T * config.n_embd
        ),
        "so much the longest text would take; only T positions were read": (
            lambda config, B, T: 4 * 2 * config.n_layer * B * config.block_size * config.n_embd
        ),
    },
)
def cache_bytes(config, B, T):
    numbers = 2 * config.n_layer * B * T * config.n_embd  # keys and values
    return 4 * numbers


def band(T, S, first, last):
    """Make a mask in which row t sees the columns t + first to t + last.  -> (T, S)"""
    return torch.ones(T, S, dtype=torch.bool).tril(last).triu(first)


@exercise(
    draw=lambda generator, B, T, C: (
        [4, 2, 1, 3, 0][(T + C) % 5],
        T,
        [20, 1, 2, 3][(B + T) % 4],
    ),
    mistakes={
        "row 0 sees column 0 only, as with is_causal; but it stands at position `past`": (
            lambda past, T, window: band(T, past + T, 1 - window, 0)
        ),
        "the window begins as if row 0 stood in column 0; row t stands at position past + t": (
            lambda past, T, window: band(T, past + T, 1 - window, past)
        ),
        "where the window is longer than the text, it hides nothing; `triu` takes any number": (
            lambda past, T, window: band(T, past + T, max(0, past - window + 1), past)
        ),
        "one too many: each position sees the one after it": (
            lambda past, T, window: band(T, past + T, past - window + 1, past + 1)
        ),
        "one too few: a position may look at itself": (
            lambda past, T, window: band(T, past + T, past - window + 1, past - 1)
        ),
        "one too many at the far end: the position itself is one of the `window`": (
            lambda past, T, window: band(T, past + T, past - window, past)
        ),
        "one too few at the far end: `window` positions, counted from the position itself": (
            lambda past, T, window: band(T, past + T, past - window + 2, past)
        ),
        "there is no window; only the last `window` positions may be seen": (
            lambda past, T, window: band(T, past + T, -T, past)
        ),
        "all rows have the window of row 0; each row's is its own": (
            lambda past, T, window: band(1, past + T, past - window + 1, past).expand(T, -1)
        ),
        "rows and columns have changed places: the new positions ask, and are the rows": (
            lambda past, T, window: band(T, past + T, past - window + 1, past).T
        ),
        "nothing is hidden; the new positions must not see those that follow them": (
            lambda past, T, window: torch.ones(T, past + T, dtype=torch.bool)
        ),
        "the window is right, but the new positions must not see those that follow them": (
            lambda past, T, window: band(T, past + T, past - window + 1, past + T)
        ),
        "True and False have changed places: True is where a row may look": (
            lambda past, T, window: ~band(T, past + T, past - window + 1, past)
        ),
        "True and False are wanted, not numbers": (
            lambda past, T, window: band(T, past + T, past - window + 1, past).float()
        ),
        "the columns of the positions read before are missing": (
            lambda past, T, window: band(T, T, 1 - window, 0)
        ),
        "only the new positions ask; the rows of those read before are too many": (
            lambda past, T, window: band(past + T, past + T, 1 - window, 0)
        ),
        "the new positions see those read before, but not themselves and each other": (
            lambda past, T, window: (
                band(T, past + T, past - window + 1, past) & (torch.arange(past + T) < past)
            )
        ),
        "the positions read before come first, so their columns stand on the left": (
            lambda past, T, window: band(T, past + T, past - window + 1, past).roll(T, dims=-1)
        ),
    },
)
def chunk_mask(past, T, window):
    mask = torch.ones(T, past + T, dtype=torch.bool)
    return mask.tril(past).triu(past - window + 1)  # row t stands at position past + t


def one_more(generator, B, T, C):
    """Draw query, key and value of a token, and the keys and values of those read before it."""
    n_head, past = 1 + (B + C) % 3, T if (B + T) % 5 else 0
    sizes = [(B, n_head, S, C) for S in (1, 1, 1, past, past)]
    return tuple(torch.randn(*size, generator=generator) for size in sizes)


def behind(kept, new):
    return torch.cat([kept, new], dim=-2)


def attending(grow=behind, look=F.scaled_dot_product_attention, first=True, give=True):
    """Make an attend_next, or one that grows what is kept, looks, or gives back otherwise.

    Where `first` is False, it looks before it grows; where `give` is, it returns what it got.
    """

    def answer(q, k, v, kept_k, kept_v):
        grown = grow(kept_k, k), grow(kept_v, v)
        out = look(q, *(grown if first else (kept_k, kept_v)))
        return out, *(grown if give else (kept_k, kept_v))

    return answer


@exercise(
    draw=one_more,
    mistakes={
        "with is_causal, the only query sees the first key alone; here nothing is to be hidden": (
            attending(look=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        ),
        "the new key and value were not appended": attending(grow=lambda kept, new: kept),
        "the new token may look at itself; append first, then look": attending(first=False),
        "what it looks at is right, but the longer keys and values must be returned": (
            attending(give=False)
        ),
        "what it looks at is right, but the next token needs all keys and values, not the new": (
            lambda q, k, v, *kept: (attending()(q, k, v, *kept)[0], k, v)
        ),
        "keys and values have changed places; return the keys first": (
            lambda *given: tuple(attending()(*given)[part] for part in (0, 2, 1))
        ),
        "the new token comes last, behind those read before": (
            attending(grow=lambda kept, new: behind(new, kept))
        ),
        "the oldest token is lost; keep it, and append": (
            attending(grow=lambda kept, new: behind(kept[:, :, 1:], new))
        ),
        "the latest of those read before is overwritten; append instead": (
            attending(grow=lambda kept, new: behind(kept[:, :, :-1], new))
        ),
        "nothing is looked up in what was read before": (
            attending(
                look=lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :, -1:], v[:, :, -1:])
            )
        ),
        "the tokens are counted along dim=-2; here another dimension has grown": (
            attending(grow=lambda kept, new: torch.cat([kept, new], dim=1))
        ),
        "without dim=-2, torch.cat joins texts, not tokens": (
            attending(grow=lambda kept, new: torch.cat([kept, new]))
        ),
        "the scores are not divided by the root of hs": (
            attending(look=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1.0))
        ),
        "the softmax runs along the queries, and there is only one; share out 1 among the keys": (
            attending(look=lambda q, k, v: v.sum(dim=-2, keepdim=True))
        ),
    },
)
def attend_next(q, k, v, kept_k, kept_v):
    kept_k = torch.cat([kept_k, k], dim=-2)  # (B, nh, S, hs) -> (B, nh, S + 1, hs)
    kept_v = torch.cat([kept_v, v], dim=-2)
    out = F.scaled_dot_product_attention(q, kept_k, kept_v)  # (B, nh, 1, hs)
    return out, kept_k, kept_v


def part_of(scores, values):
    """Weigh values as far as one part of each row allows.  -> (T,), (T,), (T, hs)"""
    m = scores.amax(dim=-1)
    weights = (scores - m[:, None]).exp()
    return m, weights.sum(dim=-1), weights @ values


def two_parts(generator, B, T, C):
    """Draw what two parts of T rows of scores leave; in the larger cases some rows are near 120."""
    far = 120 * torch.randint(0, 2, (T, 1), generator=generator) * (B * T > 2)
    scores = [torch.randn(T, S, generator=generator) + far for S in (1 + B, 1 + C)]
    return [part_of(part, torch.randn(part.shape[1], C, generator=generator)) for part in scores]


def scaled(one, m):
    return (one - m).exp()


def unscaled(one, m):
    return torch.ones_like(one)


def merging(
    largest=torch.maximum,
    of_s=(scaled, scaled),
    of_out=(scaled, scaled),
    meet=lambda factor: factor[:, None],
    finish=lambda out, s: out,
):
    """Make a merge, or one with other maxima, other factors for s or for out, or another end."""

    def answer(part1, part2):
        (m1, s1, out1), (m2, s2, out2) = part1, part2
        m = largest(m1, m2)
        s = s1 * of_s[0](m1, m) + s2 * of_s[1](m2, m)
        out = out1 * meet(of_out[0](m1, m)) + out2 * meet(of_out[1](m2, m))
        return m, s, finish(out, s)

    return answer


def alike(*factors):
    """Make a wrong merge that treats s and out alike."""
    return merging(of_s=factors, of_out=factors)


@exercise(
    draw=two_parts,
    mistakes={
        "nothing is scaled; each part has subtracted a maximum of its own": alike(
            unscaled, unscaled
        ),
        "the second part is not scaled; in some rows it has the smaller maximum": (
            alike(scaled, unscaled)
        ),
        "the first part is not scaled; in some rows it has the smaller maximum": (
            alike(unscaled, scaled)
        ),
        "out is scaled, and s is not": merging(of_s=(unscaled, unscaled)),
        "s is scaled, and out is not": merging(of_out=(unscaled, unscaled)),
        "scaled the wrong way: the part with the smaller maximum has to become smaller": (
            alike(*[lambda one, m: (m - one).exp()] * 2)
        ),
        "a difference of scores becomes a factor through exp": alike(*[lambda one, m: m - one] * 2),
        "the maximum of both parts is the larger of the two, not their sum": merging(torch.add),
        "the maximum of both parts is the larger of the two, not the smaller": (
            merging(torch.minimum)
        ),
        "the maximum of the first part is not always the larger one": merging(lambda m1, m2: m1),
        "each row has a maximum of its own": merging(lambda m1, m2: torch.maximum(m1, m2).max()),
        "there is a factor for each row, not for each channel; with [:, None] they meet": (
            merging(meet=lambda factor: factor)
        ),
        "not divided yet: another part may follow, and whoever reads the last one divides": (
            merging(finish=lambda out, s: out / s[:, None])
        ),
        "two parts add up; that is their mean": merging(finish=lambda out, s: out / 2),
    },
)
def merge(part1, part2):
    (m1, s1, out1), (m2, s2, out2) = part1, part2
    m = torch.maximum(m1, m2)  # (T,)
    scale1, scale2 = (m1 - m).exp(), (m2 - m).exp()  # each (T,), and 1 for the larger maximum
    s = s1 * scale1 + s2 * scale2  # (T,)
    out = out1 * scale1[:, None] + out2 * scale2[:, None]  # (T, hs) * (T, 1) -> (T, hs)
    return m, s, out
