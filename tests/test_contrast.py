"""Every letter in a picture stands out from what is behind it, at least 4.5 to 1 (WCAG 2.2)."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from test_explorers import MODULES
from test_plots import DRAWN

from helpers import plots
from helpers.explorers import canvas

LEAST = 4.5
WHOLE_SCALE = np.linspace(0, 1, 100).reshape(10, 10)
PICTURES = {
    **DRAWN,
    "all weights": lambda: plots.heatmap(WHOLE_SCALE**2),  # small weights have more of the scale
    "all signed numbers": lambda: plots.heatmap(2 * WHOLE_SCALE - 1, signed=True),
    "stages of both": lambda: plots.stages({"scores": WHOLE_SCALE, "weights": WHOLE_SCALE}),
    "ranges": lambda: plots.ranges({"one": [1, 3]}, xlabel="x", title="Parts", levels={"floor": 2}),
}


def contrast(colour, other):
    """The contrast ratio of WCAG 2.2 between colours (..., 3) from 0 to 1."""
    light, other = luminance(colour), luminance(other)
    return (np.maximum(light, other) + 0.05) / (np.minimum(light, other) + 0.05)


def luminance(colour):
    colour = np.asarray(colour, dtype=float)
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return 0.2126 * linear[..., 0] + 0.7152 * linear[..., 1] + 0.0722 * linear[..., 2]


def faint(figure):
    """List the texts of a figure that stand out too little, each with its contrast."""
    agg = FigureCanvasAgg(figure)
    agg.draw()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    boxes = [text.get_window_extent() for text in texts]
    for text in texts:
        text.set_alpha(0)
    agg.draw()
    image = np.asarray(agg.buffer_rgba())[::-1, :, :3] / 255  # row 0 at the bottom, as in boxes
    found = []
    for text, box in zip(texts, boxes, strict=True):
        (left, bottom), (right, top) = np.round([box.min, box.max]).astype(int)
        behind = image[bottom:top, left:right]
        if behind.size:  # ticks beyond the limits of an axis lie outside the picture
            found.append((text.get_text(), contrast(to_rgb(text.get_color()), behind).min()))
    assert found
    return [(text, ratio) for text, ratio in found if ratio < LEAST]


@pytest.mark.parametrize(
    ("colour", "other", "ratio"),
    [("black", "white", 21), ("#767676", "white", 4.54), ("#0000ff", "#ffffff", 8.59)],
)
def test_contrast_is_that_of_the_standard(colour, other, ratio):
    assert contrast(to_rgb(colour), to_rgb(other)) == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize("name", PICTURES)
def test_letters_in_pictures_stand_out(name):
    assert faint(PICTURES[name]().figure) == []


@pytest.fixture
def pens(monkeypatch):
    """What explorers write with Pillow: each text, and its contrast with all that it covers."""
    written = []

    def watch(method):
        def write(pen, *args, **named):
            before = np.asarray(pen.image).copy()
            method(pen, *args, **named)
            covered = before[(before != np.asarray(pen.image)).any(axis=-1)] / 255
            colour = to_rgb(named.get("colour", plots.INK))
            if len(covered):
                written.append((args[2:3], contrast(colour, covered).min()))

        return write

    for name in ["write", "write_upright"]:
        monkeypatch.setattr(canvas.Pen, name, watch(getattr(canvas.Pen, name)))
    return written


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split(".")[-1])
def test_letters_in_explorers_stand_out(module, pens):
    explorer = module.explore()
    assert faint(explorer.canvas.figure) == []
    assert pens
    assert [text for text in pens if text[1] < LEAST] == []


@pytest.mark.parametrize("signed", [False, True])
def test_letters_in_the_cells_of_explorers_stand_out_on_every_colour(signed, pens):
    panel = canvas.Cells(signed=signed)
    picture = canvas.Canvas([(4.0, {"cells": (panel, 6.0)})])
    picture.draw({"cells": {"matrix": 2 * WHOLE_SCALE - 1 if signed else WHOLE_SCALE**2}})
    assert len(pens) == 100 + 5 + 1  # cells, every second column, and the title
    assert [text for text in pens if text[1] < LEAST] == []
