"""02: how does one entry of a matrix product come about?"""

import torch

from helpers import plots
from helpers.explorers.canvas import Canvas, Cells
from helpers.explorers.explorer import Explorer, Seen, keep_below, slider
from helpers.tril_matmul import mean_weights

LONGEST, C = 64, 2
INPUTS = torch.randint(0, 10, (LONGEST, C), generator=torch.Generator().manual_seed(42)).float()
WRITTEN = 8  # longer sums are cut short


def look(T, row, column):
    """See how a row of the weights times a column of x gives one entry of the product."""
    x = INPUTS[:T]  # (T, C)
    wei = mean_weights(T)  # (T, T)
    out = wei @ x  # (T, T) @ (T, C) -> (T, C)
    products = wei[row] * x[:, column]  # (T,) * (T,) -> (T,)

    terms = [f"1/{row + 1} · {x[s, column]:.0f}" for s in range(row + 1)]
    if len(terms) > WRITTEN:
        terms[WRITTEN - 2 : -1] = ["…"]
    sentence = (
        f"Row {row} of wei times column {column} of x: {' + '.join(terms)} = "
        f"{plots.settled(out[row, column]):.2f}. The weights that are not 0: {row + 1} of {T}."
    )
    return Seen(
        sentence,
        {
            "wei": {"matrix": wei, "frame": (row, 0, 1, T)},
            "x": {"matrix": x, "frame": (0, column, T, 1)},
            "products": {"matrix": products[:, None], "columns": [""]},
            "wei @ x": {"matrix": out, "frame": (row, column, 1, 1)},
        },
    )


def explore():
    """Choose a row of the weights and a column of x, and see their product grow."""
    controls = {
        "T": slider("T", 1, LONGEST, 6),
        "row": slider("row", 0, 5, 3),
        "column": slider("column", 0, C - 1, 0),
    }
    keep_below(controls["row"], controls["T"])
    channels = {"vmax": 9, "xlabel": "column"}
    panels = {
        "wei": (Cells(xlabel="column", ylabel="row"), 3.4),
        "x": (Cells(**channels, ylabel="row"), 1.0),
        "products": (Cells(vmax=9), 0.7),
        "wei @ x": (Cells(**channels, ylabel="row"), 1.0),
    }
    return Explorer(look, Canvas([(3.4, panels)]), controls)
