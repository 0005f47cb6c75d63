"""Say in every notebook and in the README where the course lives, so that Colab can fetch it.

python -m helpers.maintain.publish OWNER/REPO [--tag TAG]
"""

import argparse
import re

import nbformat

from helpers.maintain.refresh import NOTEBOOKS

GITHUB, COLAB = "https://github.com", "https://colab.research.google.com/github"
README = NOTEBOOKS.parent / "README.md"
REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/(?!.*\.git$)[\w.-]{1,100}", re.ASCII)
TAG = re.compile(r"(?!.*(\.\.|\.lock$|\.$))[A-Za-z0-9][\w.-]*", re.ASCII)
ADDRESS = re.compile(r'^ADDRESS = ".*"$', re.MULTILINE)
OPEN = "Open this notebook in Colab"


def address_line(repository, tag):
    """Write the setup cell's line: the course's git repository, and perhaps a tag of it."""
    address = f"{GITHUB}/{repository}" + (f"#{tag}" if tag else "")
    return f'ADDRESS = "{address}"'


def colab_link(said, stem, repository, tag):
    """Link to a notebook in Colab, as it is at the tag or at the tip of main."""
    return f"[{said}]({COLAB}/{repository}/blob/{tag or 'main'}/notebooks/{stem}.ipynb)"


def publish(repository, tag=None, notebooks=NOTEBOOKS, readme=README):
    """Write the address into every notebook, and links to Colab there and in the README.

    `repository` is OWNER/REPO on GitHub. Without `tag` the newest main is fetched. Outputs stay.
    Returns the paths of the files that changed: none where all says so already. Raises ValueError
    for another form of repository or tag, or where a notebook has no address to replace.
    """
    if not REPOSITORY.fullmatch(repository) or repository == "OWNER/REPO":
        raise ValueError(
            f"{repository!r} is not of the form OWNER/REPO; give the two names as they stand in "
            f"the repository's address, {GITHUB}/OWNER/REPO"
        )
    if tag is not None and not TAG.fullmatch(tag):
        raise ValueError(f"{tag!r} is not a tag; use letters, digits, dots, dashes, underscores")
    written = {}
    for path in sorted(notebooks.glob("*.ipynb")):
        written[path] = published(path, repository, tag)
    text = readme.read_text(encoding="utf-8")
    for path in written:
        text = re.sub(
            rf"(\(notebooks/{path.name}\))(?: · \[Colab\]\([^)]*\))?",
            lambda row, stem=path.stem: f"{row[1]} · {colab_link('Colab', stem, repository, tag)}",
            text,
        )
    written[readme] = text
    changed = [path for path, text in written.items() if path.read_text(encoding="utf-8") != text]
    for path in changed:
        path.write_text(written[path], encoding="utf-8", newline="\n")
    return changed


def published(path, repository, tag):
    """Return the text of the notebook at `path` with its address and its link to Colab."""
    notebook = nbformat.read(path, as_version=4)
    setup = next(cell for cell in notebook.cells if cell.cell_type == "code")
    setup.source, found = ADDRESS.subn(lambda _: address_line(repository, tag), setup.source)
    if found != 1:
        raise ValueError(f"{path.name}: its setup cell has {found} lines with ADDRESS, not one")
    title = notebook.cells[0]
    link = colab_link(OPEN, path.stem, repository, tag)
    title.source = re.sub(rf"\n\n\[{OPEN}\]\([^)]*\)$", "", title.source) + f"\n\n{link}"
    return nbformat.writes(notebook) + "\n"


def main():
    parser = argparse.ArgumentParser(
        prog="python -m helpers.maintain.publish", description=__doc__.splitlines()[0]
    )
    parser.add_argument("repository", metavar="OWNER/REPO", help="the course's place on GitHub")
    parser.add_argument("--tag", help="fetch this tag (default: the newest main)")
    given = parser.parse_args()
    try:
        changed = publish(given.repository, given.tag)
    except ValueError as error:
        parser.error(str(error))
    for path in changed:
        print(f"changed {path.relative_to(README.parent).as_posix()}")
    if not changed:
        print("Nothing to change: everything says so already.")
    elif given.tag:
        print(f"Commit, then: git tag {given.tag} && git push && git push origin {given.tag}")
    else:
        print("Commit, and push to the branch main.")


if __name__ == "__main__":
    main()
