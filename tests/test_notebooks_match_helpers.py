"""What a notebook builds is what helpers hold, docstrings and `expect` lines aside."""

import ast

import nbformat
import pytest

from helpers.maintain.refresh import NOTEBOOKS

pytestmark = pytest.mark.stored
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
BUILT = (ast.FunctionDef, ast.ClassDef)


def is_aside(node):
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or (isinstance(node, ast.Expr) and ast.unparse(node).startswith("expect."))


def definitions(source):
    """(name, code) of each top-level definition, without methods that only check."""
    for node in ast.parse(source).body:
        if isinstance(node, BUILT):
            for inner in ast.walk(node):
                if isinstance(inner, BUILT):
                    inner.body = [line for line in inner.body if not is_aside(line)]
            if isinstance(node, ast.ClassDef):
                node.body = [line for line in node.body if getattr(line, "body", True)]
            yield node.name, ast.unparse(node)


def built_in(path):
    cells = nbformat.read(path, as_version=4).cells
    return [d for cell in cells if cell.cell_type == "code" for d in definitions(cell.source)]


def held_for(path):
    module = NOTEBOOKS.parent / "helpers" / f"{path.stem[3:]}.py"
    return list(definitions(module.read_text(encoding="utf-8")))


def test_every_notebook_has_a_module():
    assert [path.stem for path in PATHS] == [
        "01_loop_mean",
        "02_tril_matmul",
        "03_softmax_mask",
        "04_positional",
        "05_qkv_head",
        "06_transformer",
        "07_fast_heads",
    ]
    assert all(held_for(path) for path in PATHS)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_each_helper_is_built_once_with_the_same_code(path):
    built = built_in(path)
    for name, code in held_for(path):
        assert [other for given, other in built if given == name] == [code]


def test_no_helper_is_built_in_another_notebook():
    owner = {name: path for path in PATHS for name, _ in held_for(path)}
    for path in PATHS:
        for name, _ in built_in(path):
            assert owner.get(name, path) == path, name
