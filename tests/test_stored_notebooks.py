"""What the stored notebooks must satisfy, and a reader's own copy need not."""

import ast
import importlib
import json
import re
from itertools import pairwise

import nbformat
import pytest

from helpers.maintain.publish import COLAB
from helpers.maintain.refresh import EXCUSED, METADATA, NOTEBOOKS

pytestmark = pytest.mark.stored
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
PROGRESS = "checks.progress()"  # what a reader has solved
EXCUSED_CELLS = {  # notebook: the first line of each cell whose output nbval does not compare
    "01_loop_mean": ["def seconds(layer, T):", PROGRESS],
    "02_tril_matmul": [PROGRESS],
    "03_softmax_mask": [PROGRESS],
    "04_positional": [PROGRESS],
    "05_qkv_head": [PROGRESS],
    "06_transformer": [
        "history = train(model, corpus, steps=600, watch=plots.LiveCurve(marks))",
        "generator = torch.Generator().manual_seed(0)",
        "torch.manual_seed(0)",
        PROGRESS,
    ],
    "07_fast_heads": [
        "def speed(work, *arguments):",
        "shares = {}",
        "with torch.no_grad():",
        "cache = KVCache(writer)",
        "def half(idx):",
        "def step(model, optimizer, idx, targets):",
        PROGRESS,
    ],
}
each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def outputs(path):
    return [output for cell in code_cells(path) for output in cell.outputs]


def words_of(output):
    """All that an output says, its pictures aside."""
    data = {kind: text for kind, text in output.get("data", {}).items() if "image" not in kind}
    return json.dumps([data, output.get("text", "")])


@each_notebook
def test_the_setup_cell_is_the_same_everywhere_and_said_to_be_run_first(path):
    assert code_cells(path)[0].source == code_cells(PATHS[0])[0].source
    cells = read(path).cells
    place = next(place for place, cell in enumerate(cells) if cell.cell_type == "code")
    assert cells[place - 1].source.startswith("Run the next cell first, and again after every")


@each_notebook
def test_every_cell_was_run_once_and_in_order(path):
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))


@each_notebook
def test_nothing_is_stored_but_cells_tags_and_outputs(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA
    folded = [cell for cell in notebook.cells if cell.metadata.pop("jupyter", None)]
    assert folded == [next(cell for cell in notebook.cells if cell.cell_type == "code")]
    assert all(set(cell.metadata) <= {"tags"} for cell in notebook.cells)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert path.stat().st_size < 1_000_000


@each_notebook
def test_outputs_hold_no_warnings_errors_addresses_paths_or_widgets(path):
    for output in outputs(path):
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
        assert "widget-view" not in words_of(output)
        assert not re.search(r"0x[0-9a-f]{6}|Figure size|object at|\.py:\d", words_of(output))
        assert not re.search(r"(?<![\w.])/(home|root|tmp|usr|Users)/|[A-Z]:\\\\", words_of(output))


@each_notebook
def test_every_picture_says_in_words_what_it_shows(path):
    shown = outputs(path)
    for place, output in enumerate(shown):
        if "image/png" in output.get("data", {}):
            alt = output.metadata["image/png"]["alt"]
            assert output.data["text/plain"].startswith(alt)
            assert shown[place + 1].data["text/plain"] == alt


def test_only_the_listed_cells_are_excused():
    excused = {
        path.stem: [
            cell.source.splitlines()[0] for cell in code_cells(path) if cell.metadata.get("tags")
        ]
        for path in PATHS
    }
    assert {stem: cells for stem, cells in excused.items() if cells} == EXCUSED_CELLS
    tags = [
        tag for path in PATHS for cell in read(path).cells for tag in cell.metadata.get("tags", [])
    ]
    assert set(tags) == {EXCUSED}


@each_notebook
def test_code_is_plain_python_that_silences_and_installs_nothing(path):
    setup, *rest = [cell.source for cell in code_cells(path)]
    for source in [setup, *rest]:
        ast.parse(source)
        assert not source.rstrip().endswith(";")
        assert not re.search(r"pip install|NBVAL_|filterwarnings", source)
    assert not any("://" in source for source in rest)  # only the setup cell fetches anything


@each_notebook
def test_every_name_taken_from_helpers_is_there(path):
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("helpers."):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


@each_notebook
def test_links_lead_to_files_and_headings_go_down_one_at_a_time(path):
    prose = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        assert (NOTEBOOKS / target).is_file() or target.startswith(COLAB), target
    levels = [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
