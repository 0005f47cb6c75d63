"""Mark the exercises of a filled-in notebook, in a fresh kernel.

python -m helpers.checks --notebook PATH          a table
python -m helpers.checks --notebook PATH --json   the same for machines
"""

import argparse
import json
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError

COURSE = Path(__file__).resolve().parents[2] / "notebooks"
SLOW = "nbval-ignore-output"  # the tag of cells that time or train, which no exercise needs
SECONDS = 60  # for one cell


def mark_notebook(path):
    """Run a notebook and mark what it leaves; returns [{"name", "solved", "said"}, ...].

    A cell that fails, or takes longer than a minute, does not stop the rest. Markers that were
    changed in the notebook are not used.
    Raises ValueError for a file that is no notebook of this course.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise ValueError(f"{path} cannot be read as a notebook: {error}") from None
    stems = re.findall(r"checks\.(\w+)\.\w+\(", "\n".join(cell.source for cell in notebook.cells))
    if not stems:
        raise ValueError(f"{path} has no exercises; pass a notebook of this course")
    last = f"from helpers.checks.marker import report\n\nreport({stems[0]!r}, globals())"
    kept = [cell for cell in notebook.cells if SLOW not in cell.metadata.get("tags", [])]
    notebook.cells = [*kept, nbformat.v4.new_code_cell(last)]
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        interrupt_on_timeout=True,
        allow_errors=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(COURSE)}},
    )
    try:
        client.execute()
        (output,) = notebook.cells[-1].outputs
        return json.loads(output["text"])
    except (DeadKernelError, KeyError, ValueError):
        raise ValueError(f"{path} stopped its kernel before it could be marked") from None


def main():
    parser = argparse.ArgumentParser(
        prog="python -m helpers.checks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--notebook", required=True, type=Path, help="a filled-in notebook")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    given = parser.parse_args()
    try:
        marked = mark_notebook(given.notebook)
    except ValueError as error:
        sys.exit(str(error))
    solved = sum(task["solved"] for task in marked)
    if given.json:
        print(json.dumps({"solved": solved, "of": len(marked), "tasks": marked}, indent=1))
        return
    width = max(len(task["name"]) for task in marked)
    for task in marked:
        first, *_ = task["said"].splitlines()
        print(f"{task['name']:{width}}  {'solved ' if task['solved'] else '      '}  {first}")
    print(f"{solved} of {len(marked)} solved")


if __name__ == "__main__":
    main()
