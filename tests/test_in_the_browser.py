"""In JupyterLab every notebook runs, and its explorer follows the keyboard."""

import base64
import importlib
import io
from types import SimpleNamespace

import numpy as np
import pytest
from browser import chromium, copy_course, explorer_in, jupyterlab, run_in_lab
from PIL import Image
from test_nbval_catches import nbval

pytestmark = pytest.mark.slow

# what is done one after the other: a control, a key or a text for it, and the value that it gets
MOVES = {
    "01_loop_mean": [("T", "ArrowRight", 9), ("t", "ArrowLeft", 4)],
    "02_tril_matmul": [
        ("T", "ArrowLeft", 5),
        ("row", "ArrowRight", 4),
        ("column", "ArrowRight", 1),
    ],
    "03_softmax_mask": [
        ("T", "ArrowRight", 9),
        ("spread", "ArrowRight", 1.1),
        ("temperature", "ArrowLeft", 0.9),
        ("mask", "Space", False),
    ],
    "04_positional": [
        ("T", "ArrowRight", 17),
        ("n_embd", "ArrowRight", 17),
        ("base", "ArrowLeft", 1000),
        ("scheme", "ArrowLeft", "learned"),
    ],
    "05_qkv_head": [
        ("T", "ArrowLeft", 7),
        ("head_size", "ArrowRight", 17),
        ("scale", "Space", False),
        ("mask", "Space", False),
    ],
    "06_transformer": [
        ("prompt", "He had only", "He had only"),  # the model is unsure of what follows
        ("layer", "ArrowRight", 1),
        ("head", "ArrowRight", 1),
        ("step", "ArrowLeft", 300),
        ("temperature", "ArrowRight", 1.1),
        ("top_k", "ArrowLeft", 10),
    ],
}
each_notebook = pytest.mark.parametrize("notebook", MOVES, indirect=True)
first_notebook = pytest.mark.parametrize("notebook", ["01_loop_mean"], indirect=True)
last_notebook = pytest.mark.parametrize("notebook", ["06_transformer"], indirect=True)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return copy_course(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def lab(browser, course, tmp_path_factory):
    """The address of a JupyterLab. It starts after the browser, without which it has no use."""
    with jupyterlab(course, tmp_path_factory.mktemp("jupyter")) as address:
        yield address


@pytest.fixture(scope="module")
def notebook(request, browser, lab):
    """A notebook that was run, on its page."""
    stem = request.param
    with run_in_lab(browser, lab, stem) as (page, complaints):
        cell = explorer_in(page)
        place = cell.locator(".widget-vbox > .widget-html")
        yield SimpleNamespace(
            page=page,
            complaints=complaints,
            cell=cell,
            place=place,
            picture=place.locator("img"),
            said=cell.locator(".jp-OutputArea-child").nth(1),
            module=importlib.import_module(f"helpers.explorers.{stem[3:]}"),
            moves=MOVES[stem],
        )


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
    control = explorer.cell.locator(".widget-inline-hbox", has=label).locator(".noUi-handle, input")
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
    expect(explorer.picture).to_have_attribute("alt", sentence)
    expect(explorer.said).to_have_text(sentence)
    fresh = explorer.module.explore()
    fresh.set(**explorer.settings)
    same = np.array_equal(pixels(shown(explorer)), pixels(fresh.canvas.png()))
    assert same, explorer.settings  # without the pixels in the message


def shown(explorer):
    """Return the bytes of the picture on the page."""
    return base64.b64decode(explorer.picture.get_attribute("src").partition(",")[2])


def pixels(png):
    """Return the colours of a PNG.  -> (height, width, 3)"""
    return np.asarray(Image.open(io.BytesIO(png)))


def box(explorer):
    """Return left, top, width and height of the picture, or what replaces it, in its cell."""
    return explorer.place.locator(".widget-html-content > *").evaluate(
        """picture => {
            const cell = picture.closest('.jp-OutputArea').getBoundingClientRect();
            const {left, top, width, height} = picture.getBoundingClientRect();
            return [left - cell.left, top - cell.top, width, height];
        }"""
    )


def outputs(notebook):
    """Return the outputs of every code cell, as they would be saved, with its number."""
    return notebook.page.evaluate(
        """() => jupyterapp.shell.currentWidget.content.widgets
            .filter(cell => cell.model.type === 'code')
            .map(cell => [cell.model.executionCount, cell.model.outputs.toJSON()])"""
    )


def problems(notebook):
    """Return the outputs that are errors or warnings."""
    shown = [output for _, cell in outputs(notebook) for output in cell]
    return [o for o in shown if o["output_type"] == "error" or o.get("name") == "stderr"]


@each_notebook
def test_all_cells_run_in_order_without_an_error(notebook):
    numbers = [number for number, _ in outputs(notebook)]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert problems(notebook) == []


@each_notebook
def test_every_control_moves_picture_and_text(explorer):
    assert {name for name, *_ in explorer.moves} == set(explorer.settings)
    start = box(explorer)
    for name, key, value in explorer.moves:
        picture, sentence = shown(explorer), explorer.said.text_content()
        press(explorer, name, key)
        explorer.settings[name] = value
        check(explorer)
        assert shown(explorer) != picture, name
        assert explorer.said.text_content() != sentence, name
        assert box(explorer) == start, name


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


@last_notebook
def test_a_word_the_model_lacks_is_named_where_the_picture_was(explorer):
    from playwright.sync_api import expect

    start = box(explorer)
    with pytest.raises(ValueError, match="The model does not know 'dragon'") as problem:
        explorer.module.look(**{**explorer.settings, "prompt": "One dragon"})
    press(explorer, "prompt", "One dragon")
    expect(explorer.place).to_have_text(str(problem.value))
    expect(explorer.picture).to_have_count(0)
    expect(explorer.said).to_have_text("")
    assert box(explorer) == start

    press(explorer, "prompt", "One rainy")
    explorer.settings["prompt"] = "One rainy"
    check(explorer)
    assert box(explorer) == start
    assert problems(explorer) == []


@first_notebook
def test_after_a_burst_of_key_presses_the_last_setting_is_shown(explorer):
    press(explorer, "T", "ArrowLeft")
    for key in ["ArrowLeft"] + 28 * ["ArrowRight"]:  # down to 6, and up to where no key was before
        explorer.page.keyboard.press(key)
    explorer.settings["T"] = 34
    check(explorer)


@first_notebook
def test_a_notebook_saved_after_moves_stays_green(explorer, course):
    path = course / "notebooks" / "01_loop_mean.ipynb"
    assert "widget-view" not in path.read_text(encoding="utf-8")
    press(explorer, *explorer.moves[0][:2])
    explorer.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    assert "widget-view" in path.read_text(encoding="utf-8")
    passed, said = nbval(course, [path.stem])
    assert passed, said


@each_notebook
def test_the_page_reports_no_error(notebook):
    assert notebook.complaints == []
