"""The commands that a reader copies are those that are run here."""

from pathlib import Path

import nbformat

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_the_readmes_test_command_as_it_stands():
    (command,) = [line for line in README.splitlines() if line.endswith("-m pytest --nbval")]
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_both_commands_install_the_same_and_one_opens_the_notebooks():
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    opened, tested = (command.split(" && ") for command in commands)
    assert opened[:2] == tested[:2]
    assert opened[2] == ".venv/bin/jupyter lab notebooks"


def test_requirements_are_exact_and_conda_installs_the_same():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert all("==" in line for line in lines if line and not line.startswith("#"))
    assert "torch==2.13.0" in lines
    assert "- -r requirements.txt" in (ROOT / "environment.yml").read_text(encoding="utf-8")


def test_the_ladder_names_every_notebook_with_its_question():
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        question = nbformat.read(path, as_version=4).cells[0].source.split("**")[1]
        (row,) = [line for line in README.splitlines() if f"(notebooks/{path.name})" in line]
        assert question in row
