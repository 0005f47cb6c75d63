"""The README's picture of the ladder is what the code draws, and says what it shows."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image

from helpers import plots
from helpers.maintain import ladder

ROOT = Path(__file__).parent.parent
RUNGS = {rung.stem: rung for rung in ladder.rungs()}


def test_there_is_a_rung_for_every_notebook():
    assert list(RUNGS) == sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("stem", RUNGS)
def test_every_row_sums_to_1_and_gives_nothing_to_what_comes_after_it(stem):
    weights = RUNGS[stem].weights
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(len(weights)))
    assert weights.triu(1).abs().max() == 0


@pytest.mark.parametrize("stem", RUNGS)
def test_what_is_framed_is_found(stem):
    for row, column in RUNGS[stem].found:
        assert RUNGS[stem].weights[row].argmax() == column


def test_the_first_two_are_the_same_mean():
    first, second = (RUNGS[stem].weights for stem in ("01_loop_mean", "02_tril_matmul"))
    torch.testing.assert_close(first[: len(second), : len(second)], second)


def test_the_picture_draws_each_rung_and_leaves_no_figure_open():
    open_before = plt.get_fignums()
    drawn = ladder.ladder().figure.axes
    assert plt.get_fignums() == open_before
    for ax, rung in zip(drawn, RUNGS.values(), strict=True):
        cells = ax.collections[0].get_array().filled(0).reshape(rung.weights.shape)
        np.testing.assert_allclose(cells, plots.as_array(rung.weights))
        assert ax.get_ylim() == (len(cells), 0)  # row 0 on top


def test_the_stored_picture_is_the_one_that_the_code_draws():
    with Image.open(ladder.LADDER) as stored:
        assert stored.info[ladder.TEXT_FORM] == repr(ladder.ladder())
        assert stored.mode in ("P", "RGB")  # opaque, for pages with a dark background
        assert stored.width >= 2 * 830  # sharp where the README is shown
    assert ladder.LADDER.stat().st_size < 150_000


def test_the_readme_says_what_the_picture_shows():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"![{ladder.ladder().sentence}](pictures/ladder.png)" in readme


def test_another_weight_changes_the_text_form(monkeypatch):
    said = repr(ladder.ladder())
    monkeypatch.setattr(ladder, "mean_weights", lambda T: torch.eye(T))
    assert repr(ladder.ladder()) != said
