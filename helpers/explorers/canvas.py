"""A picture in which only what changes is drawn again.

Frames and the names of axes are drawn once and kept. What a setting changes is drawn onto a copy of
them: cells, bars and lines by matplotlib, and letters by Pillow, which writes ten of them in the
time in which matplotlib writes one. So a step takes a fraction of the time of a new figure.
"""

import io

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.patches import Rectangle
from PIL import Image, ImageDraw, ImageFont

from helpers import expect, plots

FRAME = plots.LINES[1][0]  # around what is looked at now
PIXELS = plots.DPI / 72  # in a point
LETTERS, TITLES = (
    ImageFont.truetype(findfont("DejaVu Sans"), round(points * PIXELS))
    for points in (plots.CELL, plots.TITLE)
)
LEFT, BETWEEN, RIGHT, TOP, BOTTOM = 0.65, 0.3, 0.2, 0.35, 0.5  # margins in inches
LINE = 2 * PIXELS  # of a frame
GAP = round(4 * PIXELS)  # between a frame and its labels


class Canvas:
    """A figure with panels, each drawn anew without the rest.

    `rows` lists the rows of panels from top to bottom, each as (height, {name: (panel, width)}),
    in inches.
    """

    def __init__(self, rows):
        widths = [sum(panel.margin + wide for panel, wide in row.values()) for _, row in rows]
        below = [max(panel.below for panel, _ in row.values()) for _, row in rows]
        width, height = max(widths) + RIGHT, sum(TOP + high for high, _ in rows) + sum(below)
        self.figure = Figure(figsize=(width, height), dpi=plots.DPI)
        self.agg = FigureCanvasAgg(self.figure)
        self.panels = {}
        bottom = height
        for (high, row), under in zip(rows, below, strict=True):
            left, bottom = 0, bottom - TOP - high
            for name, (panel, wide) in row.items():
                left += panel.margin
                place = left / width, bottom / height, wide / width, high / height
                panel.stand(self.figure.add_axes(place))
                self.panels[name] = panel
                left += wide
            bottom -= under
        self.agg.draw()
        self.background = self.agg.copy_from_bbox(self.figure.bbox)

    @property
    def size(self):
        """Width and height on a page, in its pixels."""
        return tuple(round(96 * inches) for inches in self.figure.get_size_inches())

    def draw(self, contents):
        """Draw {name: what this panel shows}, with a "title" where it is not the name."""
        self.agg.restore_region(self.background)
        for name, content in contents.items():
            panel = self.panels[name]
            panel.show(**{part: given for part, given in content.items() if part != "title"})
            for artist in panel.moving:
                panel.ax.draw_artist(artist)
        self.image = Image.fromarray(np.asarray(self.agg.buffer_rgba())).convert("RGB")
        for name, content in contents.items():
            panel = self.panels[name]
            pen = Pen(self.image, panel.ax)
            pen.write(0.5, 0, content.get("title", name), "ms", shift=(0, -1.5 * GAP), font=TITLES)
            panel.write(pen)

    def png(self):
        """Return what was drawn last as the bytes of a PNG, quickly rather than small."""
        file = io.BytesIO()
        self.image.save(file, format="png", compress_level=1)
        return file.getvalue()

    def numbers(self):
        """List the numbers in every panel, for the text form of the picture."""
        return "\n".join(f"{name}\n{panel.numbers()}" for name, panel in self.panels.items())


class Pen:
    """Writes onto an image, at places in shares of a panel: (0, 0) is its upper left corner."""

    def __init__(self, image, ax):
        self.image = image
        self.draw = ImageDraw.Draw(image)
        left, bottom, self.width, self.height = ax.bbox.bounds
        self.left, self.top = left, image.height - bottom - self.height

    def write(self, x, y, text, anchor, shift=(0, 0), colour=plots.INK, font=LETTERS):
        """Write a text; the anchor is one of Pillow's, the shift in pixels."""
        place = self.left + x * self.width + shift[0], self.top + y * self.height + shift[1]
        self.draw.text(place, text, colour, font, anchor)

    def write_upright(self, x, text):
        """Write a text below the panel, from bottom to top."""
        size = round(LETTERS.getlength(text)), round(1.3 * LETTERS.size)
        strip = Image.new("L", size)
        ImageDraw.Draw(strip).text((0, size[1] / 2), text, 255, LETTERS, "lm")
        strip = strip.rotate(90, expand=True)
        place = self.left + x * self.width - size[1] / 2, self.top + self.height + GAP
        self.image.paste(plots.INK, tuple(map(round, place)), strip)


class Panel:
    """One picture of a canvas. `moving` holds the artists that are drawn anew, in order.

    A panel without a ylabel has the rows of its neighbour on the left, and does not number them.
    `margin` and `below` are the room for labels on the left and below, in inches.
    """

    def __init__(self, xlabel="", ylabel=None, margin=None, below=BOTTOM):
        self.xlabel, self.ylabel, self.below = xlabel, ylabel, below
        self.margin = margin or (BETWEEN if ylabel is None else LEFT)

    def stand(self, ax):
        """Take a place in a figure, and make the artists."""
        self.ax = ax
        plots.style(ax, "", self.xlabel, self.ylabel or "")
        ax.set(xticks=[], yticks=[])
        ax.xaxis.labelpad = ax.yaxis.labelpad = 16  # room for the labels of columns and rows
        self.moving = self.make()
        for artist in self.moving:
            artist.set_animated(True)

    def write_columns(self, pen, count, names=None, upright=False):
        """Label the columns: each by its name, or as many by number as there is room for."""
        for place, text in labels(count, names, pen.width):
            x = (place + 0.5) / count
            if upright:
                pen.write_upright(x, text)
            else:
                pen.write(x, 1, text, "mt", shift=(0, GAP))

    def write_rows(self, pen, count, names=None):
        """Label the rows, unless the neighbour on the left has done so."""
        if self.ylabel is not None:
            for place, text in labels(count, names, pen.height):
                pen.write(0, (place + 0.5) / count, text, "rm", shift=(-GAP, 0))


class Cells(Panel):
    """A matrix, its row 0 on top: weights from 0 to vmax, or signed numbers around 0.

    Cells with NaN or -inf are hidden. A number stands in each cell where there is room. `upright`
    turns the labels of columns, for words.
    """

    def __init__(self, signed=False, vmax=1.0, upright=False, **labels):
        super().__init__(**labels)
        self.signed, self.vmax, self.upright = signed, vmax, upright

    def make(self):
        whole = {"xy": (0, 0), "width": 1, "height": 1, "transform": self.ax.transAxes}
        empty = {"facecolor": plots.HIDDEN, "edgecolor": plots.QUIET, "hatch": "////"}
        self.ax.add_patch(Rectangle(**whole, **empty, linewidth=0, zorder=-1))
        cmap, norm = plots.colours(self.signed, self.vmax)
        self.image = self.ax.imshow([[np.nan]], cmap=cmap, norm=norm, aspect="auto")
        self.frame = self.ax.add_patch(Rectangle((0, 0), 0, 0, fill=False, edgecolor=FRAME, lw=2))
        return [self.image, self.frame]

    def show(self, matrix, *, frame=None, rows=None, columns=None):
        """Show a matrix (R, S); `frame` is (row, column, how many rows, how many columns)."""
        array = plots.as_array(matrix)
        expect.matrix(array)
        self.array = np.where(np.isfinite(array), array, np.nan)
        self.rows, self.columns = rows, columns
        R, S = array.shape
        self.image.set_data(self.array)
        self.image.set_extent((-0.5, S - 0.5, R - 0.5, -0.5))
        row, column, high, wide = frame or (0, 0, 0, 0)
        pixels = self.ax.bbox.height / R, self.ax.bbox.width / S  # of a cell
        thin = min(high * pixels[0], wide * pixels[1]) < 4 * LINE  # the line would hide it
        self.frame.set_clip_on(not thin)
        over, aside = (LINE / 2 / size if thin else 0 for size in pixels)
        self.frame.set_xy((column - 0.5 - aside, row - 0.5 - over))
        self.frame.set(width=wide + 2 * aside, height=high + 2 * over, visible=bool(frame))

    def write(self, pen):
        R, S = self.array.shape
        self.write_columns(pen, S, self.columns, self.upright)
        self.write_rows(pen, R, self.rows)
        high, wide = pen.height / R, pen.width / S  # of a cell, in pixels
        if high < LETTERS.size + 1 or wide < 2 * LETTERS.size:
            return
        places = np.argwhere(np.isfinite(self.array))
        values = self.array[tuple(places.T)]
        exact = 0 if (values == values.round()).all() else 2
        texts = [f"{value:.{exact}f}" for value in plots.settled(values)]
        if longest(texts) > wide - 5 and self.signed:
            texts = [f"{value:.1f}" for value in values.round(1) + 0.0]  # no -0.0
        if longest(texts) > wide - 5:
            return
        dark = plots.is_dark(self.image.to_rgba(values))
        for (row, column), text, white in zip(places, texts, dark, strict=True):
            colour = "white" if white else "black"
            pen.write((column + 0.5) / S, (row + 0.5) / R, text, "mm", colour=colour)

    def numbers(self):
        return plots.list_matrix(self.array)


class Bars(Panel):
    """Bars from the left, one for each row; a mark may show how far each could go."""

    def make(self):
        self.bars = self.ax.add_collection(PolyCollection([], facecolor=plots.LINES[0][0]))
        self.marks = self.ax.add_collection(LineCollection([], color=FRAME, linewidth=2))
        return [self.bars, self.marks]

    def show(self, lengths, *, xmax, marks=(), rows=None):
        """Show lengths (R,) on an axis from 0 to xmax, with marks (R,) or none."""
        self.lengths, self.xmax, self.rows = plots.as_array(lengths), xmax, rows
        bars = [
            [(0, y - 0.4), (x, y - 0.4), (x, y + 0.4), (0, y + 0.4)]
            for y, x in enumerate(self.lengths)
        ]
        self.bars.set_verts(bars)
        marks = enumerate(plots.as_array(marks))
        self.marks.set_segments([[(x, y - 0.5), (x, y + 0.5)] for y, x in marks])
        self.ax.set(xlim=(0, xmax), ylim=(len(self.lengths) - 0.5, -0.5))

    def write(self, pen):
        self.write_rows(pen, len(self.lengths), self.rows)
        for share in (0, 0.5, 1):
            pen.write(share, 1, f"{share * self.xmax:g}", "mt", shift=(0, GAP))

    def numbers(self):
        return plots.list_matrix(self.lengths[None])


class Curve(Panel):
    """A line over 0, 1, 2, ..., with a band around it from the least to the largest."""

    def __init__(self, ylim, **labels):
        super().__init__(**labels)
        self.ylim = ylim

    def make(self):
        colour, marker, dash = plots.LINES[0]
        low, high = self.ylim
        room = 0.03 * (high - low)  # for whole markers
        self.ax.set(ylim=(low - room, high + room), yticks=[low, (low + high) / 2, high])
        self.ax.grid(axis="y", color=plots.HIDDEN)
        self.ax.yaxis.labelpad = 0
        self.band = self.ax.add_collection(PolyCollection([], facecolor=colour, alpha=0.25))
        (self.line,) = self.ax.plot([], [], color=colour, marker=marker, markersize=3, ls=dash)
        return [self.band, self.line]

    def show(self, y, *, least, largest):
        """Show y (N,), and the band between least (N,) and largest (N,)."""
        y, least, largest = map(plots.as_array, [y, least, largest])
        x = np.arange(len(y))
        self.line.set_data(x, y)
        there, back = np.column_stack([x, largest]), np.column_stack([x, least])[::-1]
        self.band.set_verts([np.concatenate([there, back])])
        self.ax.set_xlim(-0.5, len(x) - 0.5)

    def write(self, pen):
        self.write_columns(pen, len(self.line.get_ydata()))

    def numbers(self):
        return plots.list_matrix(self.line.get_ydata()[None])


def longest(texts):
    """Measure the longest of some texts, in pixels."""
    return max(map(LETTERS.getlength, texts), default=0)


def labels(count, names, pixels):
    """Choose the positions from 0 to count - 1 that are labelled; returns (position, text) each."""
    room = 8
    if names is not None:
        expect.labels(names, count)
        room = pixels // (1.15 * LETTERS.size)
    step = next(step for step in (1, 2, 4, 8, 16) if count <= room * step)
    places = range(0, count, step)
    return [(at, f"{at}" if names is None else plots.visible(names[at])) for at in places]
