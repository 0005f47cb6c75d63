"""07: what does the next token cost, head by head, in one product, and from a cache?"""

import functools
import math

import torch

from helpers import cost, plots
from helpers.explorers.canvas import Bars, Canvas, Cells
from helpers.explorers.explorer import Explorer, Seen, choice, slider, switch
from helpers.fast_heads import FastMultiHeadAttention, attend_after
from helpers.transformer import MultiHeadAttention

LONGEST, MOST = 128, 4  # positions, texts
C = 96
INPUTS = torch.randn(MOST, LONGEST, C, generator=torch.Generator().manual_seed(7))
DOES = {
    "06": "reads every position again",
    "07": "does too, all heads at once",
    "07 + cache": "reads the last one only",
}
MILLION, KILOBYTE = 1e6, 1e3


def look(T, n_head, batch, cache, timed):
    """See what the layers of 06 and 07 compute for the next token, and what that costs."""
    weights = weights_of_a_head(T, n_head)  # (T, T)
    if cache:
        weights[:-1] = math.nan
    ways = ["06", "07 + cache" if cache else "07"]
    predicted, counted = predict(T, n_head, batch), count(T, n_head, batch)

    said = [f"{way} {DOES[way]}: {say(*counted[way], *predicted[way])}" for way in ways]
    sizes = f"T = {T}, n_head = {n_head}, batch = {batch}"
    sentence = f"{sizes}. For the next token, {'; '.join(said)}."
    if timed:
        times = [f"{way} {1000 * seconds(T, n_head, batch, way):.2f} ms" for way in ways]
        sentence += f" On this machine: {', '.join(times)}."
    panels = {
        "weights computed": {"matrix": weights, "frame": (T - 1, 0, 1, T)},
        "operations": bars(ways, counted, predicted, 0, MILLION),
        "memory": bars(ways, counted, predicted, 1, KILOBYTE),
    }
    return Seen(sentence, panels)


def say(operations, held, predicted_operations, predicted_held):
    """Put what was counted and what was predicted into words."""
    millions = [plots.settled(n / MILLION) for n in (operations, predicted_operations)]
    return (
        f"{millions[0]:.2f} million operations (predicted: {millions[1]:.2f}), "
        f"{held / KILOBYTE:.0f} kB (predicted: {predicted_held / KILOBYTE:.0f})"
    )


def bars(ways, counted, predicted, part, unit):
    """Show one part of what each way costs, on an axis that the cache leaves alone."""
    return {
        "lengths": [counted[way][part] / unit for way in ways],
        "marks": [predicted[way][part] / unit for way in ways],
        "xmax": round_up(max(paid[part] for paid in counted.values()) / unit),
        "rows": ways,
    }


def round_up(number):
    """Return the end of an axis for a number: the next of ..., 0.5, 1, 2, 5, 10, ..."""
    ten = 10.0 ** math.floor(math.log10(number))
    return next(step * ten for step in (1, 2, 5, 10) if number <= step * ten)


def predict(T, n_head, batch):
    """Work out by hand what each way costs; returns {way: (operations, bytes)}."""
    table = 4 * batch * T * T  # bytes of one head's weights
    vectors = 4 * batch * T * C  # bytes of one number for each channel
    share = vectors // n_head  # of one head
    single = max(  # every head keeps its weights, and the last one adds
        (n_head + 3) * table + T * T + (n_head + 2) * share,  # 3 stages of the scores, and a mask
        (n_head + 1) * table + (n_head + 3) * share,  # its scores, and what it collects
        n_head * table + 2 * vectors,  # all that was collected, once more side by side
    )
    token = 8 * batch * C * C + 4 * batch * T * C  # projections, scores and weighted sum
    return {
        "06": (T * token, single),
        "07": (T * token, 5 * vectors),  # queries, keys, values, what they bring, what comes out
        "07 + cache": (token, 2 * vectors + 5 * vectors // T),  # 5 of the new token only
    }


@functools.lru_cache(maxsize=512)
@torch.no_grad()
def count(T, n_head, batch):
    """Run each way, and count what it costs; returns {way: (operations, bytes)}."""
    return {
        way: (cost.operations(work, *given), before + cost.peak_bytes(work, *given))
        for way, (work, given, before) in works(T, n_head, batch).items()
    }


@functools.lru_cache(maxsize=512)
@torch.no_grad()
def seconds(T, n_head, batch, way):
    """Time one way, once for each setting."""
    work, given, _ = works(T, n_head, batch)[way]
    return cost.seconds(work, *given)


def works(T, n_head, batch):
    """List each way as (what is called, with what, the bytes that it kept from before)."""
    slow, fast = layers(n_head)
    x = INPUTS[:batch, :T].contiguous()  # (B, T, C)
    kept = torch.zeros(2, batch, n_head, T, C // n_head)
    return {
        "06": (slow, (x,), 0),
        "07": (fast, (x,), 0),
        "07 + cache": (attend_after, (fast, x[:, -1:], kept, T - 1), kept.nbytes),
    }


@torch.no_grad()
def weights_of_a_head(T, n_head):
    """Return who looks at whom in the first head and text.  -> (T, T)"""
    return layers(n_head)[1].weights_of(INPUTS[:1, :T])[0, 0]


@functools.cache
def layers(n_head):
    """Make the layers of 06 and 07 with the same weights, wide enough for heads to choose."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)
        slow = MultiHeadAttention(C, n_head, LONGEST).eval()
        fast = FastMultiHeadAttention(C, n_head, LONGEST).eval()
        fast.qkv.weight.mul_(2.5)
        slow.load_state_dict(fast.state_dict())
    return slow, fast


def explore():
    """Read more, split into more heads, keep keys and values, and see what it costs."""
    controls = {
        "T": slider("T", 1, LONGEST, 64),
        "n_head": choice("n_head", [1, 2, 3, 4, 6, 8, 12], 4),
        "batch": slider("batch", 1, MOST, 2),
        "cache": switch("cache", False),
        "timed": switch("timed", False),
    }
    panels = {
        "weights computed": (Cells(xlabel=plots.LOOKED_AT, ylabel=plots.WHO_LOOKS), 3.0),
        "operations": (Bars(xlabel="million", ylabel="", margin=1.0), 1.9),
        "memory": (Bars(xlabel="kB"), 1.9),
    }
    return Explorer(look, Canvas([(3.0, panels)]), controls)
