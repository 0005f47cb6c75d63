"""Is this machine ready for the course? `python -m helpers.doctor` looks, and says what to do.

It starts with Python alone, since anything else may be what is missing.
"""

import argparse
import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import time
import warnings
from importlib.machinery import PathFinder
from pathlib import Path
from platform import machine
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WINDOWS = os.name == "nt"
OWN = ROOT / ".venv" / ("Scripts/python.exe" if WINDOWS else "bin/python")  # the README makes it
OLDEST = 3, 11
MODULES = {  # what pyproject.toml asks for, and the name to import it by
    "torch": "torch",
    "numpy": "numpy",
    "matplotlib": "matplotlib",
    "pillow": "PIL",
    "tqdm": "tqdm",
    "ipywidgets": "ipywidgets",
    "ipython": "IPython",
}
DATA = ["stories.txt", "stories_held_out.txt"]
DATA += ["stories_model.pt", "stories_snapshots.pt", "parts.json"]
SLIDERS = "@jupyter-widgets/jupyterlab-manager"  # the part of JupyterLab that shows widgets
ROOM = 1e9  # bytes; notebook 06 takes 0.6e9
STEPS, PATIENCE = 600, 120  # the steps that notebook 06 trains, and the seconds they may take
MEASURING = 1.1  # between them it measures the loss, which takes a tenth more
REDISTRIBUTABLE = "https://aka.ms/vs/17/release/vc_redist.x64.exe"


class Finding(NamedTuple):
    """What a check found: ok, look or mend; what there is; and what to do, line by line."""

    mark: str
    said: str
    advice: tuple = ()


def command(*parts):
    """Write a command as one types it here, with quotes where a path has spaces."""
    parts = [str(part) for part in parts]
    if not WINDOWS:
        return shlex.join(parts)
    line = subprocess.list2cmdline(parts)
    return f"& {line}" if line.startswith('"') else line  # PowerShell runs no quoted path without &


def run(*parts):
    """Write a line of advice that is a command to copy: it is indented, and never wrapped."""
    return "    " + command(*parts)


def with_python(*parts):
    """Write a line of advice that is a command for the Python that runs now."""
    return run(sys.executable, *parts)


def install():
    """Say how to install what the course uses, for the Python that runs now."""
    in_venv = sys.prefix != sys.base_prefix
    in_conda = Path(sys.prefix).parent.name == "envs"
    doctor = ROOT / "helpers" / "doctor.py"
    wanted = ROOT / "requirements.txt"
    if OWN.is_file() and not same_python(OWN):
        return (
            "The course's folder has a Python of its own, in .venv. Choose it as the kernel in VS "
            "Code, or open the notebooks with it:",
            run(OWN, "-m", "jupyter", "lab", ROOT / "notebooks"),
            "To check it, run:",
            run(OWN, doctor),
        )
    if not in_venv and not in_conda:
        return (
            "Give the course a Python of its own, with what it uses. One after the other, run:",
            with_python("-m", "venv", OWN.parents[1]),
            run(OWN, "-m", "pip", "install", "-r", wanted),
            run(OWN, doctor),
        )
    pip = () if importlib.util.find_spec("pip") else (with_python("-m", "ensurepip"),)
    return (
        "Install what the course uses:",
        *pip,
        with_python("-m", "pip", "install", "-r", wanted),
    )


def same_python(path):
    """Tell whether a path is that of the Python that runs now.

    The Pythons of all environments may be links to one file, so the folders must be equal too.
    """
    here, path = Path(sys.executable), Path(path)
    return path.resolve() == here.resolve() and path.parent.resolve() == here.parent.resolve()


def python():
    """Whether the course runs on this Python."""
    said = "{}.{}.{}, ".format(*sys.version_info[:3]) + sys.executable
    wanted = "Install Python {}.{} or newer, in 64 bits (python.org has it).".format(*OLDEST)
    again = "Then follow Start in the course's README.md with that one."
    if sys.version_info < OLDEST:
        return Finding("mend", f"{said}: too old", (wanted, again))
    if sys.maxsize < 2**32:
        return Finding("mend", f"{said}: made for 32 bits, and PyTorch is not", (wanted, again))
    return Finding("ok", said)


def course():
    """Whether the course is whole, and alone with its name."""
    lost = [f"data/{name}" for name in DATA if not (ROOT / "data" / name).is_file()]
    if lost:
        advice = "Download the whole course anew.", "Or, where git fetched it, run:"
        fetch = run("git", "-C", ROOT, "checkout", "--", *lost)
        return Finding("mend", f"{', '.join(lost)} missing from {ROOT}", (*advice, fetch))
    elsewhere = [folder for folder in sys.path if Path(folder).resolve() != ROOT]
    other = PathFinder.find_spec("helpers", elsewhere)
    if other is not None and other.origin is not None:
        advice = (
            "The notebooks find the course's own all the same. Where an import from helpers fails "
            "in code of yours, uninstall the other one, or rename its folder.",
        )
        return Finding("look", f"another package is called helpers too: {other.origin}", advice)
    return Finding("ok", f"all of it is in {ROOT}")


def missing():
    """List the packages that are not installed."""
    specs = {name: importlib.util.find_spec(module) for name, module in MODULES.items()}
    # what a failed uninstall leaves is a folder without an origin
    return [name for name, spec in specs.items() if spec is None or spec.origin is None]


def fault(name):
    """Import a package; returns the first line of what stops it, "" for nothing."""
    try:
        importlib.import_module(MODULES[name])
    except Exception as error:  # a damaged package can raise anything
        first = (str(error).splitlines() or [""])[0]
        return f"{type(error).__name__}: {first[:200]}"
    return ""


def packages():
    """Whether the packages are there, new enough, and start."""
    import tomllib

    absent = missing()
    if absent:
        advice = install()
        if "torch" in absent and sys.platform == "darwin" and machine() == "x86_64":
            advice = (
                "This Python is made for Intel processors, and there is no new PyTorch for them. "
                "On a Mac with an Apple processor, install Python from python.org and use that "
                "one; on one with an Intel processor, open the notebooks in Colab.",
            )
        return Finding("mend", f"missing: {', '.join(absent)}", advice)
    for name in MODULES:
        stopped = fault(name)
        if stopped:
            return Finding("mend", f"{name} does not start: {stopped}", anew(name))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = dict(re.findall(r"^([\w-]+) *>= *([\d.]+)", "\n".join(project["dependencies"]), re.M))
    have = {name: sys.modules[module].__version__ for name, module in MODULES.items()}
    old = [
        f"{name} {have[name]} (needed: {oldest[name]})"
        for name in oldest
        if numbers(have[name]) < numbers(oldest[name])
    ]
    if old:
        return Finding("mend", f"too old: {', '.join(old)}", install())
    said = []
    for name, version in have.items():
        other = versions_tried().get(name)
        same = other in (None, version.split("+")[0])
        said.append(f"{name} {version}" + ("" if same else f" (tested: {other})"))
    return Finding("ok", ", ".join(said))


def numbers(version):
    """Read a version as numbers that can be compared: "2.13.0+cpu" as [2, 13, 0]."""
    return [int(number) for number in re.findall(r"\d+", version.split("+")[0])]


def versions_tried():
    """Read the versions in requirements.txt; returns {name: version}."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w-]+)==([\w.]+)", lines, re.M))


def anew(name):
    """Say how to mend a package that is there and does not start."""
    version = versions_tried().get(name)
    wanted = f"{name}=={version}" if version else name
    again = with_python("-m", "pip", "install", "--force-reinstall", wanted)
    if name == "torch" and WINDOWS:
        return (
            "Windows may lack a part that PyTorch needs, the Visual C++ Redistributable. Download "
            "it, run it, and start the computer anew:",
            "    " + REDISTRIBUTABLE,
            "If that does not help, install PyTorch once more:",
            again,
        )
    return "Install it once more:", again


def kernel():
    """Whether notebooks run on this same Python."""
    if any(importlib.util.find_spec(name) is None for name in ["jupyter_client", "ipykernel"]):
        return Finding("mend", "Jupyter is missing", install())
    from jupyter_client.kernelspec import KernelSpecManager

    spec = KernelSpecManager().get_kernel_spec("python3")
    started = spec.argv[0]
    bare = started in ("python", "python3", "python{}.{}".format(*sys.version_info[:2]))
    found = sys.executable if bare else shutil.which(started)  # Jupyter reads bare names so
    if found is None or not same_python(found):
        what = "a Python that is gone" if found is None else "another Python"
        advice = (
            f"The file kernel.json in {spec.resource_dir} says so. Without that folder notebooks "
            "run this Python. Jupyter removes it:",
            with_python("-m", "jupyter", "kernelspec", "remove", "python3"),
        )
        return Finding("mend", f"notebooks ask for {what}, {started}", advice)
    said = "notebooks run this Python"
    other = shutil.which("jupyter")
    if other and Path(other).parent.resolve() != Path(sysconfig.get_path("scripts")).resolve():
        advice = (
            f"But the word jupyter alone starts another one, {other}. Start yours with:",
            with_python("-m", "jupyter", "lab", ROOT / "notebooks"),
        )
        return Finding("look", said, advice)
    return Finding("ok", said)


def widgets():
    """Whether JupyterLab will show sliders."""
    if importlib.util.find_spec("jupyterlab") is None:
        said = "there is no JupyterLab in this Python; VS Code and Colab need none"
        advice = "Where you want it, run:", with_python("-m", "pip", "install", "jupyterlab")
        return Finding("look", said, advice)
    from jupyter_core.paths import jupyter_config_path, jupyter_path

    parts = [Path(folder, SLIDERS, "package.json") for folder in jupyter_path("labextensions")]
    if not any(part.is_file() for part in parts):
        again = "-m", "pip", "install", "--force-reinstall", "--no-deps", "jupyterlab_widgets"
        advice = "Install it, then start JupyterLab anew:", with_python(*again)
        return Finding("mend", "JupyterLab lacks the part that shows sliders", advice)
    configs = [Path(folder, "labconfig", "page_config.json") for folder in jupyter_config_path()]
    for config in filter(Path.is_file, configs):
        off = json.loads(config.read_text(encoding="utf-8")).get("disabledExtensions", {})
        if off.get(SLIDERS):
            advice = (
                f"{config} says so. Switch it on, then start JupyterLab anew:",
                with_python("-m", "jupyter", "labextension", "enable", SLIDERS),
            )
            return Finding("mend", "the part that shows sliders is switched off", advice)
        if SLIDERS in off:
            break  # what comes first counts
    return Finding("ok", "JupyterLab shows sliders")


def memory():
    """Whether there is room for the notebooks."""
    import psutil

    free = psutil.virtual_memory().available
    said = f"{free / 1e9:.1f} GB free"
    if free < ROOM:
        advice = (
            "Notebook 06 takes 0.6 GB, and the browser as much again. Close other programs, and "
            "shut down notebooks that you are done with.",
        )
        return Finding("look", said, advice)
    return Finding("ok", said)


def threads():
    """Whether the notebooks use a sensible number of threads."""
    import torch

    cores, asked = os.cpu_count() or 1, os.environ.get("OMP_NUM_THREADS", "1")
    unset = "Remove-Item Env:OMP_NUM_THREADS" if WINDOWS else "unset OMP_NUM_THREADS"
    advice = "In the terminal that starts Jupyter, run this first:", f"    {unset}"
    if not asked.isdecimal() or int(asked) < 1:
        return Finding(
            "mend", f"OMP_NUM_THREADS is {asked!r}, which is no number of threads", advice
        )
    if int(asked) > cores:
        said = f"OMP_NUM_THREADS is {asked}, and more than the {cores} cores here is slow"
        return Finding("look", said, advice)
    told = "OMP_NUM_THREADS" in os.environ
    why = "OMP_NUM_THREADS says" if told else "small models need no more"
    alone = torch.get_num_threads()
    said = f"notebooks use {asked} of {cores} cores, as {why} (PyTorch alone: {alone})"
    return Finding("ok", said)


def accelerator():
    """Which accelerator there is; nothing needs one."""
    import torch

    from helpers.train import pick_device

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a driver that is too old
        kind = pick_device().type
    if kind == "cpu":
        return Finding("ok", "none, and nothing in the course needs one")
    name = torch.cuda.get_device_name() if kind == "cuda" else "Apple's GPU"
    return Finding("ok", f"{name} ({kind}); helpers.train uses it, and the notebooks need none")


def speed():
    """How long the training in notebook 06 will take."""
    rate = steps_a_second()
    needed = MEASURING * STEPS / rate
    said = (
        f"{rate:.1f} training steps a second: notebook 06's {STEPS} take about {needed:.0f} seconds"
    )
    if needed > PATIENCE:
        advice = (
            "Close other programs, plug the computer in and switch battery saving off. It works "
            "all the same, with patience.",
        )
        return Finding("look", said, advice)
    return Finding("ok", said)


def steps_a_second(seconds=2.0):
    """Train the model of notebook 06 for a moment, on one thread; returns steps a second."""
    import torch

    from helpers.checkpoint import load_checkpoint
    from helpers.train import cross_entropy

    model, tokenizer = load_checkpoint()
    optimizer = torch.optim.AdamW(model.parameters())
    T = model.config.block_size
    idx = torch.randint(len(tokenizer), (32, T + 1))  # (B, T + 1)

    def step():
        loss = cross_entropy(model(idx[:, :-1]), idx[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step()  # the first is slower
        begin, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - begin < seconds:
            step()
            count += 1
        return count / (time.perf_counter() - begin)
    finally:
        torch.set_num_threads(before)


def ready():
    """Require what every notebook imports; else raise ImportError that says what to do.

    The setup cell calls this, so that a missing package is one sentence and not a long error.
    """
    absent = missing()
    stopped = "" if absent else fault("torch")
    if sys.version_info < OLDEST:
        wrong = "is {}.{}, and the course needs {}.{}".format(*sys.version_info[:2], *OLDEST)
    elif absent:
        wrong = f"lacks {', '.join(absent)}"
    elif stopped:
        wrong = f"cannot start torch ({stopped})"
    else:
        return
    raise ImportError(
        f"The Python that runs this notebook, {sys.executable}, {wrong}. To see what to do, open a "
        f"terminal in the course's folder, {ROOT}, and run: "
        + command(sys.executable, "-m", "helpers.doctor")
    )


CHECKS = {
    "Python": python,
    "course": course,
    "packages": packages,
    "kernel": kernel,
    "widgets": widgets,
    "memory": memory,
    "threads": threads,
    "accelerator": accelerator,
    "speed": speed,
}
FIRST = ["Python", "packages"]  # the checks after them need what they need


def attempt(check):
    """Run a check; one that fails itself is a finding too."""
    try:
        return check()
    except Exception as error:
        said = f"could not be checked ({type(error).__name__}: {error})"
        return Finding("look", said, ("If the notebooks fail as well:", *install()))


def lines_of(name, finding):
    """Write a finding, with what to do beneath it; only a command may be a long line."""
    fold = textwrap.TextWrapper(96, break_long_words=False, break_on_hyphens=False)
    fold.subsequent_indent = " " * 19
    lines = fold.wrap(f"{finding.mark:4}  {name:11}  {finding.said}")
    fold.initial_indent = fold.subsequent_indent = " " * 6
    for advice in finding.advice:
        lines += [f"      {advice}"] if advice.startswith(" ") else fold.wrap(advice)
    return lines


def main():
    argparse.ArgumentParser(
        prog="python -m helpers.doctor", description=__doc__.splitlines()[0]
    ).parse_args()
    sys.stdout.reconfigure(errors="backslashreplace")  # a console may lack letters of a path
    own = str(ROOT / "helpers")  # which Python puts first where it is given this file
    sys.path[:] = [str(ROOT), *(path for path in sys.path if path not in (own, str(ROOT)))]
    mend = 0
    for name, check in CHECKS.items():
        finding = attempt(check)
        print(*lines_of(name, finding), sep="\n", flush=True)
        mend += finding.mark == "mend"
        if finding.mark == "mend" and name in FIRST:
            break
    if mend:
        things = "1 thing to mend" if mend == 1 else f"{mend} things to mend, from the top"
        print(f"{things}. Then run this again.")
        sys.exit(1)
    print("This machine is ready.")


if __name__ == "__main__":
    main()
