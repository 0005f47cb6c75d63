"""Controls above a picture that follows them."""

import base64
import html
from dataclasses import dataclass

import ipywidgets as widgets
from IPython.display import display

from helpers import plots

WIDGET = "application/vnd.jupyter.widget-view+json"
WHOLE_NAME = {"description_width": "initial"}


@dataclass
class Seen:
    """What is seen at some settings: a sentence, and what each panel of the picture shows."""

    sentence: str
    panels: dict


class Explorer:
    """Controls, a picture that follows them, and a sentence that says what it shows.

    `look` turns settings into what is Seen; where they are impossible it raises ValueError with a
    sentence for the reader, which then stands in the picture's place. `canvas` draws what is seen.
    `controls` are ipywidgets, by the name of their setting. An explorer displays as live widgets,
    and where no kernel runs as a picture and a text. Works with ipywidgets 7.7 and 8.
    """

    def __init__(self, look, canvas, controls):
        self.look, self.canvas, self.controls = look, canvas, controls
        self.start = self.settings
        self.shown = None
        self.held = False
        self.picture, self.said = widgets.HTML(), widgets.HTML()
        reset = widgets.Button(description="Reset")
        reset.on_click(lambda button: self.set(**self.start))
        wrap = widgets.Layout(display="flex", flex_flow="row wrap")
        self.view = widgets.VBox(
            [widgets.Box([*controls.values(), reset], layout=wrap), self.picture]
        )
        for control in controls.values():
            control.observe(lambda change: self.redraw(), "value")
        self.redraw()

    @property
    def settings(self):
        """The value of every control, by name."""
        return {name: control.value for name, control in self.controls.items()}

    def set(self, **settings):
        """Move several controls, in the order in which they stand, and draw once."""
        self.held = True
        try:
            for name in [name for name in self.controls if name in settings]:
                self.controls[name].value = settings[name]
        finally:
            self.held = False
        self.redraw()

    def redraw(self):
        """Show what is seen at the settings as they are now, unless it is shown already."""
        if self.held or self.settings == self.shown:
            return
        self.shown = self.settings
        width, height = self.canvas.size
        try:
            seen = self.look(**self.shown)
        except ValueError as problem:
            self.sentence, self.numbers = str(problem), ""
            place = f"width:{width}px; max-width:100%; height:{height}px"
            self.picture.value = f'<div style="{place}">{self.paragraph()}</div>'
            self.said.value = ""
        else:
            self.canvas.draw(seen.panels)
            self.sentence, self.numbers = seen.sentence, self.canvas.numbers()
            self.picture.value = (
                f'<img width="{width}" height="{height}" alt="{html.escape(self.sentence)}" '
                f'src="data:image/png;base64,{as_text(self.canvas.png())}">'
            )
            self.said.value = self.paragraph()

    def paragraph(self):
        """Give the sentence the form in which screen readers speak it when it changes."""
        return f'<p role="status">{html.escape(self.sentence)}</p>'

    def __repr__(self):
        settings = ", ".join(f"{name} = {value!r}" for name, value in self.shown.items())
        return f"{self.sentence}\n{settings}\n{self.numbers}".rstrip()

    def _ipython_display_(self):
        width, height = self.canvas.size
        picture = {
            "text/plain": repr(self),
            "image/png": as_text(plots.small_png(self.canvas.image)),
            WIDGET: view_of(self.view),
        }
        said = {
            "text/plain": self.sentence,
            "text/html": self.paragraph(),
            WIDGET: view_of(self.said),
        }
        alt = {"alt": self.sentence, "width": width, "height": height}
        display(picture, raw=True, metadata={"image/png": alt})
        display(said, raw=True)


def as_text(png):
    """Write the bytes of a picture as letters."""
    return base64.b64encode(png).decode("ascii")


def view_of(widget):
    """Ask a front end to show a widget."""
    return {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}


def slider(name, low, high, value, step=1):
    """A slider for whole numbers, or for fractions where the step is one."""
    kind = widgets.IntSlider if isinstance(step, int) else widgets.FloatSlider
    return kind(value=value, min=low, max=high, step=step, description=name, style=WHOLE_NAME)


def choice(name, options, value):
    """A slider along a few values."""
    return widgets.SelectionSlider(options=options, value=value, description=name, style=WHOLE_NAME)


def switch(name, value):
    """A box to tick."""
    return widgets.Checkbox(value=value, description=name, indent=False)


def keep_below(index, size):
    """Let one slider go from 0 to the value of another, less one."""

    def follow(change):
        index.max = size.value - 1

    size.observe(follow, "value")


def span(first, last):
    """Name the positions from first to last."""
    return f"position {first}" if first == last else f"positions {first} to {last}"
