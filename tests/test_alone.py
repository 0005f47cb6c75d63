"""With Colab's versions, each notebook opened alone fetches the course and reaches its last cell.

The notebooks are published first: their address is on GitHub, and git is told that a repository on
this disk stands there.
"""

import importlib.metadata
import shutil
import subprocess

import ipywidgets
import nbformat
import pytest
from browser import copy_course
from nbclient import NotebookClient

from helpers.maintain.publish import publish
from helpers.maintain.refresh import EXCUSED, NOTEBOOKS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not ipywidgets.__version__.startswith("7."),
        reason="needs an environment with tests/requirements-colab.txt",
    ),
]
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
FOLDER = "big-steps-to-transformer-v1"
GIT = ["git", "-c", "user.name=n", "-c", "user.email=e"]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A git repository of the course as it is here, published as owner/name at the tag v1."""
    course = copy_course(tmp_path_factory.mktemp("repository"))
    shutil.copy(NOTEBOOKS.parent / "README.md", course)
    publish("owner/name", "v1", course / "notebooks", course / "README.md")
    for arguments in [["init"], ["add", "."], ["commit", "-m", "all"], ["tag", "v1"]]:
        subprocess.run([*GIT, *arguments], cwd=course, check=True, capture_output=True)
    return course


def installed():
    return {(found.name, found.version) for found in importlib.metadata.distributions()}


def words_of(cell):
    """All that a cell's outputs say, in order: what is printed, and what pictures say."""
    return [output.get("text") or output["data"]["text/plain"] for output in cell.outputs]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_opened_alone_reaches_its_end(path, published, tmp_path, monkeypatch):
    colab = tmp_path / "packages" / "google" / "colab"
    colab.mkdir(parents=True)
    (colab / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.delenv("BIG_STEPS_ADDRESS", raising=False)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{published.as_uri()}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "https://github.com/owner/name")
    content = tmp_path / "content"
    content.mkdir()
    shutil.copy(published / "notebooks" / path.name, content)
    before = installed()

    notebook = nbformat.read(content / path.name, as_version=4)
    settings = {"resources": {"metadata": {"path": str(content)}}, "coalesce_streams": True}
    NotebookClient(notebook, timeout=300, kernel_name="python3", **settings).execute()

    assert sorted(found.name for found in content.iterdir()) == sorted([path.name, FOLDER])
    assert installed() == before
    setup, *ran = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "from https://github.com/owner/name into" in words_of(setup)[0]
    _, *stored = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    for new, old in zip(ran, stored, strict=True):
        if EXCUSED not in old.metadata.get("tags", []):
            assert words_of(new) == words_of(old), old.source
