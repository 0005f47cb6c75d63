"""Look: pictures that also say what they show.

Every function returns a Picture. It displays as a PNG with one sentence under it. That sentence is
its alt text too; with the rounded numbers it is the picture's text form, which tests compare.
"""

import base64
import html
import io

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import display
from matplotlib import colormaps
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator
from PIL import Image

from helpers import expect

# one look for the whole series
INK, QUIET, HIDDEN = "#22303c", "#b8c0c8", "#f1f1f1"
WEIGHTS = colormaps["Blues"]  # survives colour blindness and grey printing
SIGNED = colormaps["PuOr_r"]  # survives colour blindness
LINES = [
    ("#0072b2", "o", "-"),
    ("#d55e00", "s", "--"),
    ("#009e73", "^", "-."),
    ("#7b3294", "D", ":"),
]
TEXT, TITLE, CELL = 9, 10, 8  # font sizes in points
DPI = 120
PAGE = 9.4  # inches across
WHO_LOOKS, LOOKED_AT = "query (who looks)", "key (what is looked at)"
NUMBERED = 10  # a matrix with at most this many rows and columns shows its numbers
LISTED = 100  # a text form lists at most this many numbers
VISIBLE = {"\n": "↵", " ": "␣"}


class Picture:
    """A figure together with what it says: a sentence, and numbers."""

    def __init__(self, figure, sentence, numbers=""):
        self.figure = figure
        self.sentence = sentence
        self.numbers = numbers

    def __repr__(self):
        return f"{self.sentence}\n{self.numbers}".rstrip()

    def png(self):
        """Draw the figure; returns the bytes of a PNG."""
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=DPI)
        return small_png(Image.open(file))

    def outputs(self):
        """Return what a notebook stores, (data, metadata) twice: the picture, and its sentence."""
        plt.close(self.figure)  # a figure made by pyplot would be shown a second time
        width, height = (round(inches * 96) for inches in self.figure.get_size_inches())
        png = base64.b64encode(self.png()).decode("ascii")
        alt = {"alt": self.sentence, "width": width, "height": height}
        said = f"<p>{html.escape(self.sentence)}</p>"
        return [
            ({"image/png": png, "text/plain": repr(self)}, {"image/png": alt}),
            ({"text/html": said, "text/plain": self.sentence}, {}),
        ]

    def _ipython_display_(self):
        for data, metadata in self.outputs():
            display(data, raw=True, metadata=metadata)


def heatmap(
    matrix,
    tokens=None,
    *,
    rows=None,
    columns=None,
    mask=None,
    mark=None,
    signed=False,
    vmax=1.0,
    title="Weights",
    ylabel=WHO_LOOKS,
    xlabel=LOOKED_AT,
    ax=None,
):
    """Draw a matrix with row 0 on top: weights from 0 to vmax, or signed numbers around 0.

    Shape:
        matrix         (R, S)  tensor, array or list; cells that hold -inf or NaN are hidden
        mask           (R, S)  bool, True where a cell is shown (default: everywhere)
        mark           (R, S)  bool, True where a cell gets a frame (default: nowhere)
        rows, columns  R and S labels; `tokens` labels both sides

    `vmax=None` takes the largest number there is. With `ax` it draws into that; the Picture is
    then the whole figure.
    Raises ValueError for anything but a matrix, a mask of another shape, another number of labels,
    or weights below 0, and TypeError for a mask that is not boolean.
    """
    array = as_array(matrix)
    expect.matrix(array)
    array = np.where(np.isfinite(array), array, np.nan)
    if mask is not None:
        mask = torch.as_tensor(mask).cpu()
        expect.bool_mask(mask, torch.from_numpy(array))
        array = np.where(mask, array, np.nan)
    rows, columns = (tokens if names is None else names for names in (rows, columns))
    rows, columns = (names if names is None else list(map(str, names)) for names in (rows, columns))
    ax = ax or Figure(figsize=size_for(array, rows, columns), layout="constrained").subplots()
    image = draw_matrix(ax, array, rows, columns, signed, vmax)
    style(ax, title, xlabel, ylabel)
    framed = "" if mark is None else draw_frames(ax, array, torch.as_tensor(mark).cpu())
    if max(array.shape) > NUMBERED:
        ax.figure.colorbar(image, ax=ax, shrink=0.8).ax.tick_params(labelsize=CELL)
    sentence = f"{title}: {say_matrix(array, rows, columns, signed)}{framed}."
    return Picture(ax.figure, sentence, list_matrix(array))


def stages(panels, tokens=None):
    """Draw the stages of a computation side by side.

    A panel with "weights" in its name is drawn from 0 to 1, any other as signed numbers.

    Shape:
        panels  {name: (R, S)}  tensors, arrays or lists of one shape
        tokens  labels for rows and columns

    Raises ValueError as heatmap does.
    """
    for matrix in panels.values():
        expect.matrix(as_array(matrix))
    R = max(len(matrix) for matrix in panels.values())
    axes = panel_grid(len(panels), width=max(2.6, 0.41 * R + 0.5))
    pictures = [
        heatmap(matrix, tokens, signed="weights" not in name, title=name, ax=ax)
        for ax, (name, matrix) in zip(axes, panels.items(), strict=True)
    ]
    for ax in axes:
        place = ax.get_subplotspec()
        ax.set(ylabel=WHO_LOOKS if place.is_first_col() else "")
        ax.set(xlabel=LOOKED_AT if place.is_last_row() else "")
    return together(axes, pictures)


def head_grid(maps, tokens):
    """Draw every head of a model: one row of pictures for each layer, one column for each head.

    Shape:
        maps    (n_layer, n_head, T, T)  weights, as probe.attention_maps returns them
        tokens  T labels

    Raises ValueError for another number of dimensions or labels.
    """
    array = as_array(maps)
    if array.ndim != 4 or array.shape[2] != array.shape[3]:
        raise ValueError(
            f"maps have shape {array.shape}; pass (n_layer, n_head, T, T), "
            "as probe.attention_maps returns them"
        )
    n_layer, n_head, T, _ = array.shape
    side = min(max(2.2, 0.13 * T), PAGE / n_head)  # inches; wide enough for the labels
    figure = Figure(figsize=(side * n_head + 0.9, side * n_layer + 0.9), layout="constrained")
    axes = figure.subplots(n_layer, n_head, squeeze=False)
    said = []
    for layer in range(n_layer):
        for head in range(n_head):
            ax, name = axes[layer, head], f"layer {layer}, head {head}"
            draw_matrix(
                ax, array[layer, head], tokens, tokens, signed=False, vmax=1.0, numbered=False
            )
            style(ax, name, xlabel="", ylabel="")
            ax.tick_params(labelleft=head == 0, labelbottom=layer == n_layer - 1)
            said.append(f"{name}: {say_habits(array[layer, head])}")
    figure.supylabel(WHO_LOOKS, fontsize=TEXT, color=INK)
    figure.supxlabel(LOOKED_AT, fontsize=TEXT, color=INK)
    said_of_all = say_matrix(array, tokens, tokens, signed=False)
    sentence = f"Weights of {n_layer * n_head} heads over {T} tokens: {said_of_all}."
    return Picture(figure, sentence, "\n".join(said))


def lines(x, series, *, xlabel, ylabel, title, log="", levels=None):
    """Draw one line for each name in series; `log` names the logarithmic axes: "x" or "xy".

    Shape:
        x       (N,)          numbers in rising order
        series  {name: (N,)}  tensors, arrays or lists
        levels  {name: number}  for thin lines across the whole picture

    Raises ValueError for a line of another length, or more than four lines.
    """
    if len(series) > len(LINES):
        raise ValueError(
            f"{len(series)} lines are too many to tell apart; pass {len(LINES)} or fewer"
        )
    x = as_array(x)
    if not x.size:
        raise ValueError("there is nothing to draw yet; pass at least one x")
    figure = Figure(figsize=(5.4, 3.3), layout="constrained")
    ax = figure.subplots()
    said, listed = [], []
    for (name, y), (colour, marker, dash) in zip(series.items(), LINES, strict=False):
        y = as_array(y)
        if y.shape != x.shape:
            raise ValueError(
                f"{name!r} has shape {y.shape} and x {x.shape}; pass one number for each x"
            )
        marker = marker if len(x) <= 20 else None
        ax.plot(x, y, color=colour, marker=marker, markersize=4, linestyle=dash, label=name)
        said.append(f"{name} goes from {short(y[0])} to {short(y[-1])}")
        listed.append(f"{name}: " + " ".join(short(value) for value in y[: LISTED // len(series)]))
    for name, level in (levels or {}).items():
        ax.margins(y=0.12)  # room for its name
        ax.axhline(level, color=QUIET, linewidth=1, zorder=0)
        right_end = ax.get_yaxis_transform()  # x in shares of the axes, y in data
        ax.text(1, level, name, transform=right_end, ha="right", va="bottom", size=CELL, color=INK)
        said.append(f"{name} is {short(level)}")
    if "x" in log:
        ax.set_xscale("log")
        ax.set_xticks(x, [short(value) for value in x])
    if "y" in log:
        ax.set_yscale("log")
        bottom, top = ax.get_ylim()
        if top < 1000 * bottom:  # powers of ten alone would be too few
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.yaxis.set_major_formatter(lambda value, place: short(value))
    ax.minorticks_off()
    ax.grid(color=HIDDEN)
    style(ax, title, xlabel, ylabel)
    figure.legend(
        loc="outside lower center", ncols=len(series), frameon=False, fontsize=TEXT, labelcolor=INK
    )
    sentence = f"{title}, for {xlabel} from {short(x[0])} to {short(x[-1])}: {'; '.join(said)}."
    return Picture(figure, sentence, "\n".join(listed))


def loss_curve(history, levels=None):
    """Draw how the losses of a training run fell.

    `history` is what train.train returns; `levels` {name: loss} are drawn across, such as the loss
    of a guess, or the floor that no model can pass.
    """
    series = {"training text": history["train"], "held-out text": history["held_out"]}
    labels = {"xlabel": "step", "ylabel": "loss (nats per token)", "title": "Loss"}
    return lines(history["step"], series, **labels, levels=levels)


class LiveCurve:
    """A loss curve that draws itself anew in its place whenever it is called with a history."""

    def __init__(self, levels=None):
        self.levels = levels
        self.handles = []

    def __call__(self, history):
        outputs = loss_curve(history, self.levels).outputs()
        if not self.handles:
            self.handles = [
                display(data, raw=True, metadata=metadata, display_id=True)
                for data, metadata in outputs
            ]
        for handle, (data, metadata) in zip(self.handles, outputs, strict=True):
            handle.update(data, raw=True, metadata=metadata)


def ranges(series, *, xlabel, title, levels=None):
    """Draw for each name the mean of its numbers, and a line from least to largest, in logarithms.

    Shape:
        series  {name: (any,)}    tensors, arrays or lists
        levels  {name: number}    for thin lines across the whole picture
    """
    figure = Figure(figsize=(6.4, 0.36 * len(series) + 1.0), layout="constrained")
    ax = figure.subplots()
    said = []
    for place, (name, values) in enumerate(series.items()):
        values = as_array(values)
        if not values.size or not (values > 0).all():
            raise ValueError(f"{name!r} holds {values}; pass numbers above 0, at least one")
        ax.plot([values.min(), values.max()], [place, place], color=LINES[0][0], linewidth=2)
        ax.plot(values.mean(), place, color=LINES[0][0], marker="o")
        said.append(f"{name} {values.mean():.3f} ({values.min():.3f} to {values.max():.3f})")
    for name, level in (levels or {}).items():
        ax.axvline(level, color=QUIET, linewidth=1, zorder=0)
        ax.text(level, -0.9, name, ha="center", va="bottom", size=CELL, color=INK)
        said.append(f"{name} {level:.3f}")
    ax.set(yticks=range(len(series)), yticklabels=list(series), ylim=(len(series) - 0.5, -1))
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(lambda value, place: short(value))
    ax.minorticks_off()
    ax.grid(axis="x", color=HIDDEN)
    style(ax, title, xlabel, "")
    return Picture(figure, f"{title}, {xlabel}: {'; '.join(said)}.")


def small_png(image):
    """Return the bytes of a PNG with the 256 colours that suit a Pillow image best.

    It has about a third of the size, and looks the same.
    """
    file = io.BytesIO()
    image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return file.getvalue()


def as_array(values):
    """Turn a tensor (of any kind, anywhere), an array or a list into an array of floats."""
    if torch.is_tensor(values):
        values = values.detach().cpu().float().numpy()
    return np.asarray(values, dtype=float)


def panel_grid(count, width):
    """Make `count` square panels of a width in inches, as many in a row as a page holds."""
    per_row = max(1, min(count, int(PAGE / width)))
    rows = -(-count // per_row)
    figure = Figure(figsize=(width * per_row, (width + 0.3) * rows), layout="constrained")
    axes = figure.subplots(rows, per_row, squeeze=False).ravel()
    for ax in axes[count:]:
        ax.remove()
    return list(axes[:count])


def together(axes, pictures):
    """Join pictures that share a figure into one that says everything."""
    sentence = " ".join(picture.sentence for picture in pictures)
    numbers = "\n".join(
        f"{ax.get_title()}\n{picture.numbers}" for ax, picture in zip(axes, pictures, strict=True)
    )
    return Picture(axes[0].figure, sentence, numbers)


def size_for(array, rows, columns):
    """Choose the size of a picture of one matrix, in inches."""
    R, S = array.shape
    cell = 0.52 if max(R, S) <= NUMBERED else min(0.3, 6.5 / max(R, S))
    label_width = 0.09 * max((len(label) for label in rows or ["00"]), default=0)
    label_height = 0.09 * max((len(label) for label in columns or ["00"]), default=0)
    return max(cell * S + label_width + 0.9, 3.0), max(cell * R + label_height + 0.8, 1.8)


def draw_matrix(ax, array, rows, columns, signed, vmax, numbered=True):
    """Draw the cells, their labels and, where there is room, their numbers; returns the image."""
    finite = array[np.isfinite(array)]
    if not signed and (finite < 0).any():
        raise ValueError(
            f"weights go down to {finite.min():.2g}; pass signed=True for signed numbers"
        )
    R, S = array.shape
    if signed or vmax is None:
        vmax = np.abs(finite).max(initial=0) or 1.0
    cmap, norm = colours(signed, vmax)
    aspect = "equal" if R == S else "auto"
    image = ax.imshow(array, cmap=cmap, norm=norm, aspect=aspect)
    for row, column in np.argwhere(np.isnan(array)):
        look = {"facecolor": HIDDEN, "edgecolor": QUIET, "hatch": "////", "linewidth": 0}
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))
    if numbered and max(R, S) <= NUMBERED:
        for row, column in np.argwhere(np.isfinite(array)):
            value = array[row, column]
            colour = "white" if is_dark(cmap(norm(value))) else "black"
            look = {"fontsize": CELL, "color": colour}
            ax.text(column, row, f"{settled(value):.2f}", ha="center", va="center", **look)
    label(ax.xaxis, columns, S)
    label(ax.yaxis, rows, R)
    if columns is not None and max(map(len, columns)) > 2:
        ax.tick_params(axis="x", rotation=90)
    return image


def colours(signed, vmax):
    """Choose the colour map of a matrix and its scale, on which small weights still show."""
    if signed:
        return SIGNED, Normalize(-vmax, vmax)
    return WEIGHTS, PowerNorm(0.5, 0, vmax)


def is_dark(colour):
    """Tell whether white letters stand out better than black ones, on (red, green, blue, ...).

    By the contrast ratio of WCAG 2.2, which is then at least 4.58 on any colour.
    """
    shares = np.asarray(colour)[..., :3]
    light = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return light @ (0.2126, 0.7152, 0.0722) + 0.05 < (1.05 * 0.05) ** 0.5


def draw_frames(ax, array, mark):
    """Frame the marked cells, and say how much of their rows they hold."""
    expect.bool_mask(mark, torch.from_numpy(array))
    mark = mark.expand(array.shape).numpy()
    for row, column in np.argwhere(mark):
        look = {"fill": False, "edgecolor": LINES[1][0], "linewidth": 1.5}
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))
    rows = mark.any(axis=1)
    share = np.nansum(np.where(mark, array, 0)[rows]) / (np.nansum(array[rows]) or 1)
    return f", {mark.sum()} cells have a frame and hold {settled(100 * share):.2f} % of their rows"


def label(axis, names, count):
    """Label the positions 0 to count - 1: each with its token, or some with their number."""
    if names is None:
        step = 1 if count <= 16 else 8
        axis.set_ticks(range(0, count, step))
        return
    expect.labels(names, count)
    axis.set_ticks(range(count), [visible(name) for name in names], parse_math=False)


def style(ax, title, xlabel, ylabel):
    """Give axes the look of the series."""
    ax.set_title(title, fontsize=TITLE, color=INK, parse_math=False)
    ax.set_xlabel(xlabel, fontsize=TEXT, color=INK)
    ax.set_ylabel(ylabel, fontsize=TEXT, color=INK)
    ax.tick_params(labelsize=CELL, length=2, color=QUIET, labelcolor=INK)
    for spine in ax.spines.values():
        spine.set_color(QUIET)


def say_matrix(array, rows, columns, signed):
    """Say in words what a matrix, or a stack of them, shows."""
    R, S = array.shape[-2:]
    hidden = np.isnan(array)
    said = [f"{R} by {S} cells"]
    if hidden.any():
        said.append(f"{hidden.sum()} of them hidden")
    if hidden.all():
        return ", ".join(said)
    if signed:
        said.append(f"from {settled(np.nanmin(array)):.2f} to {settled(np.nanmax(array)):.2f}")
        return ", ".join([*said, f"the largest {say_largest(array, rows, columns)}"])
    sums = np.nansum(array, axis=-1)
    yes_or_no = np.isin(array, (0, 1)).all() and not np.allclose(sums, 1)
    said.append(say_ones(sums) if yes_or_no else say_sums(sums))
    above = np.triu(np.nan_to_num(array), 1).sum() / (np.nansum(array) or 1)
    if R == S and above:
        said.append(f"{settled(100 * above):.2f} % lies above the diagonal")
    elif R == S:
        said.append("nothing lies above the diagonal")
    if yes_or_no:
        return ", ".join(said)
    if R == S > 1 and not above:  # row 0 has no choice
        rest = np.concatenate([np.full_like(array[..., :1, :], np.nan), array[..., 1:, :]], axis=-2)
        return ", ".join([*said, f"the largest below row 0 {say_largest(rest, rows, columns)}"])
    return ", ".join([*said, f"the largest {say_largest(array, rows, columns)}"])


def say_largest(array, rows, columns):
    """Say what the largest number of a matrix, or a stack of them, is and where."""
    filled = np.where(np.isnan(array), -np.inf, settled(array))
    *_, row, column = np.unravel_index(filled.argmax(), filled.shape)
    return f"is {filled.max():.2f} in row {at(rows, row)}, column {at(columns, column)}"


def say_sums(sums):
    """Say what the rows of a matrix sum to."""
    if np.allclose(sums, 1, atol=1e-3):
        return "each row sums to 1"
    return f"rows sum to between {settled(sums.min()):.2f} and {settled(sums.max()):.2f}"


def say_ones(counts):
    """Say how many ones the rows of a matrix of 0 and 1 have, such as a mask."""
    few, many = f"{counts.min():.0f}", f"{counts.max():.0f}"
    return f"each 0 or 1, {few if few == many else f'{few} to {many}'} ones in a row"


def say_habits(weights):
    """Say how much weight a head puts, on average, on three places that heads often like."""
    here, before, first = np.trace(weights), np.trace(weights, -1), weights[:, 0].sum()
    T = len(weights)
    here, before, first = settled([here / T, before / max(T - 1, 1), first / T])
    return f"on itself {here:.2f}, on the token before {before:.2f}, on the first {first:.2f}"


def list_matrix(array):
    """List a small matrix in full, and of a large one the mean of each column."""
    if array.size <= LISTED:
        return "\n".join(
            " ".join("   --" if np.isnan(v) else f"{settled(v):5.2f}" for v in row) for row in array
        )
    means = np.nanmean(np.where(np.isnan(array).all(axis=0), 0, array), axis=0)
    return "column means: " + " ".join(f"{settled(mean):.2f}" for mean in means[:LISTED])


def at(names, number):
    """Name a row or column: its number, and its token where it has one."""
    return f"{number}" if names is None else f"{number} ({visible(names[number])})"


def visible(token):
    """Make a token readable as a label: no space before a word, a sign for a line end."""
    return VISIBLE.get(token, token.strip() or token)


def settled(value):
    """Round to two decimals, the same way on every machine.

    The last bits of a number differ between machines, and would send 0.125 up here and down there;
    a small push sends such halves up everywhere.
    """
    return np.round(np.asarray(value) + 1e-5, 2) + 0.0


def short(value):
    """Write a whole number as it is, and any other with two significant digits."""
    value = float(value) * (1 if float(value).is_integer() else 1 + 1e-5)
    if value.is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    if not 1e-4 < abs(value) < 1e6:
        return f"{value:.1e}"
    return np.format_float_positional(value, precision=2, fractional=False, trim="-")
