"""In JupyterLab every notebook runs, and its explorer follows the keyboard."""

import pytest
from browser import (
    MOVES,
    LiveExplorer,
    chromium,
    copy_course,
    explorer_in,
    jupyterlab,
    run_in_lab,
)
from test_nbval_catches import nbval

pytestmark = pytest.mark.slow

each_notebook = pytest.mark.parametrize("notebook", MOVES, indirect=True)
first_notebook = pytest.mark.parametrize("notebook", ["01_loop_mean"], indirect=True)
last_notebook = pytest.mark.parametrize("notebook", ["06_transformer"], indirect=True)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = copy_course(tmp_path_factory.mktemp("course"))
    path = folder / "notebooks" / "06_transformer.ipynb"
    text = path.read_text(encoding="utf-8")
    assert (text.count("steps=600"), text.count("steps=150")) == (1, 1)
    text = text.replace("steps=600", "steps=60").replace("steps=150", "steps=15")  # far sooner done
    path.write_text(text, encoding="utf-8")
    return folder


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
        said = cell.locator(".jp-OutputArea-child").nth(1)
        yield LiveExplorer(stem, page, complaints, cell, said, ".noUi-handle")


@pytest.fixture
def explorer(notebook):
    """The explorer of a notebook as it starts."""
    notebook.begin()
    return notebook


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
    explorer.try_every_control()


@each_notebook
@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_reset_restores_the_start(explorer, key):
    explorer.try_reset(key)


@last_notebook
def test_a_word_the_model_lacks_is_named_where_the_picture_was(explorer):
    explorer.try_an_unknown_word()
    assert problems(explorer) == []


@first_notebook
def test_after_a_burst_of_key_presses_the_last_setting_is_shown(explorer):
    explorer.press("T", "ArrowLeft")
    for key in ["ArrowLeft"] + 28 * ["ArrowRight"]:  # down to 6, and up to where no key was before
        explorer.page.keyboard.press(key)
    explorer.settings["T"] = 34
    explorer.check()


@first_notebook
def test_a_notebook_saved_after_moves_stays_green(explorer, course):
    path = course / "notebooks" / "01_loop_mean.ipynb"
    assert "widget-view" not in path.read_text(encoding="utf-8")
    explorer.press(*explorer.moves[0][:2])
    explorer.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    assert "widget-view" in path.read_text(encoding="utf-8")
    passed, said = nbval(course, [path.stem])
    assert passed, said


@each_notebook
def test_the_page_reports_no_error(notebook):
    assert notebook.complaints == []
