"""Draw the ladder: who looks at whom, once for each notebook.

python -m helpers.maintain.ladder writes pictures/ladder.png, which the README shows.
"""

import argparse
import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from helpers import plots, probe
from helpers.checkpoint import load_checkpoint
from helpers.fast_heads import FastMultiHeadAttention
from helpers.loop_mean import loop_mean
from helpers.positional import sinusoidal_positions
from helpers.softmax_mask import causal_mask, masked_softmax
from helpers.stories import START
from helpers.text import WordTokenizer
from helpers.transformer import MultiHeadAttention
from helpers.tril_matmul import mean_weights

LADDER = Path(__file__).resolve().parents[2] / "pictures" / "ladder.png"
SENTENCE = "Mara met Tom. He waved. She laughed."  # from notebook 05
STORY = (
    "One rainy night Ben heard a goat cry in the mill. He had only a yellow lamp, but he went to "
    "look. The"
)
TEXT_FORM = "Description"  # where a PNG keeps it

PER_ROW = 4
STEP, ROW, FOOT = plots.PAGE / PER_ROW, 2.8, 0.35  # inches: a rung across and down, and the legend
MARGIN, HEADING, LINE = 0.3, 0.5, 0.18  # left of a triangle, above it, and a line below it
SIDE = STEP - 2.1 * MARGIN
SHARP = 180  # dots per inch, for screens with small pixels


@dataclass(frozen=True)
class Rung:
    """What a notebook adds to the picture.

    Shape:
        weights  (T, T)                row = query, column = key
        words    {row: word}           to write at the end of their rows
        found    [(row, column), ...]  cells that get a frame

    `numbered` writes every weight into its cell, `row_by_row` frames the last row.
    """

    stem: str
    caption: str
    weights: torch.Tensor
    says: str
    words: dict = field(default_factory=dict)
    found: list = field(default_factory=list)
    numbered: bool = False
    row_by_row: bool = False


def rungs():
    """Compute every rung from what its notebook builds, from the first notebook to the last."""
    return [loops(), product(), scores(), places(), hand_set_head(), trained_head(), fast_head()]


def loops():
    weights = probe.weights_of(loop_mean, 8)
    says = f"the last of 8 rows gives {two(weights[7, 0])} to each token"
    return Rung("01_loop_mean", "the mean of the past,\nby two loops", weights, says)


def product():
    weights = mean_weights(4)
    says = f"with 4 rows, the last gives {two(weights[3, 0])} to each token"
    caption = "the same mean,\nas one matrix of weights"
    return Rung("02_tril_matmul", caption, weights, says, numbered=True)


def scores():
    drawn = torch.randn(6, 6, generator=torch.Generator().manual_seed(3))
    weights = masked_softmax(drawn, causal_mask(6))
    least, most = weights[5].min(), weights[5].max()
    says = f"shares differ, from {two(least)} to {two(most)} in the last row"
    return Rung("03_softmax_mask", "weights from scores:\nsome count for more", weights, says)


def places():
    vectors = sinusoidal_positions(block_size=24, n_embd=16)  # (T, C)
    weights = masked_softmax(vectors @ vectors.T, causal_mask(24))
    here, before, first = weights[-1, [-1, -2, 0]]
    says = (
        f"the last of 24 rows gives {two(here)} to its own place, {two(before)} to the one before "
        f"and {two(first)} to the first"
    )
    return Rung("04_positional", "vectors for places:\nwho stands near is found", weights, says)


def hand_set_head():
    tokenizer = WordTokenizer(SENTENCE)
    words = [token.strip() for token in tokenizer.split(SENTENCE)]
    q, k = torch.zeros(len(words), 2), torch.zeros(len(words), 2)  # (T, hs)
    pairs = [("She", "Mara"), ("He", "Tom")]
    found = [(words.index(who), words.index(whom)) for who, whom in pairs]
    for channel, (asks, answers) in enumerate(found):
        q[asks, channel], k[answers, channel] = 5.0, 1.0
    weights = masked_softmax(q @ k.T, causal_mask(len(words)))
    says = " and ".join(
        f"“{words[t]}” gives {two(weights[t, s])} to “{words[s]}”" for t, s in found
    )
    caption = "queries find keys:\n“She” finds “Mara”"
    return Rung("05_qkv_head", caption, weights, says, dict(enumerate(words)), found)


def head_on_story(attention):
    """Let the trained model read the story; returns (its words, weights of one head)."""
    model, tokenizer = load_checkpoint(attention=attention)
    words = [token.strip() for token in tokenizer.split(START + STORY)]
    return words, probe.attention_maps(model, tokenizer.encode(START + STORY)[None])[0, 0]


def trained_head():
    words, weights = head_on_story(MultiHeadAttention)
    t, s = found = words.index("The"), words.index("goat")
    says = f"“The” gives {two(weights[found])} to “goat”, {t - s} tokens back"
    caption = "one of four trained heads:\n“The” finds “goat” again"
    ends = {t: words[t], s: words[s]}
    return Rung("06_transformer", caption, weights, says, ends, [found])


def fast_head():
    _, weights = head_on_story(FastMultiHeadAttention)
    says = "the weights of 06 again, where a new token needs the last row alone"
    caption = "the same, many times faster:\none row for a new token"
    return Rung("07_fast_heads", caption, weights, says, row_by_row=True)


def two(number):
    """Write a weight with two decimals, the same on every machine."""
    return f"{plots.settled(number):.2f}"


def ladder():
    """Draw all rungs; returns a Picture."""
    drawn = rungs()
    figure = Figure(figsize=(plots.PAGE, ROW * -(-len(drawn) // PER_ROW) + FOOT))
    for place, rung in enumerate(drawn):
        row, column = divmod(place, PER_ROW)
        left, top = MARGIN + STEP * column, figure.get_figheight() - ROW * row - HEADING
        draw_rung(figure, left, top, rung)
        if column:
            ends = inches(figure, left - 0.65, top + 0.2), inches(figure, left - 0.1, top + 0.2)
            look = {"arrowstyle": "-|>", "mutation_scale": 9, "color": plots.QUIET}
            figure.add_artist(FancyArrowPatch(*ends, **look, transform=figure.transFigure))
    legend = (
        "Row: who looks.   Column: what is looked at.   The darker, the more.   Each row sums to 1."
    )
    write(figure, MARGIN, 0.2, legend)
    said = "; ".join(f"in {rung.stem[:2]}, {rung.says}" for rung in drawn)
    sentence = (
        f"Who looks at whom, in {len(drawn)} triangles, one for each notebook. Each row sums to 1 "
        f"and gives nothing to what comes after it: {said}."
    )
    numbers = "\n".join(f"{rung.stem}\n{numbers_of(rung)}" for rung in drawn)
    return plots.Picture(figure, sentence, numbers)


def numbers_of(rung):
    """List a rung's weights, or the means of its columns, after a sentence on them."""
    array = plots.as_array(rung.weights)
    return f"{plots.say_matrix(array, None, None, signed=False)}\n{plots.list_matrix(array)}"


def draw_rung(figure, left, top, rung):
    """Draw a triangle whose upper left corner is given in inches, its heading and its caption."""
    number, *name = rung.stem.split("_")
    write(figure, left, top + 0.15, number, size=13, weight="bold", color=plots.LINES[0][0])
    write(figure, left + 0.36, top + 0.15, " ".join(name), size=12)
    for number, line in enumerate(rung.caption.splitlines(), start=1):
        write(figure, left, top - SIDE - 0.03 - LINE * number, line)
    lower_left, size = inches(figure, left, top - SIDE), inches(figure, SIDE, SIDE)
    draw_triangle(figure.add_axes((*lower_left, *size)), rung)


def draw_triangle(ax, rung):
    """Draw the weights that are above 0, the words at the ends of their rows, and the frames."""
    array, T = plots.as_array(rung.weights), len(rung.weights)
    cmap, norm = plots.colours(signed=False, vmax=1.0)
    lines = "white" if T <= plots.NUMBERED else "none"
    ax.pcolormesh(np.ma.masked_equal(array, 0), cmap=cmap, norm=norm, edgecolors=lines)
    stairs = [(t + right, t) for t in range(T) for right in (0, 1)]
    outline = [*stairs, (T, T), (0, T)]
    ax.add_patch(Polygon(outline, fill=False, edgecolor=plots.QUIET, linewidth=0.8, clip_on=False))
    frame = {"fill": False, "edgecolor": plots.LINES[1][0], "linewidth": 1.6, "clip_on": False}
    for row, column in rung.found:
        ax.add_patch(Rectangle((column, row), 1, 1, **frame))
    if rung.row_by_row:
        ax.add_patch(Rectangle((0, T - 1), T, 1, **frame))
    look = {"size": plots.CELL, "va": "center", "color": plots.INK}
    for row, word in rung.words.items():
        ax.annotate(word, (row + 1, row + 0.5), (5.5, 0), textcoords="offset points", **look)
    for row, column in np.argwhere(array) if rung.numbered else []:
        weight = array[row, column]
        colour = "white" if plots.is_dark(cmap(norm(weight))) else "black"
        look = {"size": plots.TEXT, "ha": "center", "va": "center", "color": colour}
        ax.text(column + 0.5, row + 0.5, two(weight), **look)
    ax.set(ylim=(T, 0))
    ax.set_axis_off()


def write(figure, left, bottom, text, **look):
    """Write a text, placed in inches from the lower left corner of the figure."""
    look = {"size": plots.TEXT, "color": plots.INK, **look}
    figure.text(*inches(figure, left, bottom), text, **look)


def inches(figure, x, y):
    """Turn inches into shares of a figure."""
    return x / figure.get_figwidth(), y / figure.get_figheight()


def store(picture, path):
    """Write a picture as a PNG that carries its text form."""
    file = io.BytesIO()
    picture.figure.savefig(file, format="png", dpi=SHARP)
    image = Image.open(io.BytesIO(plots.small_png(Image.open(file))))
    said = PngInfo()
    said.add_text(TEXT_FORM, repr(picture))
    image.save(path, pnginfo=said, optimize=True)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m helpers.maintain.ladder", description=__doc__.splitlines()[0]
    )
    parser.parse_args()
    picture = ladder()
    LADDER.parent.mkdir(exist_ok=True)
    store(picture, LADDER)
    print(f"The README's text for it:\n{picture.sentence}")


if __name__ == "__main__":
    main()
