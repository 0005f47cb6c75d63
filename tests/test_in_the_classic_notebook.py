"""With Colab's versions an explorer follows values, and keys in the classic notebook.

Colab shows ipywidgets 7 in a page of its own, which only Colab has; the classic notebook is the
other page for them. The moves are those that JupyterLab is put to.
"""

import html
import importlib
import sys

import ipywidgets
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from browser import MOVES, TOKEN, LiveExplorer, chromium, copy_course, served

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
    said = cell.locator(".output_area").nth(1)
    yield LiveExplorer(stem, page, complaints, cell, said, ".ui-slider-handle")
    page.evaluate("() => { Jupyter.notebook.session.delete() }")
    page.close()


@pytest.fixture
def explorer(notebook):
    """The explorer of a notebook as it starts."""
    notebook.begin()
    return notebook


@each_notebook
def test_every_control_moves_picture_and_text(explorer):
    explorer.try_every_control()


@each_notebook
@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_reset_restores_the_start(explorer, key):
    explorer.try_reset(key)


@last_notebook
def test_a_word_the_model_lacks_is_named_where_the_picture_was(explorer):
    explorer.try_an_unknown_word()


@each_notebook
def test_the_page_reports_no_error(notebook):
    assert notebook.complaints == []
