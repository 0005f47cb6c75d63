"""01: which past does step t average?"""

import torch

from helpers import plots, probe
from helpers.explorers.canvas import Canvas, Cells
from helpers.explorers.explorer import Explorer, Seen, keep_below, slider, span
from helpers.loop_mean import loop_mean

LONGEST, C = 64, 2
INPUTS = torch.randint(0, 10, (LONGEST, C), generator=torch.Generator().manual_seed(1337)).float()


def look(T, t):
    """See what step t of T positions takes from which of them."""
    x = INPUTS[:T]  # (T, C)
    weights = probe.weights_of(loop_mean, T)  # (T, T)
    out = loop_mean(x[None])[0]  # (T, C)

    count = t + 1
    share = "all of" if t == 0 else f"1/{count} of each of"
    rest = f" and nothing of {span(count, T - 1)}" if count < T else ""
    means = " and ".join(f"{mean:.2f}" for mean in plots.settled(out[t]))
    sentence = f"Position {t} takes {share} {span(0, t)}{rest}. Its {C} channels become {means}."
    return Seen(
        sentence,
        {
            "inputs": {"matrix": x, "frame": (0, 0, count, C)},
            "weights": {"matrix": weights[t][:, None], "title": f"row {t}", "columns": [""]},
            "means": {"matrix": out, "frame": (t, 0, 1, C)},
            "every row": {"matrix": weights, "frame": (t, 0, 1, T)},
        },
    )


def explore():
    """Move T and t, and see which past step t averages."""
    controls = {"T": slider("T", 1, LONGEST, 8), "t": slider("t", 0, 7, 5)}
    keep_below(controls["t"], controls["T"])
    numbers = {"vmax": 9, "xlabel": "channel"}
    panels = {
        "inputs": (Cells(**numbers, ylabel="position"), 1.0),
        "weights": (Cells(xlabel="weight"), 0.5),
        "means": (Cells(**numbers), 1.0),
        "every row": (Cells(xlabel=plots.LOOKED_AT, ylabel=plots.WHO_LOOKS), 3.4),
    }
    return Explorer(look, Canvas([(3.4, panels)]), controls)
