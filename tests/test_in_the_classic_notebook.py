"""With Colab's versions an explorer follows values, and keys in the classic notebook.

Colab shows ipywidgets 7 in a page of its own, which only Colab has; the classic notebook is the
other page for them. The moves are those that JupyterLab is put to.
"""

import html
import importlib
import sys
from types import SimpleNamespace

import ipywidgets
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from browser import TOKEN, chromium, copy_course, served
from test_in_the_browser import MOVES

from helpers.explorers.canvas import Canvas, Cells

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not ipywidgets.__version__.startswith("7."),
        reason="needs an environment with tests/requirements-colab.txt",
    ),
]
each_stem = pytest.mark.parametrize("stem", MOVES)
each_notebook = pytest.mark.parametrize("notebook", MOVES, indirect=True)
last_notebook = pytest.mark.parametrize("notebook", ["06_transformer"], indirect=True)


def module_of(stem):
    return importlib.import_module(f"helpers.explorers.{stem[3:]}")


@each_stem
def test_picture_and_text_follow_the_value_of_every_control(stem):
    explorer = module_of(stem).explore()
    for name, _, value in MOVES[stem]:
        before = explorer.picture.value
        explorer.controls[name].value = value
        sentence = html.escape(module_of(stem).look(**explorer.settings).sentence)
        assert f'alt="{sentence}"' in explorer.picture.value
        assert explorer.said.value == f'<p role="status">{sentence}</p>'
        assert explorer.picture.value != before, name
    assert plt.get_fignums() == []


def test_a_hidden_cell_does_not_look_like_a_zero():
    cells = Cells(signed=True)
    canvas = Canvas([(1.0, {"cells": (cells, 2.0)})])
    canvas.draw({"cells": {"matrix": np.array([[np.nan, 0.0]])}})
    picture = np.asarray(canvas.agg.buffer_rgba())
    left, bottom, width, height = map(round, cells.ax.bbox.bounds)
    top = picture[-bottom - height :, left:][5:15]  # between the frame and the numbers
    parts = top[:, 5 : width // 2 - 5], top[:, width // 2 + 5 : width - 5]
    hidden, zero = (len(np.unique(part.reshape(-1, 4), axis=0)) for part in parts)
    assert zero == 1
    assert hidden > 1  # colours, those of the hatching


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A copy of the course whose notebooks have kept only their setup and their explorer."""
    course = copy_course(tmp_path_factory.mktemp("course"))
    for stem in MOVES:
        path = course / "notebooks" / f"{stem}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        setup, *others = [cell for cell in notebook.cells if cell.cell_type == "code"]
        notebook.cells = [setup, *(cell for cell in others if "explore()" in cell.source)]
        assert len(notebook.cells) == 2
        nbformat.write(notebook, path)
    return course


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def classic(browser, course, tmp_path_factory):
    """The address of a classic notebook. It starts after the browser."""
    command = [sys.executable, "-m", "notebook", f"--notebook-dir={course}"]
    with served(command, tmp_path_factory.mktemp("jupyter")) as address:
        yield address


@pytest.fixture(scope="module")
def notebook(request, browser, classic):
    """A notebook that was run, on its page."""
    stem = request.param
    page, complaints = browser.new_page(viewport={"width": 1400, "height": 1000}), []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    url = f"{classic}/notebooks/notebooks/{stem}.ipynb?token={TOKEN}"
    # the page looks for widgets in the kernel first, and loses those that a cell makes meanwhile
    asked = "fallback to fetching"
    with page.expect_console_message(lambda said: asked in said.text, timeout=60_000):
        page.goto(url, wait_until="domcontentloaded")
    page.wait_for_function("() => Jupyter.notebook._fully_loaded")
    page.evaluate(
        """() => new Promise(done => {
            Jupyter.notebook.kernel.comm_info('jupyter.widget', () => done());
        })"""
    )
    page.evaluate("() => { Jupyter.notebook.execute_all_cells() }")
    cell = page.locator(".code_cell", has=page.locator(".widget-hslider"))
    cell.wait_for(timeout=60_000)
    place = cell.locator(".widget-vbox > .widget-html")
    yield SimpleNamespace(
        page=page,
        complaints=complaints,
        cell=cell,
        place=place,
        picture=place.locator("img"),
        said=cell.locator(".output_area").nth(1),
        module=module_of(stem),
        moves=MOVES[stem],
    )
    page.evaluate("() => { Jupyter.notebook.session.delete() }")
    page.close()


@pytest.fixture
def explorer(notebook):
    """The explorer of a notebook as it starts, with its settings."""
    press(notebook, "Reset", "Enter")
    notebook.settings = notebook.module.explore().settings
    check(notebook)
    return notebook


def press(explorer, name, key):
    """Go to a control, and press a key; into a field for text, enter a text in place of its own."""
    label = explorer.page.get_by_text(name, exact=True)
    row = explorer.cell.locator(".widget-inline-hbox", has=label)
    control = row.locator(".ui-slider-handle, input")
    control.or_(explorer.cell.get_by_role("button", name=name, exact=True)).focus()
    keyboard = explorer.page.keyboard
    if name == "prompt":
        keyboard.press("ControlOrMeta+A")
        keyboard.type(key)
        key = "Enter"
    keyboard.press(key)


def check(explorer):
    """Wait for the text form and the sentence of its settings, and compare the picture."""
    from playwright.sync_api import expect

    sentence = explorer.module.look(**explorer.settings).sentence
    expect(explorer.picture).to_have_attribute("alt", sentence, timeout=20_000)
    expect(explorer.said.get_by_role("status")).to_have_text(sentence)
    fresh = explorer.module.explore()
    fresh.set(**explorer.settings)
    same = shown(explorer) in fresh.picture.value
    assert same, explorer.settings


def shown(explorer):
    """Return the picture on the page, as the text in its src."""
    return explorer.picture.get_attribute("src")


@each_notebook
def test_every_control_moves_picture_and_text(explorer):
    assert {name for name, *_ in explorer.moves} == set(explorer.settings)
    for name, key, value in explorer.moves:
        picture, sentence = shown(explorer), explorer.said.text_content()
        press(explorer, name, key)
        explorer.settings[name] = value
        check(explorer)
        changed = shown(explorer) != picture
        assert changed, name
        assert explorer.said.text_content() != sentence, name


@each_notebook
@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_reset_restores_the_start(explorer, key):
    start = explorer.settings
    explorer.settings = {name: value for name, _, value in explorer.moves}
    for name, pressed, _ in explorer.moves:
        press(explorer, name, pressed)
    check(explorer)
    press(explorer, "Reset", key)
    explorer.settings = start
    check(explorer)


@each_notebook
def test_the_page_reports_no_error(notebook):
    assert notebook.complaints == []


@last_notebook
def test_a_word_the_model_lacks_is_named_where_the_picture_was(explorer):
    from playwright.sync_api import expect

    with pytest.raises(ValueError, match="The model does not know 'dragon'") as problem:
        explorer.module.look(**{**explorer.settings, "prompt": "One dragon"})
    press(explorer, "prompt", "One dragon")
    expect(explorer.place).to_have_text(str(problem.value))
    expect(explorer.picture).to_have_count(0)
    expect(explorer.said).to_have_text("")

    press(explorer, "prompt", "One rainy")
    explorer.settings["prompt"] = "One rainy"
    check(explorer)
    assert explorer.complaints == []
