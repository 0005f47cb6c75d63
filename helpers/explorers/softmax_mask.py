"""03: what do softmax, temperature and mask make of scores?"""

import torch

from helpers import plots
from helpers.explorers.canvas import Bars, Canvas, Cells
from helpers.explorers.explorer import Explorer, Seen, slider, switch
from helpers.softmax_mask import causal_mask, masked_softmax

LONGEST = 64
SCORES = torch.randn(LONGEST, LONGEST, generator=torch.Generator().manual_seed(3))


def look(T, spread, temperature, mask):
    """See which weights come from scores of a spread, divided by a temperature."""
    scores = spread * SCORES[:T, :T]  # (T, T)
    allowed = causal_mask(T) if mask else torch.ones(T, T, dtype=torch.bool)
    weights = masked_softmax(scores / temperature, allowed)  # (T, T)
    entropy = torch.special.entr(weights).sum(dim=-1)  # (T,)
    most = allowed.sum(dim=-1).log()  # (T,), of rows that share equally

    said = plots.say_matrix(plots.as_array(weights), None, None, signed=False)
    sentence = (
        f"Weights: {said}. The entropy of a row is {plots.settled(entropy.mean()):.2f} nats on "
        f"average; equal shares would have {plots.settled(most.mean()):.2f}."
    )
    return Seen(
        sentence,
        {
            "scores": {"matrix": scores.masked_fill(~allowed, float("-inf"))},
            "weights": {"matrix": weights},
            "row sums": {"matrix": weights.sum(dim=-1, keepdim=True), "columns": [""]},
            "entropy": {"lengths": entropy, "marks": most, "xmax": 1 + int(most.max())},
        },
    )


def explore():
    """Spread the scores, warm or cool them, lift the mask, and see what becomes of the weights."""
    controls = {
        "T": slider("T", 1, LONGEST, 8),
        "spread": slider("spread", 0.0, 5.0, 1.0, step=0.1),
        "temperature": slider("temperature", 0.1, 5.0, 1.0, step=0.1),
        "mask": switch("mask", True),
    }
    panels = {
        "scores": (Cells(signed=True, vmax=5, xlabel="key", ylabel=plots.WHO_LOOKS), 3.0),
        "weights": (Cells(xlabel=plots.LOOKED_AT), 3.0),
        "row sums": (Cells(), 0.6),
        "entropy": (Bars(xlabel="nats"), 1.4),
    }
    return Explorer(look, Canvas([(3.0, panels)]), controls)
