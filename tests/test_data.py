"""The bundled files are those that data/README.md describes."""

import hashlib
import re

import pytest

from helpers.checkpoint import CHECKPOINT, read_checkpoint
from helpers.stories import entropy
from helpers.text import DATA

TEXT = (DATA / "README.md").read_text(encoding="utf-8")


@pytest.mark.stored
def test_the_table_gives_size_and_checksum_of_every_bundled_file():
    rows = re.findall(r"^\| `([^`]+)` .* \| (\d+) \| `(\w+)` \|$", TEXT, re.MULTILINE)
    assert len(rows) == 5
    for name, size, begins in rows:
        content = (DATA / name).read_bytes()
        assert len(content) == int(size)
        assert hashlib.sha256(content).hexdigest().startswith(begins)


def test_the_entropy_is_as_stated():
    exact = entropy()
    assert f"{exact.per_token:.4f} nats per token ({exact.per_character:.4f} per character)" in TEXT


def test_the_model_says_how_it_was_trained():
    trained = read_checkpoint(CHECKPOINT)["trained"]
    assert trained["command"] in TEXT
    assert {"steps", "held_out", "date"} < set(trained)
