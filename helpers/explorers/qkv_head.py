"""05: what happens inside one head?"""

import torch

from helpers import plots
from helpers.explorers.canvas import Bars, Canvas, Cells
from helpers.explorers.explorer import Explorer, Seen, slider, switch
from helpers.softmax_mask import causal_mask, masked_softmax

LONGEST, LARGEST = 64, 64
DRAWN = torch.randn(3, LONGEST, LARGEST, generator=torch.Generator().manual_seed(5))  # variance 1


def look(T, head_size, scale, mask):
    """See a head at work, stage by stage, with or without its scale and its mask."""
    q, k, v = DRAWN[:, :T, :head_size]  # each (T, hs)
    scores = q @ k.T  # (T, hs) @ (hs, T) -> (T, T)
    scaled = scores / head_size**0.5 if scale else scores
    allowed = causal_mask(T) if mask else torch.ones(T, T, dtype=torch.bool)
    weights = masked_softmax(scaled, allowed)  # (T, T)
    out = weights @ v  # (T, T) @ (T, hs) -> (T, hs)
    entropy = torch.special.entr(weights).sum(dim=-1)  # (T,)
    most = allowed.sum(dim=-1).log()  # (T,), of rows that share equally

    spread = {
        "scores": plots.settled(scores.std(correction=0)),
        "scaled": plots.settled(scaled.std(correction=0)),
    }
    said = plots.say_matrix(plots.as_array(weights), None, None, signed=False)
    sentence = (
        f"Weights: {said}. With head_size = {head_size}, the scores before the mask have a spread "
        f"of {spread['scaled']:.2f}, and a row has an entropy of "
        f"{plots.settled(entropy.mean()):.2f} nats on average; equal shares would have "
        f"{plots.settled(most.mean()):.2f}."
    )
    return Seen(
        sentence,
        {
            "scores": {"matrix": scores, "title": f"scores, spread {spread['scores']:.2f}"},
            "scaled": {
                "matrix": scaled,
                "title": f"{'scaled' if scale else 'not scaled'}, spread {spread['scaled']:.2f}",
            },
            "masked": {
                "matrix": scaled.masked_fill(~allowed, float("-inf")),
                "title": "masked" if mask else "not masked",
            },
            "weights": {"matrix": weights},
            "output": {"matrix": out},
            "entropy": {"lengths": entropy, "marks": most, "xmax": 1 + int(most.max())},
        },
    )


def explore():
    """Choose T and head_size, switch scale and mask off, and see every stage of a head."""
    controls = {
        "T": slider("T", 1, LONGEST, 8),
        "head_size": slider("head_size", 1, LARGEST, 16),
        "scale": switch("scale", True),
        "mask": switch("mask", True),
    }
    signed = {"signed": True, "vmax": 6}
    before = {
        "scores": (Cells(**signed, ylabel=plots.WHO_LOOKS), 2.4),
        "scaled": (Cells(**signed), 2.4),
        "masked": (Cells(**signed), 2.4),
    }
    after = {
        "weights": (Cells(xlabel=plots.LOOKED_AT, ylabel=plots.WHO_LOOKS), 2.4),
        "output": (Cells(signed=True, vmax=3, xlabel="channel"), 2.4),
        "entropy": (Bars(xlabel="nats"), 2.4),
    }
    return Explorer(look, Canvas([(2.2, before), (2.2, after)]), controls)
