"""Exported pages are complete, load nothing, and are open to everyone."""

import re
import sys
from itertools import pairwise
from urllib.parse import urlsplit

import nbformat
import pytest
from browser import chromium, missing
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers import plots
from helpers.maintain import export
from helpers.maintain.refresh import NOTEBOOKS

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
AROUND = {
    "title": 'Masks < "scores" & more',
    "index": {"file": "index.html", "title": "The course"},
    "before": {"file": "02_b.html", "title": "02 Before"},
    "after": {"file": "04_d.html", "title": "04 After"},
}
each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
each_page = pytest.mark.parametrize("name", ["index", *(path.stem for path in PATHS)])


def page_with(*cells, around=AROUND):
    """Render cells, or Markdown; returns the page as a tree."""
    cells = [new_markdown_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    return tree(export.render(new_notebook(cells=cells), NOTEBOOKS, around)[0])


def tree(page):
    return BeautifulSoup(page, "html.parser")


def shown(picture):
    """A code cell whose outputs are those of a picture."""
    outputs = [
        new_output("display_data", data=data, metadata=metadata)
        for data, metadata in picture.outputs()
    ]
    return new_code_cell("picture", outputs=outputs)


def test_a_page_has_a_language_a_title_and_ways_on():
    page = page_with("# Masks", new_code_cell("x = 1", outputs=[new_output("stream", text="one")]))
    assert page.html["lang"] == "en"
    assert page.title.text == AROUND["title"]
    assert page.main.h1.text == "Masks"
    assert [group["aria-label"] for group in page.select("[role=group]")] == ["code", "output"]
    for nav in [page.header.nav, page.footer.nav]:
        assert [link["href"] for link in nav("a")] == ["02_b.html", "index.html", "04_d.html"]
    ends = page_with("# Masks", around={**AROUND, "index": None, "before": None})
    assert [link["href"] for link in ends.header("a")] == ["04_d.html"]


def test_a_picture_has_its_alt_text_and_a_screen_reader_hears_it_once():
    picture = plots.heatmap([[1.0]], ['<"&'], title="A & B <i>")
    page = page_with("# Masks", shown(picture))
    assert page.img["alt"] == picture.sentence
    assert page.img["src"].startswith("data:image/png;base64,")
    assert page.figcaption.text == picture.sentence
    assert page.figcaption["aria-hidden"] == "true"
    page.figcaption.decompose()
    assert picture.sentence not in page.text


def test_a_picture_without_alt_text_is_refused():
    cell = shown(plots.heatmap([[1.0]]))
    cell.outputs[0].metadata = {}
    with pytest.raises(ValueError, match=rf"a picture of cell {cell.id} has no alt text"):
        page_with("# Masks", cell)


def test_what_nbconvert_warns_of_is_an_error():
    output = new_output("display_data", data={"text/html": '<img src="x.png">'})
    with pytest.raises(ValueError, match="Alternative text is missing"):
        page_with("# Masks", new_code_cell("x", outputs=[output]))


@pytest.mark.parametrize(
    ("formula", "words", "parts"),
    [
        (r"$\sqrt{hs}$", "hs", ["msqrt"]),
        (r"$$\frac{q\, k^{\top}}{\sqrt{hs}}$$", "qk\u22a4hs", ["mfrac", "msup", "msqrt"]),
        (r"$\text{n_embd}, \qquad x_1$", "n_embd,x1", ["mtext", "mspace", "msub"]),
        (r"$x \leftarrow x$", "x←x", []),
        (r"$a < b$", "a<b", []),
    ],
)
def test_formulas_become_mathml(formula, words, parts):
    page = page_with(f"# Masks\n\nSo {formula} it is.")
    assert page.math.text == words
    assert all(page.math.find(part) for part in parts)
    assert (page.math["display"] == "block") == formula.startswith("$$")
    assert "$" not in page.main.text


def test_links_lead_to_pages_and_to_copies_of_files():
    renderer = export.Renderer(NOTEBOOKS)
    assert renderer.address(f"{PATHS[1].name}#Three-rows") == f"{PATHS[1].stem}.html#three-rows"
    assert renderer.address("../README.md") == "index.html"
    assert renderer.address("#what-goes-wrong") == "#what-goes-wrong"
    assert renderer.address("https://example.org/a#B") == "https://example.org/a#B"
    assert renderer.files == set()
    assert renderer.address("../data/README.md") == "data/README.md"
    assert renderer.files == {export.ROOT / "data" / "README.md"}


@pytest.mark.parametrize("url", ["07_nothing.ipynb", "../data", "../../elsewhere.md"])
def test_links_that_lead_nowhere_are_refused(url):
    with pytest.raises(ValueError, match=re.escape(f"{url} leads nowhere; link to a file")):
        page_with(f"# Masks\n\n[there]({url})")


def test_headings_have_the_names_that_links_use():
    page = page_with("# Masks", "## Move `t`, and *T*: a test", "[up](#move-t-and-t-a-test)")
    assert page.main.a["href"] == f"#{page.h2['id']}"


def test_a_picture_from_elsewhere_is_not_loaded():
    page = page_with("# Masks\n\n[![Open in Colab](https://example.org/a.svg)](https://b.org)")
    assert page.img is None
    assert page.main.a.text == "Open in Colab"


def test_folds_hold_their_contents_with_code_in_colour():
    fold = "<details><summary>Solution</summary>\n\n```python\nx = None\n```\n\n</details>"
    page = page_with(f"# Masks\n\n{fold}\n\nAfter.")
    assert page.details.summary.text == "Solution"
    assert page.details.select_one(".highlight .kc").text == "None"
    assert "After." not in page.details.text


def test_tables_have_headers_that_say_what_they_are_of():
    page = page_with("# Masks\n\n| | right |\n|---|--:|\n| 1 | 2 |")
    assert [(cell.name, cell.get("scope")) for cell in page.thead.select("td, th")] == [
        ("td", None),  # a header without words would say nothing
        ("th", "col"),
    ]
    assert [cell.text for cell in page.tbody("td")] == ["1", "2"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "html").touch()
    monkeypatch.setattr(sys, "argv", ["export", "--to", str(tmp_path / "html")])
    with pytest.raises(SystemExit):
        export.main()
    assert "is a file; name a folder" in capsys.readouterr().err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All pages of the course."""
    folder = tmp_path_factory.mktemp("pages") / "new" / "html"
    export.export(folder)
    return folder


@pytest.fixture(scope="module")
def pages(folder):
    """All pages of the course as trees, by name."""
    files = folder.glob("*.html")
    return {file.stem: tree(file.read_text(encoding="utf-8")) for file in files}


@pytest.mark.stored
def test_every_notebook_has_a_page_and_the_readme_is_the_index(pages, folder):
    assert set(pages) == {"index", *(path.stem for path in PATHS)}
    assert pages["index"].h1.text == "Big Steps to Transformer"
    assert (folder / "LICENSE").is_file()


@pytest.mark.stored
@each_notebook
def test_pages_show_all_code_and_all_outputs(path, pages):
    page = pages[path.stem]
    code, words, pictures = [], page.main.text, []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            code.append(cell.source)
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                pictures.append(output.metadata["image/png"]["alt"])
            else:
                said = output.get("text") or output.data["text/plain"]
                assert said.strip() in words
    assert [block.text.rstrip("\n") for block in page.select(".code pre")] == code
    assert [picture["alt"] for picture in page("img")] == pictures
    assert pictures


@pytest.mark.stored
@each_page
def test_pages_load_nothing_from_elsewhere(name, pages, folder):
    page = pages[name]
    sources = [picture["src"] for picture in page("img")]
    assert all(url.startswith("data:image/") or (folder / url).is_file() for url in sources)
    assert not page.select("link, iframe, object, embed, source, video, script[src]")
    assert not re.search(r"url\(|@import", "".join(style.text for style in page("style")))


@pytest.mark.stored
@each_page
def test_links_of_pages_lead_somewhere(name, pages, folder):
    for link in pages[name]("a"):
        parts = urlsplit(link["href"])
        if parts.scheme not in ("http", "https"):
            target = parts.path or f"{name}.html"
            assert (folder / target).is_file(), link
            if parts.fragment:
                assert pages[target.removesuffix(".html")].find(id=parts.fragment), link
    names = [heading["id"] for heading in pages[name].select("[id]")]
    assert len(names) == len(set(names))


@pytest.mark.stored
@each_page
def test_headings_of_pages_go_down_one_at_a_time_from_the_title(name, pages):
    page = pages[name]
    levels = [int(heading.name[1]) for heading in page.find_all(re.compile("^h[1-6]$"))]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.title.text == page.h1.text


@pytest.mark.stored
@each_page
def test_tables_of_pages_have_headers(name, pages):
    for table in pages[name]("table"):
        assert table.select("thead th[scope=col]")


@pytest.mark.stored
@each_notebook
def test_every_formula_of_a_notebook_becomes_mathml(path, pages):
    cells = nbformat.read(path, as_version=4).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", prose, flags=re.DOTALL)
    page = pages[path.stem]
    assert len(page("math")) == len(re.findall(r"\$\$.+?\$\$|\$.+?\$", prose))
    assert not any(re.search(r"[\\${}]", formula.text) for formula in page("math"))


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.mark.slow
@each_page
def test_pages_are_open_to_everyone_and_ask_for_nothing(name, browser, folder):
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        missing("axe-playwright-python (tests/requirements-browser.txt)")
    page, asked = browser.new_page(viewport={"width": 390, "height": 844}), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((folder / f"{name}.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    found = Axe().run(page).response["violations"]
    where = [(finding["id"], [node["html"] for node in finding["nodes"]]) for finding in found]
    assert where == []
    assert {urlsplit(url).scheme for url in asked} <= {"file", "data"}
    for width in [390, 1280]:  # a phone, a laptop
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.close()
