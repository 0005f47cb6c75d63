"""The list in helpers/__init__.py is complete and in order, and every module keeps to it."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import helpers

ROOT = Path(helpers.__file__).resolve().parent
LISTED = [line.split()[0] for line in helpers.__doc__.splitlines()[2:] if line.strip()]
LAYERS = LISTED[: LISTED.index("fast_heads") + 1]
PICTURES = ["matplotlib", "ipywidgets", "IPython"]
SOURCES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part_of(path):
    """Name the listed module that a file belongs to: its stem, or the folder it is in."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_helpers(code, package="helpers"):
    """List the modules of helpers that code imports, at any depth: `from helpers.text import x`."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [node.module])])
            found += [f"{base}.{alias.name}" for alias in node.names]
    dotted = [name.split(".") for name in found]
    return {parts[1] if len(parts) > 1 else "" for parts in dotted if parts[0] == "helpers"}


def test_every_module_is_listed_and_every_listed_one_is_there():
    assert len(LISTED) == len(set(LISTED))
    assert set(LISTED) == {part_of(path) for path in SOURCES}


def test_the_package_itself_holds_nothing_but_the_list():
    code = (ROOT / "__init__.py").read_text(encoding="utf-8")
    assert len(ast.parse(code).body) == 1


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_imports_only_from_those_above_it(path):
    name, package = part_of(path), ".".join(["helpers", *path.relative_to(ROOT).parts[:-1]])
    above = set(LISTED[: LISTED.index(name)])
    own = {name} if path.parent != ROOT else set()
    assert imported_helpers(path.read_text(encoding="utf-8"), package) <= above | own


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import helpers.text", {"text"}),
        ("import helpers.text as text, torch", {"text"}),
        ("from helpers import plots, probe", {"plots", "probe"}),
        ("from helpers.train import DATA", {"train"}),
        ("def f():\n    if True:\n        from helpers.sample import generate", {"sample"}),
        ("from . import plots", {"plots"}),
        ("from .text import DATA", {"text"}),
        ("import helpers", {""}),
        ("import torch\nfrom pathlib import Path", set()),
    ],
)
def test_imports_are_found_in_every_form_and_depth(code, found):
    assert imported_helpers(code) == found


def test_a_relative_import_in_a_folder_is_found():
    code = "from ..text import DATA\nfrom . import refresh"
    assert imported_helpers(code, "helpers.maintain") == {"text", "maintain"}


def test_layers_load_without_pictures_and_every_module_loads_alone():
    script = f"""
import importlib, json, sys

def loaded():
    return [name for name in {PICTURES} if name in sys.modules]

found = {{"order": {{}}, "alone": []}}
import helpers.qkv_head
found["head"] = [sorted(n for n in sys.modules if n.startswith("helpers.")), loaded()]
for name in {LAYERS}:
    importlib.import_module("helpers." + name)
    found["order"][name] = loaded()
for name in {LISTED}:
    for known in [known for known in sys.modules if known.split(".")[0] == "helpers"]:
        del sys.modules[known]
    importlib.import_module("helpers." + name)
    found["alone"].append(name)
print(json.dumps(found))
"""
    command = [sys.executable, "-c", script]
    run = subprocess.run(
        command, cwd=ROOT.parent, capture_output=True, check=False, encoding="utf-8"
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["head"] == [["helpers.expect", "helpers.qkv_head", "helpers.softmax_mask"], []]
    assert found["order"] == {name: [] for name in LAYERS}
    assert found["alone"] == LISTED
