"""The doctor starts anywhere, finds what is wrong, and says what to do about it."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace

import jupyter_core.paths
import nbformat
import psutil
import pytest
import torch

from helpers import doctor, train
from helpers.checkpoint import load_checkpoint
from helpers.doctor import Finding

ROOT = doctor.ROOT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = ROOT / "helpers" / "doctor.py"


@pytest.fixture
def no_jupyter_on_path(monkeypatch):
    """No other Jupyter is a command here; a path is still found."""
    monkeypatch.setattr(shutil, "which", lambda name: name if Path(name).is_file() else None)


@pytest.fixture
def lacking(monkeypatch):
    """A function that hides packages by the names they are imported by."""
    find = doctor.importlib.util.find_spec

    def hide(*names):
        def found(name):
            return None if name in names else find(name)

        monkeypatch.setattr(doctor.importlib.util, "find_spec", found)

    return hide


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The Python of an environment without any package, not even pip."""
    folder = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder(with_pip=False, symlinks=not doctor.WINDOWS).create(folder)
    return folder / ("Scripts/python.exe" if doctor.WINDOWS else "bin/python")


def visit(*command, cwd=ROOT, **environment):
    """Run a command as from a terminal, and return (exit status, what it says)."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    settings |= {"PYTHONIOENCODING": "utf-8", **environment}
    encoding = settings["PYTHONIOENCODING"].split(":")[0]
    command = [str(part) for part in command]
    done = subprocess.run(
        command, cwd=cwd, env=settings, capture_output=True, check=False, encoding=encoding
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def report(monkeypatch, capsys, **checks):
    """Run the command with other checks, and return (exit status, what it says)."""
    monkeypatch.setattr(doctor, "CHECKS", checks or doctor.CHECKS)
    monkeypatch.setattr(sys, "argv", ["doctor"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        doctor.main()
    except SystemExit as stop:
        return stop.code, capsys.readouterr().out
    return 0, capsys.readouterr().out


def constant(mark, said="something"):
    return lambda: Finding(mark, said, () if mark == "ok" else ("Do this:", doctor.run("x", "y z")))


# the whole visit


def test_every_check_works_on_this_machine(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "steps_a_second", lambda: 12.0)
    _, said = report(monkeypatch, capsys)
    assert re.findall(r"^(?:ok|look|mend) +(\w+)", said, re.M) == list(doctor.CHECKS)
    assert "could not be checked" not in said


def test_a_machine_without_faults_is_ready(monkeypatch, capsys):
    status, said = report(monkeypatch, capsys, one=constant("ok"), two=constant("look"))
    assert status == 0
    assert said.splitlines()[-1] == "This machine is ready."
    assert "look  two          something\n      Do this:\n          x " in said


@pytest.mark.parametrize(
    ("marks", "last"),
    [
        (["ok", "mend"], "1 thing to mend. Then run this again."),
        (["mend", "look", "mend"], "2 things to mend, from the top. Then run this again."),
    ],
)
def test_what_is_to_mend_is_counted_and_fails(monkeypatch, capsys, marks, last):
    checks = {f"check{number}": constant(mark) for number, mark in enumerate(marks)}
    status, said = report(monkeypatch, capsys, **checks)
    assert status == 1
    assert said.splitlines()[-1] == last


def test_nothing_is_looked_at_before_what_it_needs(monkeypatch, capsys):
    checks = {"packages": constant("mend"), "speed": constant("ok")}
    _, said = report(monkeypatch, capsys, **checks)
    assert "speed" not in said


def test_a_check_that_fails_itself_is_a_finding(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "psutil", None)  # as if it were not installed
    status, said = report(monkeypatch, capsys, memory=doctor.memory)
    assert status == 0
    assert said.startswith("look  memory       could not be checked (ModuleNotFoundError: ")
    assert "If the notebooks fail as well:" in said


def test_only_commands_are_long_lines():
    finding = Finding("mend", "word " * 60, ("word " * 60, doctor.run("a" * 90, "b" * 90)))
    lines = doctor.lines_of("course", finding)
    assert [len(line) > 96 for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1].strip() == "a" * 90 + " " + "b" * 90


# without packages, from anywhere, on any console


@pytest.mark.parametrize("command", [["-m", "helpers.doctor"], [SOURCE]])
def test_it_starts_with_python_alone(bare, command):
    status, said = visit(bare, *command)
    assert status == 1
    assert f"mend  packages     missing: {', '.join(doctor.MODULES)}\n" in said
    assert said.endswith("1 thing to mend. Then run this again.\n")


def test_it_starts_without_site_packages_and_in_another_folder(tmp_path):
    status, said = visit(sys.executable, "-I", "-S", SOURCE, cwd=tmp_path)
    assert status == 1
    assert "missing: torch" in said


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_any_console_can_show_any_path_and_commands_can_be_copied(bare, tmp_path, encoding):
    course = tmp_path / "my Ω course"
    (course / "helpers").mkdir(parents=True)
    shutil.copy(SOURCE, course / "helpers")
    status, said = visit(bare, "helpers/doctor.py", cwd=course, PYTHONIOENCODING=encoding)
    assert status == 1
    assert r"my \u03a9 course" in said
    commands = re.findall(r"^ {10}(\S.*)", said, re.M)
    assert len(commands) == 3
    if not doctor.WINDOWS:
        assert [shlex.split(line)[0] for line in commands] == ["git", str(bare), str(bare)]


def test_its_own_words_are_ascii():
    assert SOURCE.read_bytes().isascii()


def test_a_broken_torch_is_named_and_nothing_falls_over(tmp_path):
    (tmp_path / "torch").mkdir()
    code = 'raise OSError("[WinError 126] The module could not be found: fbgemm.dll")\n'
    (tmp_path / "torch" / "__init__.py").write_text(code, encoding="utf-8")
    status, said = visit(sys.executable, "-m", "helpers.doctor", PYTHONPATH=str(tmp_path))
    assert status == 1
    assert "torch does not start: OSError: [WinError 126]" in said
    assert "--force-reinstall torch==" in said
    script = "from helpers import doctor\ntry: doctor.ready()\nexcept ImportError as e: print(e)"
    _, said = visit(sys.executable, "-c", script, PYTHONPATH=str(tmp_path))
    assert "cannot start torch (OSError: [WinError 126]" in said
    assert "-m helpers.doctor" in said


# Python and commands


def test_an_old_python_and_one_of_32_bits_are_refused(monkeypatch):
    assert doctor.python().mark == "ok"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 9, 1))
        old = doctor.python()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "maxsize", 2**31 - 1)
        small = doctor.python()
    assert (old.mark, small.mark) == ("mend", "mend")
    assert old.said.startswith("3.9.1, ")
    assert "32 bits" in small.said
    assert "3.11 or newer" in old.advice[0]


def test_it_asks_for_what_the_package_asks_for():
    assert PROJECT["requires-python"] == ">={}.{}".format(*doctor.OLDEST)
    names = [re.match(r"[\w-]+", line).group() for line in PROJECT["dependencies"]]
    assert names == list(doctor.MODULES)


@pytest.mark.parametrize(
    ("windows", "path", "written"),
    [
        (False, "/a/python", "/a/python -m pip"),
        (False, "/a b/python", "'/a b/python' -m pip"),
        (True, r"C:\a\python.exe", r"C:\a\python.exe -m pip"),
        (True, r"C:\a b\python.exe", r'& "C:\a b\python.exe" -m pip'),
    ],
)
def test_a_path_with_spaces_is_quoted(monkeypatch, windows, path, written):
    monkeypatch.setattr(doctor, "WINDOWS", windows)
    assert doctor.command(path, "-m", "pip") == written


# the course


def test_the_course_is_whole_here(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT)])
    assert doctor.course().mark == "ok"
    kept = re.findall(r"^!data/(.+)", (ROOT / ".gitignore").read_text(encoding="utf-8"), re.M)
    assert {*doctor.DATA, "README.md"} == set(kept)


def test_lost_data_is_named(monkeypatch, tmp_path):
    (tmp_path / "data").mkdir()
    for name in doctor.DATA[1:]:
        (tmp_path / "data" / name).touch()
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    mark, said, advice = doctor.course()
    assert mark == "mend"
    assert said.startswith(f"data/{doctor.DATA[0]} missing from ")
    assert advice[-1].endswith(f"checkout -- data/{doctor.DATA[0]}")


def test_another_package_called_helpers_is_seen(monkeypatch, tmp_path):
    (tmp_path / "helpers").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT)])
    assert doctor.course().mark == "ok"  # a folder without code gives way to the course
    (tmp_path / "helpers" / "__init__.py").touch()
    PathFinder.invalidate_caches()
    mark, said, _ = doctor.course()
    assert mark == "look"
    assert str(tmp_path) in said


# packages


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch, lacking):
    lacking("PIL", "torch")
    monkeypatch.setattr(sys, "platform", "linux")
    mark, said, advice = doctor.packages()
    assert (mark, said) == ("mend", "missing: torch, pillow")
    assert advice == doctor.install()


def test_a_mac_with_an_intel_processor_is_not_sent_to_pip(monkeypatch, lacking):
    lacking("torch")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(doctor, "machine", lambda: "x86_64")
    assert "Intel" in doctor.packages().advice[0]
    assert "pip" not in "".join(doctor.packages().advice)


def test_what_a_failed_uninstall_leaves_is_no_package(monkeypatch, tmp_path):
    (tmp_path / "leftover").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(doctor, "MODULES", {"leftover": "leftover", "tqdm": "tqdm"})
    assert doctor.missing() == ["leftover"]


def test_windows_may_lack_what_torch_needs(monkeypatch):
    monkeypatch.setattr(doctor, "WINDOWS", True)
    monkeypatch.setattr(doctor, "fault", lambda name: "OSError: DLL" if name == "torch" else "")
    mark, said, advice = doctor.packages()
    assert (mark, said) == ("mend", "torch does not start: OSError: DLL")
    assert "Visual C++" in advice[0]
    assert "--force-reinstall torch==" in advice[-1]


def test_any_kind_of_failure_is_one_line(monkeypatch):
    def fail(name):
        raise AttributeError("partially initialised\nand more")

    monkeypatch.setattr(doctor.importlib, "import_module", fail)
    assert doctor.fault("torch") == "AttributeError: partially initialised"


def test_versions_are_compared_with_those_that_are_needed_and_tested(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    needed = 'dependencies = ["torch>=2.0", "numpy", "tqdm >= 999.1"]'
    (tmp_path / "pyproject.toml").write_text(f"[project]\n{needed}\n", encoding="utf-8")
    (tmp_path / "requirements.txt").write_text("numpy==0.1\n", encoding="utf-8")
    mark, said, advice = doctor.packages()
    assert mark == "mend"
    assert re.fullmatch(r"too old: tqdm [\d.]+ \(needed: 999.1\)", said)
    assert advice == doctor.install()
    text = '[project]\ndependencies = ["torch>=2.0"]\n'
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    mark, said, _ = doctor.packages()
    assert mark == "ok"
    assert re.search(r"numpy [\d.]+ \(tested: 0.1\), matplotlib [\d.]+,", said)


@pytest.mark.parametrize(("older", "newer"), [("2.9.1", "2.10"), ("2.13.0+cpu", "2.13.1")])
def test_versions_are_compared_as_numbers(older, newer):
    assert doctor.numbers(older) < doctor.numbers(newer)


def test_an_environment_gets_the_packages_and_a_system_python_an_environment(
    monkeypatch, tmp_path, lacking
):
    monkeypatch.setattr(doctor, "OWN", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    wanted = doctor.command("-m", "pip", "install", "-r", ROOT / "requirements.txt")
    inside = doctor.install()
    assert inside[-1].endswith(wanted)
    assert inside[-1].startswith("    " + doctor.command(sys.executable))
    lacking("pip")
    assert inside == (doctor.install()[0], doctor.install()[2])
    assert doctor.install()[1].endswith("-m ensurepip")
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    made, installed = doctor.install()[1:3]
    assert made.endswith("-m venv " + doctor.command(tmp_path / ".venv"))
    assert installed == doctor.run(doctor.OWN, *shlex.split(wanted, posix=not doctor.WINDOWS))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "envs" / "big-steps"))
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert doctor.install()[1].endswith("-m ensurepip")  # conda's environments are such too


def test_the_courses_own_python_is_pointed_at(monkeypatch, bare):
    monkeypatch.setattr(doctor, "OWN", bare)
    assert doctor.run(bare, "-m", "jupyter", "lab", ROOT / "notebooks") in doctor.install()
    monkeypatch.setattr(doctor, "OWN", Path(sys.executable))
    assert "of its own, in .venv" not in doctor.install()[0]


# the kernel


def kernel_with(monkeypatch, folder, started):
    """Make `started` the Python of the kernel python3, and check it."""
    spec = {"argv": [str(started), "-m", "ipykernel_launcher"], "display_name": "Python 3"}
    (folder / "kernels" / "python3").mkdir(parents=True)
    path = folder / "kernels" / "python3" / "kernel.json"
    path.write_text(json.dumps(spec | {"language": "python"}), encoding="utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(folder))
    return doctor.kernel()


@pytest.mark.parametrize("started", ["python", "python3", sys.executable])
def test_a_kernel_on_this_python_is_well(monkeypatch, tmp_path, no_jupyter_on_path, started):
    assert kernel_with(monkeypatch, tmp_path, started) == Finding("ok", "notebooks run this Python")


def test_environments_that_share_one_python_are_told_apart(
    monkeypatch, tmp_path, no_jupyter_on_path, bare
):
    mark, said, advice = kernel_with(monkeypatch, tmp_path, bare)
    assert (mark, said) == ("mend", f"notebooks ask for another Python, {bare}")
    assert str(tmp_path / "kernels") in advice[0]
    assert advice[1].endswith("-m jupyter kernelspec remove python3")


def test_a_kernel_whose_python_is_gone_is_found(monkeypatch, tmp_path, no_jupyter_on_path):
    mark, said, _ = kernel_with(monkeypatch, tmp_path, tmp_path / "gone" / "python")
    assert mark == "mend"
    assert "a Python that is gone" in said


def test_another_jupyter_on_the_path_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / "jupyter"))
    mark, _, advice = kernel_with(monkeypatch, tmp_path, "python")
    assert mark == "look"
    assert str(tmp_path / "jupyter") in advice[0]
    own = str(Path(sysconfig.get_path("scripts"), "jupyter"))
    monkeypatch.setattr(shutil, "which", lambda name: own)
    assert doctor.kernel().mark == "ok"


def test_without_a_kernel_jupyter_is_missing(lacking):
    lacking("ipykernel")
    assert doctor.kernel() == Finding("mend", "Jupyter is missing", doctor.install())


# widgets


def widgets_with(monkeypatch, folder, *switches):
    """Check the widgets with their part of JupyterLab in a folder, and settings, first to last."""
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: name)  # with JupyterLab
    monkeypatch.setattr(jupyter_core.paths, "jupyter_path", lambda *parts: [str(folder)])
    configs = [folder / f"config{number}" for number in range(len(switches))]
    for config, off in zip(configs, switches, strict=True):
        (config / "labconfig").mkdir(parents=True)
        text = json.dumps({"disabledExtensions": {doctor.SLIDERS: off}})
        (config / "labconfig" / "page_config.json").write_text(text, encoding="utf-8")
    monkeypatch.setattr(jupyter_core.paths, "jupyter_config_path", lambda: configs)
    return doctor.widgets()


@pytest.mark.parametrize(
    ("switches", "mark"),
    [([], "ok"), ([False], "ok"), ([True], "mend"), ([False, True], "ok"), ([True, False], "mend")],
)
def test_a_switched_off_part_of_jupyterlab_is_found(monkeypatch, tmp_path, switches, mark):
    (tmp_path / doctor.SLIDERS).mkdir(parents=True)
    (tmp_path / doctor.SLIDERS / "package.json").touch()
    finding = widgets_with(monkeypatch, tmp_path, *switches)
    assert finding.mark == mark
    if mark == "mend":
        assert finding.advice[1].endswith(f"labextension enable {doctor.SLIDERS}")


def test_a_missing_part_of_jupyterlab_is_found(monkeypatch, tmp_path):
    mark, _, advice = widgets_with(monkeypatch, tmp_path)
    assert mark == "mend"
    assert advice[1].endswith("jupyterlab_widgets")


def test_who_has_no_jupyterlab_may_not_need_it(lacking):
    lacking("jupyterlab")
    assert doctor.widgets().mark == "look"


# the machine


@pytest.mark.parametrize(
    ("free", "mark", "said"), [(8.04e9, "ok", "8.0 GB free"), (0.5e9, "look", "0.5 GB free")]
)
def test_little_memory_is_a_reason_to_look(monkeypatch, free, mark, said):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    assert doctor.memory()[:2] == (mark, said)


@pytest.mark.parametrize(
    ("asked", "mark", "said"),
    [
        (None, "ok", "notebooks use 1 of 4 cores, as small models need no more"),
        ("4", "ok", "notebooks use 4 of 4 cores, as OMP_NUM_THREADS says"),
        ("5", "look", "OMP_NUM_THREADS is 5, and more than the 4 cores here"),
        ("0", "mend", "OMP_NUM_THREADS is '0', which is no number of threads"),
        ("4,2", "mend", "OMP_NUM_THREADS is '4,2', which is no number of threads"),
        ("", "mend", "OMP_NUM_THREADS is '', which is no number of threads"),
    ],
)
def test_threads_are_as_the_setup_cell_takes_them(monkeypatch, asked, mark, said):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    finding = doctor.threads()
    assert finding.mark == mark
    assert finding.said.startswith(said)
    assert ("OMP_NUM_THREADS" in "".join(finding.advice)) == (mark != "ok")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("cpu", "none, and nothing in the course needs one"),
        ("mps", "Apple's GPU (mps); helpers.train uses it, and the notebooks need none"),
        ("cuda", "Big One (cuda); helpers.train uses it, and the notebooks need none"),
    ],
)
def test_an_accelerator_is_named_and_never_needed(monkeypatch, kind, said):
    monkeypatch.setattr(train, "pick_device", lambda: torch.device(kind))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Big One")
    assert doctor.accelerator() == Finding("ok", said)


@pytest.mark.parametrize(("rate", "mark", "seconds"), [(12.0, "ok", "55"), (2.0, "look", "330")])
def test_a_slow_machine_is_a_reason_to_look(monkeypatch, rate, mark, seconds):
    monkeypatch.setattr(doctor, "steps_a_second", lambda: rate)
    finding = doctor.speed()
    assert finding.mark == mark
    assert f"about {seconds} seconds" in finding.said


def test_the_speed_is_that_of_notebook_06_and_leaves_the_threads_as_they_were(monkeypatch):
    notebook = nbformat.read(ROOT / "notebooks" / "06_transformer.ipynb", as_version=4)
    source = "\n".join(cell.source for cell in notebook.cells)
    config = load_checkpoint()[0].config
    sizes = f"n_embd={config.n_embd}, n_head={config.n_head}, n_layer={config.n_layer})"
    assert sizes in source
    assert f"block_size = {config.block_size}" in source
    assert f"train(model, corpus, steps={doctor.STEPS}," in source
    set_to = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    assert doctor.steps_a_second(seconds=0) > 0
    assert set_to == [1, 7]


# the setup cell


def test_a_notebook_that_can_start_hears_nothing():
    assert doctor.ready() is None


def test_what_is_missing_is_said_in_a_sentence_with_the_command(lacking):
    lacking("torch", "ipywidgets")
    with pytest.raises(ImportError) as caught:
        doctor.ready()
    said = str(caught.value)
    command = doctor.command(sys.executable, "-m", "helpers.doctor")
    assert said == (
        f"The Python that runs this notebook, {sys.executable}, lacks torch, ipywidgets. To see "
        f"what to do, open a terminal in the course's folder, {ROOT}, and run: {command}"
    )


def test_a_notebook_on_an_old_python_is_told_so(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 9, 1))
        with pytest.raises(ImportError, match=r"is 3\.9, and the course needs 3\.11\."):
            doctor.ready()


def test_being_ready_loads_nothing_beyond_torch():
    script = (
        "import sys, torch\nfrom helpers import doctor\nbefore = set(sys.modules)\n"
        "doctor.ready()\nprint(sorted(set(sys.modules) - before))"
    )
    assert visit(sys.executable, "-c", script) == (0, "[]\n")
