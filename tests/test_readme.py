"""What the README says is so: its commands are run, its links lead somewhere, its numbers hold."""

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WORDS_A_MINUTE = 200


def row_of(path):
    """Return the row of the table of notebooks that links to one."""
    (row,) = [line for line in README.splitlines() if f"(notebooks/{path.name})" in line]
    return row


def test_ci_runs_the_readmes_test_command_as_it_stands():
    (command,) = [line for line in README.splitlines() if line.endswith("-m pytest --nbval")]
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_both_commands_install_the_same_and_one_opens_the_notebooks():
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    opened, tested = (line.split(" && ") for line in commands if line.count(" && ") == 2)
    assert opened[:2] == tested[:2]
    assert opened[2] == ".venv/bin/jupyter lab notebooks"


def test_requirements_are_exact_and_conda_installs_the_same():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert all("==" in line for line in lines if line and not line.startswith("#"))
    assert "torch==2.13.0" in lines
    assert "torch==2.13.0 --index-url" in README
    assert "- -r requirements.txt" in (ROOT / "environment.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_ladder_names_every_notebook_with_its_question(path):
    question = nbformat.read(path, as_version=4).cells[0].source.split("**")[1]
    assert question in row_of(path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_minutes_are_those_of_reading_and_of_the_exercises(path):
    cells = nbformat.read(path, as_version=4).cells[2:]  # after the map and the setup
    text = "\n".join(cell.source for cell in cells)
    unfolded = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    read = len(re.findall(r"\w+", unfolded)) / WORDS_A_MINUTE
    exercises = sum(map(int, re.findall(r"^\*.*?(\d+) minutes?\.\*", text, re.MULTILINE)))
    stated = re.search(r"\| (\d+) \+ (\d+) \|$", row_of(path))
    assert int(stated[1]) == pytest.approx(read, abs=5)
    assert int(stated[2]) == pytest.approx(exercises, abs=5)


def test_every_link_and_picture_leads_to_a_file():
    targets = re.findall(r"\]\(([^)\s]+)\)", README)
    relative = [target for target in targets if not target.startswith("https://")]
    assert {"LICENSE", "pictures/ladder.png"} <= set(relative)
    assert [target for target in relative if not (ROOT / target).is_file()] == []


@pytest.mark.parametrize("name", sorted(set(re.findall(r"-m (helpers[\w.]*)", README))))
def test_every_command_that_is_named_can_be_run(name):
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations:  # a package runs its __main__
        spec = importlib.util.find_spec(f"{name}.__main__")
    assert spec is not None
    assert 'if __name__ == "__main__":' in Path(spec.origin).read_text(encoding="utf-8")


def test_the_names_that_are_said_to_be_ours_are():
    table = README.split("## Names here and elsewhere")[1].split("\n\n")[2].splitlines()[2:]
    ours = {name for row in table for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    code = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("helpers/*.py"))
    assert {"n_embd", "scores", "query", "ln_f"} <= ours
    assert [name for name in sorted(ours) if not re.search(rf"\b{name}\b", code)] == []
