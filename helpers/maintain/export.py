"""Write the notebooks as web pages that need nothing but a browser, with the README as their index.

python -m helpers.maintain.export [--to FOLDER]
"""

import argparse
import logging
import re
import shutil
import warnings
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
from latex2mathml.converter import convert
from mistune.plugins.table import render_table, render_table_cell
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from helpers.maintain.refresh import NOTEBOOKS

ROOT = NOTEBOOKS.parent
README = ROOT / "README.md"
PAGES = ROOT / "html"
# of the forms of an output, a page shows the first that it has
FORMS = ["text/markdown", "text/html", "image/png", "text/plain"]
# the colours of code; those of this style stand out from its background
COLOURS = HtmlFormatter(style="default").get_style_defs(".highlight")


class Renderer(IPythonRenderer):
    """Markdown as HTML that loads nothing: formulas as MathML, links between pages.

    `folder` holds the file that the Markdown is from; `files` collects what else it links to.
    """

    def __init__(self, folder):
        super().__init__(escape=False, path=str(folder))
        self.files = set()

    def heading(self, text, level, **attrs):
        name = anchor(re.sub("<.*?>", "", text))
        return f'<h{level} id="{name}">{text}</h{level}>\n'

    def link(self, text, url, title=None):
        return super().link(text, self.address(url), title)

    def image(self, text, url, title=None):
        return text if urlsplit(url).netloc else super().image(text, self.address(url), title)

    def inline_math(self, body):
        return convert(body)

    def block_math(self, body):
        return f'<span class="wide">{convert(body, display="block")}</span>'

    def table(self, text):
        return f'<div class="wide">{render_table(self, text)}</div>\n'

    def table_cell(self, text, align=None, head=False):
        cell = render_table_cell(self, text, align, head and text != "")
        return cell.replace("<th", '<th scope="col"')

    def address(self, url):
        """Turn an address that leads from a file of the course to another into one between pages.

        Raises ValueError where it leads nowhere.
        """
        parts = urlsplit(url)
        if parts.scheme or parts.netloc:
            return url
        place = f"#{anchor(unquote(parts.fragment))}" if parts.fragment else ""
        if not parts.path:
            return place
        target = Path(self.path, unquote(parts.path)).resolve()
        if not target.is_file() or not target.is_relative_to(ROOT):
            raise ValueError(f"{url} leads nowhere; link to a file of the course")
        if target == README or target.suffix == ".ipynb":
            return page_name(target) + place
        self.files.add(target)
        return target.relative_to(ROOT).as_posix()


class Refusal(logging.Handler):
    """Takes every warning for an error."""

    def emit(self, record):
        raise ValueError(record.getMessage())


def anchor(words):
    """Name the place of a heading as GitHub does.

    >>> anchor("Move `t`, and `T`")
    'move-t-and-t'
    """
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


def page_name(path):
    """Name the page that shows a file."""
    return "index.html" if path == README else f"{path.stem}.html"


def read(path):
    """Read a notebook, or Markdown as a notebook with one cell."""
    if path.suffix == ".ipynb":
        return nbformat.read(path, as_version=4)
    text = path.read_text(encoding="utf-8")
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])


def title_of(notebook):
    """Return the first heading of a notebook."""
    return re.search(r"^# (.+)", notebook.cells[0].source, re.MULTILINE)[1]


def drop_captions(notebook):
    """Take out the sentence under each picture: a page shows its alt text there.

    Raises ValueError for a picture without alt text.
    """
    for cell in notebook.cells:
        alt, kept = None, []
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if alt is None or data.get("text/plain") != alt:
                kept.append(output)
            alt = None
            if "image/png" in data:
                alt = output.metadata.get("image/png", {}).get("alt")
                if not alt:
                    raise ValueError(
                        f"a picture of cell {cell.id} has no alt text; draw it with helpers.plots"
                    )
        if "outputs" in cell:
            cell.outputs = kept


def render(notebook, folder, around):
    """Turn a notebook from a folder into a page; returns (HTML, files that it links to).

    `around` holds the page's title, and the pages before and after it and their index.
    """
    renderer = Renderer(folder)
    log = logging.Logger("export", logging.WARNING)
    log.addHandler(Refusal())
    exporter = HTMLExporter(
        template_name="page",
        extra_template_basedirs=[str(Path(__file__).parent)],
        filters={"markdown2html": MarkdownWithMath(renderer).render},
        config=Config(NbConvertBase={"display_data_priority": FORMS}),
        log=log,
    )
    drop_captions(notebook)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page, _ = exporter.from_notebook_node(notebook, {**around, "colours": COLOURS})
    return page, renderer.files


def export(folder):
    """Write all pages into a folder, with the files that they link to.

    Raises ValueError for a picture without alt text, a link that leads nowhere, and for all else
    that nbconvert warns of.
    """
    sources = {path: read(path) for path in [README, *sorted(NOTEBOOKS.glob("*.ipynb"))]}
    pages = [{"file": page_name(path), "title": title_of(sources[path])} for path in sources]
    for place, (path, notebook) in enumerate(sources.items()):
        print(path.name)
        around = {
            "title": pages[place]["title"],
            "index": pages[0] if place > 0 else None,
            "before": pages[place - 1] if place > 1 else None,
            "after": pages[place + 1] if place + 1 < len(pages) else None,
        }
        page, files = render(notebook, path.parent, around)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / pages[place]["file"]).write_text(page, encoding="utf-8", newline="\n")
        for file in files:
            copy = folder / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m helpers.maintain.export", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--to", type=Path, default=PAGES, metavar="FOLDER", help="(default: html, in the course)"
    )
    given = parser.parse_args()
    if given.to.exists() and not given.to.is_dir():
        parser.error(f"{given.to} is a file; name a folder")
    export(given.to)
    print(f"open {given.to / 'index.html'}")


if __name__ == "__main__":
    main()
