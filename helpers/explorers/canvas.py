"""A picture in which only what changes is drawn again.

The background (frames, names, empty cells) is drawn once and kept. What a setting changes is drawn
onto a copy of it, and the result is one PNG. Nothing else moves, and it takes a fraction of the
time of a new figure.
"""

import io

import numpy as np
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.patches import Rectangle
from PIL import Image, ImageDraw, ImageFont

from helpers import expect, plots

FRAME = plots.LINES[1][0]  # around what is looked at now
FONT = ImageFont.truetype(findfont("DejaVu Sans"), round(plots.CELL * plots.DPI / 72))
LEFT, BETWEEN, RIGHT, TOP, BOTTOM = 0.65, 0.3, 0.2, 0.35, 0.5  # margins in inches


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
                panel.stand(self.figure.add_axes(place), name)
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
            panel.ax.title.set_text(content.get("title", name))
            panel.show(**{part: given for part, given in content.items() if part != "title"})
            for artist in panel.moving:
                panel.ax.draw_artist(artist)

    def png(self, compress_level=1):
        """Return what was drawn last as the bytes of a PNG."""
        file = io.BytesIO()
        drawn = Image.fromarray(np.asarray(self.agg.buffer_rgba())).convert("RGB")
        drawn.save(file, format="png", compress_level=compress_level)
        return file.getvalue()

    def numbers(self):
        """List the numbers in every panel, for the text form of the picture."""
        return "\n".join(f"{name}\n{panel.numbers()}" for name, panel in self.panels.items())


class Panel:
    """One picture of a canvas. `moving` holds the artists that are drawn anew, in order.

    A panel without a ylabel has the rows of its neighbour on the left, and does not number them.
    `margin` and `below` are the room for labels on the left and below, in inches.
    """

    def __init__(self, xlabel="", ylabel=None, margin=None, below=BOTTOM):
        self.xlabel, self.ylabel, self.below = xlabel, ylabel, below
        self.margin = margin or (BETWEEN if ylabel is None else LEFT)

    def stand(self, ax, name):
        """Take a place in a figure, and make the artists."""
        self.ax = ax
        plots.style(ax, name, self.xlabel, self.ylabel or "")
        ax.tick_params(length=0, labelleft=self.ylabel is not None)
        axes = [ax.xaxis] if self.ylabel is None else [ax.xaxis, ax.yaxis]
        self.moving = [*axes, *self.make(), ax.title]
        for artist in self.moving:
            artist.set_animated(True)


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
        self.image = self.ax.imshow([[0.0]], cmap=cmap, norm=norm, aspect="auto")
        self.written = self.ax.add_artist(Written(self.image))
        self.frame = self.ax.add_patch(Rectangle((0, 0), 0, 0, fill=False, edgecolor=FRAME, lw=2))
        if self.upright:
            self.ax.tick_params(axis="x", rotation=90)
        return [self.image, self.written, self.frame]

    def show(self, matrix, *, frame=None, rows=None, columns=None):
        """Show a matrix (R, S); `frame` is (row, column, how many rows, how many columns)."""
        array = plots.as_array(matrix)
        expect.matrix(array)
        R, S = array.shape
        self.image.set_data(np.where(np.isfinite(array), array, np.nan))
        self.image.set_extent((-0.5, S - 0.5, R - 0.5, -0.5))
        row, column, high, wide = frame or (0, 0, 0, 0)
        self.frame.set(xy=(column - 0.5, row - 0.5), width=wide, height=high, visible=bool(frame))
        label(self.ax.xaxis, S, columns)
        label(self.ax.yaxis, R, rows)

    def numbers(self):
        return plots.list_matrix(np.ma.filled(self.image.get_array(), np.nan))


class Bars(Panel):
    """Bars from the left, one for each row; a mark may show how far each could go."""

    def make(self):
        self.bars = self.ax.add_collection(PolyCollection([], facecolor=plots.LINES[0][0]))
        self.marks = self.ax.add_collection(LineCollection([], color=FRAME, linewidth=2))
        return [self.bars, self.marks]

    def show(self, lengths, *, xmax, marks=(), rows=None):
        """Show lengths (R,) on an axis from 0 to xmax, with marks (R,) or none."""
        self.lengths = plots.as_array(lengths)
        bars = [
            [(0, y - 0.4), (x, y - 0.4), (x, y + 0.4), (0, y + 0.4)]
            for y, x in enumerate(self.lengths)
        ]
        self.bars.set_verts(bars)
        marks = enumerate(plots.as_array(marks))
        self.marks.set_segments([[(x, y - 0.5), (x, y + 0.5)] for y, x in marks])
        self.ax.set(xlim=(0, xmax), ylim=(len(self.lengths) - 0.5, -0.5))
        label(self.ax.yaxis, len(self.lengths), rows)

    def numbers(self):
        return plots.list_matrix(self.lengths[None])


class Curve(Panel):
    """A line over 0, 1, 2, ..., with a band around it from the least to the largest."""

    def __init__(self, ylim, **labels):
        super().__init__(**labels)
        self.ylim = ylim

    def make(self):
        colour, marker, dash = plots.LINES[0]
        self.ax.set_ylim(*self.ylim)
        self.ax.grid(color=plots.HIDDEN)
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
        label(self.ax.xaxis, len(x))

    def numbers(self):
        return plots.list_matrix(self.line.get_ydata()[None])


class Written(Artist):
    """The numbers in the cells of an image, where there is room for them.

    Pillow writes ten of them in the time in which matplotlib writes one.
    """

    def __init__(self, image):
        super().__init__()
        self.image = image

    def draw(self, renderer):
        array = np.ma.filled(self.image.get_array(), np.nan)
        R, S = array.shape
        left, bottom, width, height = map(round, self.axes.bbox.bounds)
        wide, high = width / S, height / R  # of a cell, in pixels
        if high < FONT.size + 1 or wide < FONT.size:
            return
        places = np.argwhere(np.isfinite(array))
        values = array[tuple(places.T)]
        decimals = 0 if (values == values.round()).all() else 2
        texts = [f"{value:.{decimals}f}" for value in plots.settled(values)]
        if max(map(FONT.getlength, texts), default=0) > wide - 5:
            return
        dark = plots.is_dark(self.image.to_rgba(values))
        layer = Image.new("RGBA", (width, height))
        write = ImageDraw.Draw(layer).text
        for (row, column), text, white in zip(places, texts, dark, strict=True):
            place = (column + 0.5) * wide, (row + 0.5) * high
            write(place, text, "white" if white else plots.INK, FONT, anchor="mm")
        renderer.draw_image(renderer.new_gc(), left, bottom, np.asarray(layer)[::-1])


def label(axis, count, names=None):
    """Label the positions 0 to count - 1, as many as there is room for, by name or number."""
    room = 8
    if names is not None:
        expect.labels(names, count)
        box = axis.axes.bbox
        room = (box.width if axis.axis_name == "x" else box.height) // (1.1 * FONT.size)
    places = range(0, count, next(step for step in (1, 2, 4, 8, 16) if count <= room * step))
    shown = [f"{place}" if names is None else plots.visible(names[place]) for place in places]
    axis.set_ticks(places, shown, parse_math=False)
