"""`publish` writes one address everywhere, changes nothing else, and nothing when run again."""

import re
import shutil

import nbformat
import pytest

from helpers.maintain import publish as command
from helpers.maintain.publish import publish
from helpers.maintain.refresh import NOTEBOOKS

STEMS = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


@pytest.fixture
def copy(tmp_path):
    """A copy of what publish writes to: (folder of notebooks, README)."""
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks")
    shutil.copy(NOTEBOOKS.parent / "README.md", tmp_path)
    return tmp_path / "notebooks", tmp_path / "README.md"


def texts(copy):
    notebooks, readme = copy
    return {path.name: path.read_bytes() for path in [*notebooks.glob("*.ipynb"), readme]}


def cells(path):
    return nbformat.read(path, as_version=4).cells


def test_every_notebook_gets_the_address_and_its_own_link(copy):
    notebooks, readme = copy
    assert len(publish("some-one/the.course", "v1.0", *copy)) == len(STEMS) + 1
    for stem in STEMS:
        title, *rest = cells(notebooks / f"{stem}.ipynb")
        setup = next(cell.source for cell in rest if cell.cell_type == "code")
        assert '\nADDRESS = "https://github.com/some-one/the.course#v1.0"\n' in setup
        link = f"https://colab.research.google.com/github/some-one/the.course/blob/v1.0/notebooks/{stem}.ipynb"
        assert title.source.endswith(f"[Open this notebook in Colab]({link})")
        assert f"(notebooks/{stem}.ipynb) · [Colab]({link})" in readme.read_text(encoding="utf-8")


def test_nothing_but_the_address_and_the_links_changes(copy):
    before = {stem: cells(copy[0] / f"{stem}.ipynb") for stem in STEMS}
    publish("owner/name", None, *copy)
    for stem, old in before.items():
        new = cells(copy[0] / f"{stem}.ipynb")
        changed = [
            place for place, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]
        ]
        setup = next(place for place, cell in enumerate(old) if cell.cell_type == "code")
        assert changed == [0, setup]
        lines = zip(old[setup].source.splitlines(), new[setup].source.splitlines(), strict=True)
        assert [after.split(" = ")[0] for line, after in lines if line != after] == ["ADDRESS"]
        assert old[setup].outputs == new[setup].outputs


def test_run_again_it_changes_nothing(copy):
    publish("owner/name", "v2", *copy)
    written = texts(copy)
    assert publish("owner/name", "v2", *copy) == []
    assert texts(copy) == written


def test_another_address_takes_the_place_of_the_first(copy):
    publish("first/one", "v1", *copy)
    publish("second/two", None, *copy)
    old = re.compile(rb"first/one|blob/v1/")
    assert not [name for name, text in texts(copy).items() if old.search(text)]
    publish("first/one", "v1", *copy)
    once = texts(copy)
    publish("second/two", None, *copy)
    publish("first/one", "v1", *copy)
    assert texts(copy) == once


@pytest.mark.parametrize(
    "repository",
    [
        "",
        "OWNER/REPO",
        "name",
        "owner/",
        "/name",
        "owner/name/more",
        "https://github.com/owner/name",
        "-o/name",
        "owner/name.git",
        "owner/na me",
        'owner/na"me',
        "öwner/name",
        "owner/name\n",
    ],
)
def test_another_form_is_refused_by_name_and_nothing_is_written(copy, repository):
    before = texts(copy)
    with pytest.raises(
        ValueError, match=re.escape(f"{repository!r} is not of the form OWNER/REPO")
    ):
        publish(repository, None, *copy)
    assert texts(copy) == before


@pytest.mark.parametrize("tag", ["", "-v1", "v 1", "v1#", 'v"1', "a/b", "a..b", "v1.", "v.lock"])
def test_a_tag_of_another_form_is_refused(copy, tag):
    with pytest.raises(ValueError, match=re.escape(f"{tag!r} is not a tag")):
        publish("owner/name", tag, *copy)


def test_a_notebook_without_the_line_is_named_and_nothing_is_written(copy):
    path = copy[0] / f"{STEMS[-1]}.ipynb"
    path.write_text(path.read_text(encoding="utf-8").replace("ADDRESS = ", "PLACE = "), "utf-8")
    before = texts(copy)
    with pytest.raises(ValueError, match=rf"{path.name}: .* 0 lines"):
        publish("owner/name", None, *copy)
    assert texts(copy) == before


def test_the_command_says_what_it_changed(copy, monkeypatch, capsys):
    monkeypatch.setattr(publish, "__defaults__", (None, *copy))
    monkeypatch.setattr(command, "README", copy[1])
    said = []
    for _ in range(2):
        monkeypatch.setattr("sys.argv", ["publish", "owner/name", "--tag", "v1"])
        command.main()
        said.append(capsys.readouterr().out.splitlines())
    files = [f"changed notebooks/{stem}.ipynb" for stem in STEMS] + ["changed README.md"]
    assert said[0][:-1] == files
    assert "git tag v1" in said[0][-1]
    assert said[1] == ["Nothing to change: everything says so already."]
