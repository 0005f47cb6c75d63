"""The versions that are tested are those that are promised."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

ROOT = Path(__file__).parent.parent
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "dependencies"
]
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
LISTS = ["requirements.txt", "tests/requirements-oldest.txt", "tests/requirements-colab.txt"]


def pins(path):
    """Read the exact versions that a file lists, {name: version}."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return {
        name: Version(given) for name, given in re.findall(r"^(\S+)==(\S+)", text, re.MULTILINE)
    }


BOUNDS = {name: Version(bound) for name, bound in (text.split(">=") for text in DEPENDENCIES)}


def test_the_oldest_versions_that_are_tested_are_the_lower_bounds():
    tested = pins("tests/requirements-oldest.txt")
    assert {name: tested[name] for name in BOUNDS} == BOUNDS


@pytest.mark.parametrize("path", LISTS)
def test_no_list_goes_below_a_bound(path):
    assert [name for name, pin in pins(path).items() if pin < BOUNDS.get(name, pin)] == []


def test_colab_need_replace_nothing():
    assert all(pins("tests/requirements-colab.txt")[name] >= BOUNDS[name] for name in BOUNDS)
    assert BOUNDS["torch"] <= Version("2.11.0")  # what Colab has
    assert BOUNDS["numpy"] <= Version("2.0.2")  # what its older runtimes have


def test_the_workflow_can_be_read_and_uses_every_list():
    workflow = yaml.safe_load(WORKFLOW)
    assert all(job["steps"] and job["runs-on"] for job in workflow["jobs"].values())
    assert [path for path in LISTS if path not in WORKFLOW] == []
