"""Run every notebook in a fresh kernel and store its outputs with a clean diff.

python -m helpers.maintain.refresh [--excused] [notebook ...]
"""

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
EXCUSED = "nbval-ignore-output"
WIDGET = "application/vnd.jupyter.widget-view+json"
KEPT = ["tags", "jupyter"]  # which outputs are not compared, and which code is folded
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def refresh(path, excused=False):
    """Run the notebook at `path` and store its outputs there.

    A cell tagged nbval-ignore-output gives other timings and losses at every run, so what it has
    stored already stays, unless `excused` asks for new outputs. Raises nbclient's
    CellExecutionError where a cell fails, and stores nothing.
    """
    notebook = nbformat.read(path, as_version=4)
    earlier = {
        cell.id: cell.outputs for cell in notebook.cells if EXCUSED in cell.metadata.get("tags", [])
    }
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict(
            {name: cell.metadata[name] for name in KEPT if name in cell.metadata}
        )
        if cell.cell_type == "code":
            stays = earlier.get(cell.id) and not excused
            cell.outputs = earlier[cell.id] if stays else still(cell.outputs)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def still(outputs):
    """Keep what can be shown without a kernel: no progress bars, and of a widget what it says."""
    kept = []
    for output in outputs:
        data = output.get("data", {})
        bar = data.pop(WIDGET, None) and data.keys() == {"text/plain"}
        if output.get("name") != "stderr" and not bar:
            kept.append(output)
    return kept


def main():
    parser = argparse.ArgumentParser(
        prog="python -m helpers.maintain.refresh", description=__doc__.splitlines()[0]
    )
    parser.add_argument("notebooks", nargs="*", type=Path, help="paths (default: all)")
    parser.add_argument(
        "--excused", action="store_true", help="store new outputs of the excused cells as well"
    )
    given = parser.parse_args()
    for path in given.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        print(path.name)
        refresh(path.resolve(), given.excused)


if __name__ == "__main__":
    main()
