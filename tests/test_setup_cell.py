"""The cell that opens every notebook finds the course, or says in a sentence what to do."""

import json
import os
import shutil
import subprocess
import sys

import nbformat
import pytest

from helpers.maintain.publish import ADDRESS, publish
from helpers.maintain.refresh import NOTEBOOKS

NOTEBOOK = NOTEBOOKS / "01_loop_mean.ipynb"
FOLDER = "big-steps-to-transformer"
REPORT = """
import json, helpers
print(json.dumps({"from": helpers.__file__, "paths": sys.path, "cwd": os.getcwd()}))
"""
TORCH = "def set_printoptions(**given): ...\ndef set_num_threads(number): ...\n"
GIT = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "init.defaultBranch=trunk"]


def setup_cell(path=NOTEBOOK):
    cells = nbformat.read(path, as_version=4).cells
    return next(cell.source for cell in cells if cell.cell_type == "code")


UNPUBLISHED = ADDRESS.sub('ADDRESS = ""', setup_cell())


def small_course(folder, says="tip"):
    """Make a course that holds just what the cell looks for."""
    files = {
        "helpers/__init__.py": f"says = {says!r}\n",
        "helpers/loop_mean.py": "",
        "helpers/doctor.py": "def ready(): ...\n",
        "notebooks/below/README.md": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def in_git(folder, *arguments):
    subprocess.run([*GIT, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def course(tmp_path):
    return small_course(tmp_path / "a course")


@pytest.fixture
def alone(tmp_path):
    """An empty folder, where a notebook is opened by itself."""
    folder = tmp_path / "alone"
    folder.mkdir()
    return folder


@pytest.fixture
def repository(tmp_path):
    """A git repository of the course, with an older state under the tag v1."""
    folder = small_course(tmp_path / "repository", says="v1")
    in_git(folder, "init")
    in_git(folder, "add", ".")
    in_git(folder, "commit", "-m", "one")
    in_git(folder, "tag", "v1")
    small_course(folder, says="tip")
    in_git(folder, "commit", "-am", "two")
    return folder.as_uri()


@pytest.fixture
def run(tmp_path):
    """Run the setup cell in a fresh interpreter, with a torch that costs nothing."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "torch.py").write_text(TORCH, encoding="utf-8")

    def run(cwd, code=REPORT, cell=UNPUBLISHED, before="", times=1, **environment):
        ours = ["BIG_STEPS_ADDRESS", "OMP_NUM_THREADS"]
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        kept |= {"PYTHONPATH": str(packages)} | environment
        script = before + f"\ncell = {cell!r}\n"
        script += "import os, sys\n" + "exec(cell)\n" * times + code
        command = [sys.executable, "-c", script]
        return subprocess.run(
            command, cwd=cwd, env=kept, capture_output=True, encoding="utf-8", check=False
        )

    run.packages = packages
    return run


def found(run):
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def what_to_do(run):
    """Return the sentence that a run ended with."""
    assert run.returncode == 1
    return run.stderr[run.stderr.index("ModuleNotFoundError: ") :].strip()


@pytest.mark.parametrize("below", [".", "helpers", "notebooks", "notebooks/below"])
def test_the_course_is_found_from_its_root_and_every_folder_below(run, course, below):
    assert found(run(course / below))["from"] == str(course / "helpers" / "__init__.py")


def test_the_course_is_found_where_vs_code_works_in_the_folder_above(run, course, alone):
    opened = course / "notebooks" / "01_loop_mean.ipynb"
    before = f"__vsc_ipynb_file__ = {str(opened)!r}"
    assert found(run(alone, before=before))["from"].startswith(str(course))


def test_three_runs_leave_one_path_the_same_folder_and_the_same_modules(run, course):
    code = REPORT.replace(
        "import json, helpers", "import json, helpers; helpers.kept = 1; exec(cell)"
    )
    code += "import helpers as again\nassert again.kept == 1\n"
    three = found(run(course / "notebooks", code, times=3))
    assert three["paths"].count(str(course)) == 1
    assert three["paths"][0] == str(course)
    assert three["cwd"] == str(course / "notebooks")


@pytest.mark.parametrize("form", ["helpers/__init__.py", "helpers.py", "helpers/other.py"])
@pytest.mark.parametrize("imported", [False, True])
def test_another_package_called_helpers_gives_way(run, course, form, imported):
    other = run.packages / form
    other.parent.mkdir(exist_ok=True)
    other.write_text("", encoding="utf-8")
    before = f"import {form.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
    there = run(course / "notebooks", before=before if imported else "")
    assert found(there)["from"].startswith(str(course))


def test_a_notebook_alone_fetches_the_course_once_and_puts_it_beside_itself(run, alone, repository):
    for _ in range(2):
        fetched = run(alone, REPORT + "print(helpers.says)", times=3, BIG_STEPS_ADDRESS=repository)
        assert fetched.returncode == 0, fetched.stderr
        assert fetched.stdout.splitlines()[-1] == "tip"
        assert [path.name for path in alone.iterdir()] == [FOLDER]
        assert not list((alone / FOLDER).rglob(FOLDER))


def fake_git(tmp_path, script):
    """Put a shell script called git before the real one; returns the PATH."""
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    git.chmod(0o755)
    return f"{git.parent}{os.pathsep}{os.environ['PATH']}"


def test_a_tag_pins_what_is_fetched_and_another_is_fetched_beside_it(run, alone, repository):
    says = "import helpers; print(helpers.says)"
    for tag, version in [("#v1", "v1"), ("", "tip"), ("#v1", "v1")]:
        fetched = run(alone, says, BIG_STEPS_ADDRESS=repository + tag)
        assert fetched.stdout.splitlines()[-1] == version
    assert {path.name for path in alone.iterdir()} == {FOLDER, f"{FOLDER}-v1"}


def test_what_is_fetched_from_where_to_where_is_said(run, alone, repository):
    fetched = run(alone, "", BIG_STEPS_ADDRESS=repository)
    assert f"from {repository} into {FOLDER}" in fetched.stdout


def test_quotes_that_env_keeps_do_no_harm(run, alone, repository):
    assert found(run(alone, BIG_STEPS_ADDRESS=f'"{repository}"'))["from"].startswith(str(alone))


def test_the_course_around_is_used_before_one_that_was_fetched(run, course):
    small_course(course / "notebooks" / FOLDER)
    assert found(run(course / "notebooks"))["from"] == str(course / "helpers" / "__init__.py")


def test_without_an_address_it_says_where_it_looked_and_what_to_do(run, alone):
    said = what_to_do(run(alone, before="__vsc_ipynb_file__ = None"))
    assert f"not in {alone} or above it" in said
    assert "names no address" in said
    assert "open this notebook in its folder" in said
    assert "%env BIG_STEPS_ADDRESS=" in said


@pytest.mark.parametrize(
    ("address", "says"), [("nowhere", "nowhere"), ("{repository}#v9", "v9 not found")]
)
def test_an_address_that_leads_nowhere_is_named_on_one_line(run, alone, repository, address, says):
    said = what_to_do(run(alone, BIG_STEPS_ADDRESS=address.format(repository=repository)))
    assert "fetching it failed" in said
    assert says in said
    assert "\n" not in said


def test_what_stands_in_the_way_is_kept(run, alone, repository):
    kept = alone / FOLDER / "mine.txt"
    kept.parent.mkdir()
    kept.write_text("mine", encoding="utf-8")
    assert FOLDER in what_to_do(run(alone, BIG_STEPS_ADDRESS=repository))
    assert [path.name for path in alone.iterdir()] == [FOLDER]
    assert kept.read_text(encoding="utf-8") == "mine"


def test_a_machine_without_git_is_told_so(run, alone, repository):
    said = what_to_do(run(alone, BIG_STEPS_ADDRESS=repository, PATH=str(alone)))
    assert "No such file or directory: 'git'" in said
    assert "with git" in said


HALF = 'for folder; do :; done; mkdir -p "$folder/helpers"; touch "$folder/helpers/loop_mean.py"; '


@pytest.mark.parametrize("end", ["exit 1", "sleep 9", "kill -INT $PPID; sleep 9"])
def test_half_a_course_is_never_left_behind(run, alone, repository, tmp_path, end):
    path = fake_git(tmp_path, HALF + end)
    cell = UNPUBLISHED.replace("timeout=300", "timeout=1")
    stopped = run(alone, cell=cell, BIG_STEPS_ADDRESS=repository, PATH=path)
    assert stopped.returncode != 0
    assert list(alone.iterdir()) == []
    assert found(run(alone, BIG_STEPS_ADDRESS=repository))["from"].startswith(str(alone))


def test_git_never_asks_for_a_password(run, alone, tmp_path):
    path = fake_git(tmp_path, "echo prompt=$GIT_TERMINAL_PROMPT >&2; exit 1")
    assert "prompt=0" in what_to_do(run(alone, BIG_STEPS_ADDRESS="anywhere", PATH=path))


def test_the_same_cell_with_a_published_address_fetches_from_there(
    run, alone, repository, tmp_path
):
    notebooks = tmp_path / "copy" / "notebooks"
    notebooks.mkdir(parents=True)
    shutil.copy(NOTEBOOK, notebooks)
    readme = tmp_path / "copy" / "README.md"
    readme.write_text("", encoding="utf-8")
    publish("owner/name", "v1", notebooks, readme)
    stands_for = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{repository}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/owner/name",
    }
    cell = setup_cell(notebooks / NOTEBOOK.name)
    fetched = run(alone, "import helpers; print(helpers.says)", cell=cell, **stands_for)
    assert fetched.stdout.splitlines()[-1] == "v1", fetched.stderr


def test_one_thread_unless_the_reader_asks_for_more(run, course):
    torch = run.packages / "torch.py"
    torch.write_text(TORCH.replace("number): ...", "number): print(number)"), encoding="utf-8")
    assert run(course, "").stdout == "1\n"
    assert run(course, "", OMP_NUM_THREADS="3").stdout == ""
