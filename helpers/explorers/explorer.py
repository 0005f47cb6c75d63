"""Controls above a picture that follows them."""

import base64
import html
import threading
from dataclasses import dataclass

import ipywidgets as widgets
from IPython.display import display

from helpers import plots

WIDGET = "application/vnd.jupyter.widget-view+json"


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
        self.lock = threading.RLock()  # JupyterLab calls back from more than one thread
        self.picture = widgets.HTML()
        self.said = widgets.HTML(layout=widgets.Layout(min_height="4em"))  # so nothing below jumps
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
        """The value of every control, by name, without what a slider's steps add by rounding."""
        values = {name: control.value for name, control in self.controls.items()}
        return {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in values.items()
        }

    def set(self, **settings):
        """Move several controls, in the order in which they stand, and draw once.

        Raises ValueError for a control that there is not.
        """
        unknown = settings.keys() - self.controls.keys()
        if unknown:
            raise ValueError(
                f"there is no control {sorted(unknown)}; there are {', '.join(self.controls)}"
            )
        with self.lock:
            self.held = True
            try:
                for name in [name for name in self.controls if name in settings]:
                    self.controls[name].value = settings[name]
            finally:
                self.held = False
                self.redraw()

    def redraw(self):
        """Show what is seen at the settings as they are now, unless it is shown already."""
        with self.lock:
            if self.held or self.settings == self.shown:
                return
            self.shown = self.settings
            try:
                self.show(self.look(**self.shown))
            except ValueError as problem:
                self.refuse(str(problem))

    def show(self, seen):
        """Draw what is seen, and say it."""
        self.canvas.draw(seen.panels)
        self.sentence, self.numbers = seen.sentence, self.canvas.numbers()
        source = f"data:image/png;base64,{as_text(self.canvas.png())}"
        self.picture.value = (
            f'<img style="{self.place()}" alt="{html.escape(self.sentence)}" src="{source}">'
        )
        self.said.value = self.paragraph()

    def refuse(self, sentence):
        """Put a sentence into the picture's place."""
        self.sentence, self.numbers = sentence, ""
        self.picture.value = f'<div style="{self.place()}">{self.paragraph()}</div>'
        self.said.value = ""

    def place(self):
        """The style of what stands in the picture's place: of one size, where there is room."""
        width, height = self.canvas.size
        size = f"width:{width}px; max-width:100%; height:auto; aspect-ratio:{width}/{height}"
        return f"display:flow-root; {size}"

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
    return kind(value=value, min=low, max=high, step=step, **named(name))


def choice(name, options, value):
    """A slider along a few values."""
    straight = widgets.Layout(margin="2px")  # in line with other sliders
    return widgets.SelectionSlider(options=options, value=value, layout=straight, **named(name))


def switch(name, value):
    """A box to tick."""
    narrow = widgets.Layout(width="auto", margin="2px 2em 2px 1em")
    return widgets.Checkbox(value=value, indent=False, layout=narrow, **named(name))


def field(name, value):
    """A line to write into; Enter tells that it is finished."""
    wide = widgets.Layout(width="98%")
    return widgets.Text(value=value, continuous_update=False, layout=wide, **named(name))


def named(name):
    """Give a control its name, whole; without a tooltip of its own, ipywidgets 8 shows `null`."""
    tooltip = {"tooltip": name} if "tooltip" in widgets.IntSlider.class_trait_names() else {}
    return {"description": name, "style": {"description_width": "initial"}, **tooltip}


def keep_below(index, size):
    """Let one slider go from 0 to the value of another, less one."""

    def follow(change):
        index.max = size.value - 1

    size.observe(follow, "value")


def span(first, last):
    """Name the positions from first to last."""
    return f"position {first}" if first == last else f"positions {first} to {last}"
