"""Mark the exercises of a filled-in notebook, in a fresh kernel.

python -m helpers.checks --notebook PATH          a table
python -m helpers.checks --notebook PATH --json   the same for machines
"""

import argparse
import importlib
import json
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

from helpers.checks.marker import REPORT, tasks_of

COURSE = Path(__file__).resolve().parents[2] / "notebooks"
SLOW = "nbval-ignore-output"  # the tag of cells that time or train, which no exercise needs
SECONDS, SECONDS_TO_MARK = 60, 20  # for a cell of the notebook, and for an answer
ASKS = r"checks\.(\w+)\.\w+\("  # a cell of the notebook that calls a marker
MARK = """
import sys

for name in [name for name in sys.modules if name.startswith("helpers.checks")]:
    del sys.modules[name]  # whatever the notebook did to it
from helpers.checks.marker import report

report({stem!r}, {task!r}, globals())
"""


def mark_notebook(path):
    """Run a notebook and mark what it leaves; returns [{"name", "solved", "said"}, ...].

    A cell or an answer that fails, or that takes too long, does not stop the rest. Markers that
    were changed in the notebook are not used.
    Raises ValueError for a file that is no notebook of this course, or that stops its kernel.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise ValueError(f"{path} cannot be read as a notebook: {error}") from None
    stems = re.findall(ASKS, "\n".join(cell.source for cell in notebook.cells))
    if not stems or not (COURSE.parent / "helpers" / "checks" / f"{stems[0]}.py").is_file():
        raise ValueError(f"{path} has no exercises; pass a notebook of this course")
    tasks = list(tasks_of(importlib.import_module(f"helpers.checks.{stems[0]}")))
    markers = [nbformat.v4.new_code_cell(MARK.format(stem=stems[0], task=task)) for task in tasks]
    answered = [cell for cell in notebook.cells if SLOW not in cell.metadata.get("tags", [])]
    marking = [*markers, *(cell for cell in answered if re.search(ASKS, cell.source))]
    notebook.cells = [*answered, *markers]
    started = []
    client = NotebookClient(
        notebook,
        timeout_func=lambda cell: SECONDS_TO_MARK if cell in marking else SECONDS,
        interrupt_on_timeout=True,
        allow_errors=True,
        kernel_name="python3",
        extra_arguments=["--log-level=40"],  # errors only
        on_cell_start=lambda cell, cell_index: started.append(cell),
        resources={"metadata": {"path": str(COURSE)}},
    )
    try:
        client.execute()
    except DeadKernelError:
        raise ValueError(
            f"{path} stopped its kernel, in the cell that begins with "
            f"{started[-1].source.strip().splitlines()[0]!r}; mend or empty that cell"
        ) from None
    verdicts = [verdict_of(marker) for marker in markers]
    return [
        {"name": name, "solved": solved, "said": said or why_missing(name, answered)}
        for name, (solved, said) in zip(tasks, verdicts, strict=True)
    ]


def verdict_of(cell):
    """Read what a marker printed: (solved, said)."""
    printed = "".join(output.get("text", "") for output in cell.outputs)
    found = re.findall(f"^{REPORT}(.*)$", printed, re.MULTILINE)
    return json.loads(found[-1]) if found else (False, "not yet: it could not be marked")


def why_missing(name, cells):
    """Say why a notebook has no answer of a name: no cell makes one, or the cell fails."""
    makes = re.compile(rf"^(def|class) {name}\b|^{name} *=", re.MULTILINE)
    for cell in cells:
        if cell.cell_type == "code" and makes.search(cell.source):
            for output in cell.outputs:
                if output.output_type == "error":
                    return f"not yet: its cell fails with {output.ename}: {output.evalue}"
    return f"not yet: there is no {name}"


def main():
    parser = argparse.ArgumentParser(
        prog="python -m helpers.checks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--notebook", required=True, type=Path, help="a filled-in notebook")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    given = parser.parse_args()
    marked = {"notebook": str(given.notebook)}
    try:
        tasks = mark_notebook(given.notebook)
        marked |= {"solved": sum(task["solved"] for task in tasks), "of": len(tasks)}
        marked |= {"tasks": tasks}
    except ValueError as error:
        marked |= {"error": str(error)}
    if given.json:
        print(json.dumps(marked, indent=1))
    elif "error" not in marked:
        width = max(len(task["name"]) for task in tasks)
        for task in tasks:
            first, *_ = task["said"].splitlines()
            print(f"{task['name']:{width}}  {'solved' if task['solved'] else '      '}  {first}")
        print(f"{marked['solved']} of {marked['of']} solved")
    if "error" in marked:
        sys.exit(marked["error"])


if __name__ == "__main__":
    main()
