"""Running the notebooks through nbval: what must turn red does, and what must stay green does."""

import os
import re
import subprocess
import sys
from itertools import pairwise

import nbformat
import pytest
from browser import copy_course
from nbclient import NotebookClient

from helpers.maintain.refresh import EXCUSED, NOTEBOOKS, refresh

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@pytest.fixture
def course(tmp_path):
    """A copy of the course, to be tampered with."""
    return copy_course(tmp_path)


def nbval(course, stems, *options, **environment):
    """Validate notebooks of a course in a process of its own; returns (passed, what it printed)."""
    paths = [f"notebooks/{stem}.ipynb" for stem in stems]
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *options, *paths],
        cwd=course,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode == 0, done.stdout


def run(path, cells):
    """Run these cells of a notebook as Lab would; returns the notebook."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = cells
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", coalesce_streams=True, resources=resources
    ).execute()
    return notebook


def without_training(path):
    """List the cells of a notebook but those that train for a minute, and those that need them."""
    trained = re.compile(r" = train\(|\b(history|cheating)\[|\btold = generate\(")
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if not trained.search(cell.source)]


@pytest.mark.stored
def test_a_changed_number_turns_a_notebook_red(course):
    path = course / "notebooks" / "02_tril_matmul.ipynb"
    text = path.read_text(encoding="utf-8")
    assert text.count("[4.6667, 5.3333]") == 1
    path.write_text(text.replace("[4.6667, 5.3333]", "[4.6667, 5.3334]"), encoding="utf-8")
    passed, said = nbval(course, ["02_tril_matmul"])
    assert not passed
    assert "1 failed" in said


@pytest.mark.stored
def test_a_mask_flipped_behind_a_picture_turns_its_cell_red(course):
    path = course / "notebooks" / "03_softmax_mask.ipynb"
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [cell for cell in notebook.cells if '"masked": masked' in cell.source]
    cell.source = cell.source.replace("causal_mask(6)", "causal_mask(6).T")
    nbformat.write(notebook, path)
    passed, said = nbval(course, ["03_softmax_mask"])
    assert not passed
    assert "1 failed" in said


@pytest.mark.stored
def test_a_mask_flipped_in_the_helpers_turns_the_notebooks_red(course):
    module = course / "helpers" / "softmax_mask.py"
    code = module.read_text(encoding="utf-8")
    module.write_text(code.replace(".tril()", ".triu()"), encoding="utf-8")
    for stem in ["03_softmax_mask", "05_qkv_head", "06_transformer"]:
        assert not nbval(course, [stem], "--exitfirst")[0], stem


@pytest.mark.stored
def test_a_refresh_of_what_is_fresh_changes_no_byte(course):
    for path in sorted((course / "notebooks").glob("0[15]*.ipynb")):
        before = path.read_bytes()
        refresh(path)
        assert path.read_bytes() == before, path.stem


@pytest.mark.slow
@each_notebook
def test_a_cell_that_is_run_again_gives_the_same_again(path):
    twice = []
    for cell in nbformat.read(path, as_version=4).cells:
        again = cell.cell_type == "code" and EXCUSED not in cell.metadata.get("tags", [])
        twice += [cell, nbformat.v4.new_code_cell(cell.source)] if again else [cell]
    done = run(path, twice).cells
    for first, second in pairwise(done):
        if first.cell_type == "code" and first.source == second.source:
            assert said(second) == said(first), first.source


def said(cell):
    """What a cell shows as text."""
    return [output.get("text") or output.data["text/plain"] for output in cell.outputs]
