"""What a reader is asked to try in an explorer can be set there, and shows what is said."""

import re
from ast import literal_eval

import nbformat
import numpy as np
import pytest

from helpers.explorers import (
    fast_heads,
    loop_mean,
    positional,
    qkv_head,
    softmax_mask,
    transformer,
    tril_matmul,
)
from helpers.maintain.refresh import NOTEBOOKS
from helpers.stories import next_token_probs

EXPLORERS = {
    "01_loop_mean": loop_mean,
    "02_tril_matmul": tril_matmul,
    "03_softmax_mask": softmax_mask,
    "04_positional": positional,
    "05_qkv_head": qkv_head,
    "06_transformer": transformer,
    "07_fast_heads": fast_heads,
}


def shown(module, panel, **settings):
    """What a panel shows when these settings are changed from the start."""
    explorer = module.explore()
    explorer.set(**settings)
    content = module.look(**explorer.settings).panels[panel]
    return {part: np.asarray(given) for part, given in content.items()}


def advice(stem):
    """The list of things to try in a notebook."""
    cells = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4).cells
    (place,) = [number for number, cell in enumerate(cells) if "explore()" in cell.source]
    return cells[place - 1].source.split("Try this:")[1]


@pytest.mark.parametrize("stem", EXPLORERS)
def test_three_things_to_try_stand_before_each_explorer_and_can_be_set(stem):
    explorer = EXPLORERS[stem].explore()
    tries = [line for line in advice(stem).splitlines() if line.startswith("- ")]
    assert len(tries) == 3
    for line in tries:
        explorer.set(**explorer.start)
        for name, value in re.findall(r"`(\w+) = ([^`]+)`", line):
            value = value if value.isalpha() else literal_eval(value)
            explorer.set(**{name: value})
            assert explorer.settings[name] == value
        for name in re.findall(r"`(\w+)` (?:on and )?off", line):
            explorer.set(**{name: False})
        for name in re.findall(r"`(\w+)` on(?! and off)", line):
            explorer.set(**{name: True})
            assert explorer.settings[name] is True
        assert "<img" in explorer.picture.value


def test_01_what_comes_out_at_the_first_step_is_what_went_in():
    means, inputs = (shown(loop_mean, panel, t=0)["matrix"] for panel in ["means", "inputs"])
    assert (means[0] == inputs[0]).all()


def test_01_the_last_step_takes_an_eighth_of_everything():
    assert (shown(loop_mean, "weights", t=7)["matrix"] == 1 / 8).all()
    assert shown(loop_mean, "means", t=7)["matrix"][7].tolist() == [3.75, 3]


def test_01_means_jump_near_the_top_and_hardly_move_near_the_bottom():
    jumps = np.abs(np.diff(shown(loop_mean, "means", T=64, t=63)["matrix"], axis=0)).max(axis=1)
    assert jumps[:4].max() > 10 * jumps[-30:].max()


def test_02_the_example_of_the_notebook_can_be_set():
    assert shown(tril_matmul, "x", T=3)["matrix"].tolist() == [[2, 7], [6, 4], [6, 5]]
    out = shown(tril_matmul, "wei @ x", T=3, row=2, column=0)["matrix"]
    assert f"{out[2, 0]:.2f}" == "4.67"


@pytest.mark.parametrize(("settings", "count"), [({"row": 0}, 1), ({"T": 64, "row": 63}, 64)])
def test_02_so_many_weights_of_the_row_are_not_0(settings, count):
    explorer = tril_matmul.explore()
    explorer.set(**settings)
    assert f" {count} of {explorer.settings['T']}." in explorer.sentence


def test_03_equal_scores_reach_the_mark():
    entropy = shown(softmax_mask, "entropy", spread=0.0)
    np.testing.assert_allclose(entropy["lengths"], entropy["marks"], atol=1e-6)


def test_03_a_large_spread_gives_nearly_all_to_one_and_a_temperature_takes_it_back():
    weights = shown(softmax_mask, "weights", spread=5.0)["matrix"]
    assert (weights.max(axis=1) > 0.85).sum() > len(weights) / 2
    back = shown(softmax_mask, "weights", spread=5.0, temperature=5.0)["matrix"]
    np.testing.assert_allclose(back, shown(softmax_mask, "weights")["matrix"], atol=1e-6)


def test_03_without_the_mask_every_row_but_the_last_looks_ahead():
    weights = shown(softmax_mask, "weights", mask=False)["matrix"]
    assert (np.triu(weights, 1).sum(axis=1)[:-1] > 0.01).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)


def test_04_without_places_reading_backwards_changes_nothing():
    assert shown(positional, "read backwards", scheme="none")["lengths"].max() < 1e-6


def test_04_learned_places_have_a_wide_band_and_long_bars():
    learned = shown(positional, "how alike", scheme="learned")
    waves = shown(positional, "how alike")
    assert np.mean(learned["largest"] - learned["least"]) > 0.5
    assert np.max(waves["largest"] - waves["least"]) < 1e-5
    bars = shown(positional, "read backwards", scheme="learned")["lengths"]
    assert bars.mean() > 2 * shown(positional, "read backwards")["lengths"].mean()


def test_04_fast_waves_are_less_alike_and_change_more():
    fast, slow = (shown(positional, "how alike", base=base)["y"] for base in [10, 10000])
    assert fast[4] < 0.1
    assert slow[4] > 0.6
    fast, slow = (
        shown(positional, "read backwards", base=base)["lengths"].mean() for base in [10, 10000]
    )
    assert fast > 2 * slow


def test_05_unscaled_scores_lie_8_times_as_far_apart_and_rows_stare():
    scaled = shown(qkv_head, "scaled", head_size=64)["matrix"]
    wild = {"head_size": 64, "scale": False}
    np.testing.assert_allclose(shown(qkv_head, "scaled", **wild)["matrix"], 8 * scaled, rtol=1e-6)
    weights = np.sort(shown(qkv_head, "weights", **wild)["matrix"])
    assert (weights[:, -2:].sum(axis=1) > 0.99).all()
    entropy = shown(qkv_head, "entropy", **wild)
    assert entropy["lengths"].mean() < 0.1 * entropy["marks"].mean()


def test_05_with_one_channel_the_scale_changes_nothing():
    for panel in ["scaled", "weights", "output"]:
        on, off = (shown(qkv_head, panel, head_size=1, scale=scale) for scale in [True, False])
        assert (on["matrix"] == off["matrix"]).all()


def test_05_without_the_mask_every_row_changes_but_the_last():
    on, off = (shown(qkv_head, "weights", mask=mask)["matrix"] for mask in [True, False])
    change = np.abs(on - off).max(axis=1)
    assert (change[:-1] > 0.01).all()
    assert change[-1] < 1e-6


def test_06_the_head_finds_the_goat_in_the_course_of_training():
    rows = {step: shown(transformer, "one head", step=step)["matrix"][-1] for step in (0, 100, 300)}
    goat = transformer.PROMPT.split().index("goat") + 1  # START stands before it
    np.testing.assert_allclose(rows[0], 1 / len(rows[0]), atol=0.01)
    assert rows[100][goat] < 0.2
    assert rows[300].argmax() == goat
    assert rows[300][goat] > 0.8


def test_06_from_any_word_to_an_animal_to_the_goat():
    bars = {step: shown(transformer, "next token", step=step) for step in (0, 100, 300, 1250)}
    assert bars[0]["lengths"].max() < 0.02
    animals = {" goat", " lamb", " goose", " fox", " pony"}
    assert set(bars[100]["rows"][:5]) == animals
    assert bars[100]["rows"][0] == " goat"
    assert bars[100]["lengths"][0] < 2 * bars[100]["lengths"][1]
    for step in (300, 1250):
        assert bars[step]["rows"][0] == " goat"
        assert bars[step]["lengths"][0] > 0.98


def test_06_any_of_five_animals_may_come_as_the_grammar_says():
    prompt = "One rainy night Ben heard a"
    tokenizer = transformer.model_at(1250)[1]
    true = next_token_probs(tokenizer.split(prompt))
    bars = shown(transformer, "next token", prompt=prompt)
    assert set(bars["rows"][:5]) == true.keys()
    for token, probability in zip(bars["rows"][:5], bars["lengths"], strict=False):
        assert probability == pytest.approx(true[token], abs=0.03)
    two = shown(transformer, "next token", prompt=prompt, top_k=2)["lengths"]
    assert two[:2] == pytest.approx([0.5, 0.5], abs=0.05)
    assert (two[2:] == 0).all()


def test_07_with_the_cache_one_row_remains_and_one_part_in_T_of_the_operations():
    rows = shown(fast_heads, "weights computed", cache=True)["matrix"]
    assert np.isnan(rows[:-1]).all()
    np.testing.assert_allclose(rows[-1].sum(), 1, atol=1e-6)
    assert not np.isnan(shown(fast_heads, "weights computed")["matrix"]).any()
    single, cached = shown(fast_heads, "operations", cache=True)["lengths"]
    assert single == pytest.approx(64 * cached)
    fast, cached = (shown(fast_heads, "memory", cache=c)["lengths"][1] for c in (False, True))
    assert fast / 10 < cached < fast


def test_07_more_heads_cost_no_operation_and_only_06_more_memory():
    few, many = (shown(fast_heads, "operations", n_head=n)["lengths"] for n in (4, 12))
    assert (few == many).all()
    few, many = (shown(fast_heads, "memory", n_head=n)["lengths"] for n in (4, 12))
    assert 1.7 < many[0] / few[0] < 2
    assert many[1] == few[1]


def test_07_twice_the_positions_cost_more_than_twice_the_operations_and_07_twice_the_memory():
    short, long = (shown(fast_heads, "operations", T=T)["lengths"] for T in (64, 128))
    np.testing.assert_allclose(long / short, 2.5, atol=0.05)
    short, long = (shown(fast_heads, "memory", T=T)["lengths"] for T in (64, 128))
    assert long[0] / short[0] == pytest.approx(3.5, abs=0.05)
    assert long[1] / short[1] == pytest.approx(2)


def test_07_few_positions_leave_07_with_more_memory_than_06():
    single, fast = shown(fast_heads, "memory", T=16)["lengths"]
    assert single < fast
