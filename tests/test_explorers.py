"""Every explorer shows, in picture and in words, what a direct computation gives."""

import base64
import html
import io
import math
import random
import re
import threading

import matplotlib.pyplot as plt
import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from helpers.checkpoint import SNAPSHOTS, load_checkpoint
from helpers.explorers import (
    canvas,
    fast_heads,
    loop_mean,
    positional,
    qkv_head,
    softmax_mask,
    transformer,
    tril_matmul,
)
from helpers.explorers import explorer as base
from helpers.text import load_text

MODULES = [loop_mean, tril_matmul, softmax_mask, positional, qkv_head, transformer, fast_heads]
STORIES = "\n".join(load_text("stories").splitlines()[:3])  # more tokens than the block holds
PROMPTS = [
    "",
    " ",
    "One",
    "One rainy night Ben heard a",
    "the fox",
    "One snowy morning Zoe lost her red hat. The fox ate it.",
    load_text("stories").splitlines()[0],
    STORIES,
    "One elephant",
    "42 <b>bold</b> ~",
]
each_explorer = pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.split(".")[-1])


def some_settings(controls, choose):
    """Choose a value for every control, limits included."""
    settings = {}
    for name, control in controls.items():
        if name == "prompt":
            settings[name] = choose.choice(PROMPTS)
        elif isinstance(control.value, bool):
            settings[name] = choose.random() < 0.5
        elif hasattr(control, "options"):
            settings[name] = choose.choice([value for _, value in pairs(control.options)])
        else:
            high = settings["T"] - 1 if name in ("t", "row") else control.max
            steps = round((high - control.min) / control.step)
            step = choose.choice([0, steps, choose.randint(0, steps), choose.randint(0, steps)])
            value = control.min + step * control.step
            settings[name] = value if isinstance(control.value, int) else round(value, 6)
    return settings


def pairs(options):
    return [option if isinstance(option, tuple) else (option, option) for option in options]


def pixels(explorer):
    return pixels_of(explorer.canvas)


def pixels_of(canvas):
    return np.asarray(Image.open(io.BytesIO(canvas.png())))


def drawn(explorer):
    """Read back from the artists of every panel the numbers that they draw."""
    found = {}
    for name, panel in explorer.canvas.panels.items():
        if isinstance(panel, canvas.Cells):
            found[name] = np.ma.filled(panel.image.get_array(), np.nan)
        elif isinstance(panel, canvas.Bars):
            bars = [path.vertices[:, 0].max() for path in panel.bars.get_paths()]
            found[name] = np.array(bars), np.array([a[0] for a, _ in panel.marks.get_segments()])
        else:
            band = panel.band.get_paths()[0].vertices[:-1, 1]
            N = len(panel.line.get_ydata())
            found[name] = panel.line.get_ydata(), band[:N], band[N : 2 * N][::-1]
    return found


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def entropy(weights):
    return -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=-1)


NUMBER = r"(-?\d+\.\d\d)"


def direct_loop_mean(T, t):
    x = loop_mean.INPUTS[:T].numpy()
    weights = np.array([[1 / (row + 1) if s <= row else 0 for s in range(T)] for row in range(T)])
    means = x.cumsum(axis=0) / np.arange(1, T + 1)[:, None]
    panels = {
        "inputs": x,
        "weights": weights[t][:, None],
        "means": means,
        "every row": weights,
    }
    said = {f"Position {t} .* become {NUMBER} and ": means[t, 0], f"and {NUMBER}.$": means[t, 1]}
    return panels, said


def direct_tril_matmul(T, row, column):
    x = tril_matmul.INPUTS[:T].numpy()
    wei = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
    out = np.array([[sum(wei[r, s] * x[s, c] for s in range(T)) for c in (0, 1)] for r in range(T)])
    panels = {
        "wei": wei,
        "x": x,
        "products": np.array([[wei[row, s] * x[s, column]] for s in range(T)]),
        "wei @ x": out,
    }
    said = {
        f"^Row {row} .* column {column} .* = {NUMBER}": x[: row + 1, column].mean(),
        f"1/(\\d+) · {x[row, column]:.0f} =": row + 1,
        f"(\\d+) of {T}.$": row + 1,
    }
    return panels, said


def direct_softmax_mask(T, spread, temperature, mask):
    scores = spread * softmax_mask.SCORES[:T, :T].double().numpy()
    hidden = np.triu(np.ones((T, T)), 1) == 1 if mask else np.zeros((T, T)) == 1
    weights = softmax(np.where(hidden, -np.inf, scores / temperature))
    most = np.log((~hidden).sum(axis=-1))
    panels = {
        "scores": np.where(hidden, np.nan, scores),
        "weights": weights,
        "row sums": np.ones((T, 1)),
        "entropy": (entropy(weights), most),
    }
    said = {
        f"entropy of a row is {NUMBER} nats": entropy(weights).mean(),
        f"have {NUMBER}.$": most.mean(),
    }
    future = 100 * np.triu(weights, 1).sum() / T
    if future > 0.1:
        said[f"{NUMBER} % lies above"] = future
    return panels, said


def direct_positional(T, n_embd, scheme, base):
    if scheme == "learned":
        table = load_checkpoint()[0].embed.posemb.weight.detach().double().numpy()[:64, :64]
        places = (table / np.sqrt(2 * (table**2).mean()))[:T, :n_embd]
    else:
        angles = np.arange(T)[:, None] * float(base) ** -(np.arange(n_embd) // 2 * 2 / n_embd)
        odd = np.arange(n_embd) % 2 == 1
        places = np.where(odd, np.cos(angles), np.sin(angles)) * (scheme == "sinusoidal")
    lengths = np.linalg.norm(places, axis=1)
    lengths = np.where(lengths > 1e-8, lengths, np.inf)
    alike = places @ places.T / np.outer(lengths, lengths)
    diagonals = [np.diagonal(alike, d) for d in range(T)]

    tokens = positional.story()[1][:T, :n_embd].double().numpy()
    x, reverse = tokens + places, tokens[::-1] + places
    forwards = softmax(x @ x.T / n_embd) @ x
    backwards = (softmax(reverse @ reverse.T / n_embd) @ reverse)[::-1]
    change = np.sqrt(((backwards - forwards) ** 2).mean(axis=1))
    how_alike = tuple(np.array([f(d) for d in diagonals]) for f in (np.mean, np.max, np.min))
    panels = {"places": places, "how alike": how_alike, "read backwards": (change, np.array([]))}
    said = {
        f"{scheme}, {T} of them with n_embd = {n_embd}.* change by {NUMBER}": change.min(),
        f"to {NUMBER}.$": change.max(),
    }
    if scheme == "none":
        how_alike = tuple(np.full(T, np.nan) for _ in how_alike)
        panels["how alike"] = how_alike
    elif T > 1:
        said[f"neighbours are alike by {NUMBER}"] = diagonals[1].mean()
    return panels, said


def direct_qkv_head(T, head_size, scale, mask):
    q, k, v = qkv_head.DRAWN[:, :T, :head_size].double()
    scores = (q @ k.T).numpy()
    scaled = scores / math.sqrt(head_size) if scale else scores
    hidden = np.triu(np.ones((T, T)), 1) == 1 if mask else np.zeros((T, T)) == 1
    weights = softmax(np.where(hidden, -np.inf, scaled))
    given = {"scale": None if scale else 1.0, "is_causal": mask}
    panels = {
        "scores": scores,
        "scaled": scaled,
        "masked": np.where(hidden, np.nan, scaled),
        "weights": weights,
        "output": F.scaled_dot_product_attention(q, k, v, **given).numpy(),
        "entropy": (entropy(weights), np.log((~hidden).sum(axis=-1))),
    }
    said = {
        f"head_size = {head_size}, .* spread of {NUMBER}": scaled.std(),
        f"{T} by {T} cells.* entropy of {NUMBER}": entropy(weights).mean(),
    }
    return panels, said


def direct_transformer(prompt, layer, head, temperature, top_k, step):
    model, tokenizer = load_checkpoint()
    if step < 1000:
        model.load_state_dict(torch.load(SNAPSHOTS, weights_only=True)[step])
    text = "\n" + " ".join(prompt.split())
    text = text.replace("\nthe", "\n the").replace(" One", "One")
    idx = tokenizer.encode(text)[-model.config.block_size :]
    T, maps = len(idx), []
    hidden = np.triu(np.ones((T, T)), 1) == 1
    with torch.no_grad():
        x = model.embed(idx[None])
        for block in model.blocks:
            h = block.ln1(x)
            for part in block.attention.heads:
                scores = (part.query(h) @ part.key(h).mT)[0].numpy() / math.sqrt(48)
                maps.append(softmax(np.where(hidden, -np.inf, scores)))
            x = block(x)
        logits = model.lm_head(model.ln_f(x))[0, -1].double().numpy()
    ranks = (-logits).argsort()
    kept = 1 if temperature == 0 else len(logits) if top_k == "all" else top_k
    probs = np.zeros(len(logits))
    probs[ranks[:kept]] = softmax(logits[ranks[:kept]] / (temperature or 1))
    names = [f"layer {a}, head {b}" for a in (0, 1) for b in (0, 1)]
    one = maps[2 * layer + head]
    likely = np.sort(probs)[::-1][:10]
    panels = {**dict(zip(names, maps, strict=True)), "one head": one}
    panels["next token"] = likely, np.array([])
    said = {
        f"^After {step} steps.* {T} token.* layer {layer}, head {head} gives {NUMBER}": one[
            -1
        ].max(),
        f"with {NUMBER}.$": likely[0],
    }
    return panels, said


def most_held_by_single_heads(T, n_head, batch):
    """Bytes that MultiHeadAttention holds at most, by a list of what comes and what goes."""
    table, hidden, vectors = 4 * batch * T * T, T * T, 4 * batch * T * 96
    share = vectors // n_head
    head = [3 * share]  # q, k, v
    head += [table, table, hidden, table, -hidden]  # scores, scaled, where, hidden, done
    head += [table, -table, hidden, table, -hidden, -2 * table]  # softmax, cleaned, kept
    head += [share, -table - 3 * share]  # what it collects; scores, q, k, v go
    changes = n_head * head + [vectors, -n_head * share, vectors]  # side by side, projected
    return np.cumsum(changes).max()


def direct_fast_heads(T, n_head, batch, cache, timed):
    head = fast_heads.layers(n_head)[0].heads[0].double()
    x = fast_heads.INPUTS[0, :T].double()
    q, k = ((x @ part.weight.T).detach().numpy() for part in (head.query, head.key))
    head.float()
    hidden = np.triu(np.ones((T, T)), 1) == 1
    weights = softmax(np.where(hidden, -np.inf, q @ k.T / math.sqrt(96 // n_head)))
    token = 2 * 96 * (3 * 96 + 96) + 2 * 2 * T * 96  # q, k, v, proj; scores, weighted sum
    vector = 4 * batch * 96
    operations, held = [batch * T * token], [most_held_by_single_heads(T, n_head, batch)]
    operations.append(batch * token if cache else operations[0])
    held.append((2 * T + 5) * vector if cache else 5 * T * vector)
    if cache:
        weights[:-1] = np.nan
    million, kilo = np.array(operations) / 1e6, np.array(held) / 1e3
    panels = {
        "weights computed": weights,
        "operations": (million, million),
        "memory": (kilo, kilo),
    }
    said = {
        f"06 .* again: {NUMBER} million .*; 07": million[0],
        r"06 .* (\d+) kB .*; 07": round(kilo[0]),
        f"; 07 .*: {NUMBER} million": million[1],
        r"; 07 .* (\d+) kB": round(kilo[1]),
    }
    return panels, said


def check(module, explorer, settings):
    """Compare picture and words of an explorer with a direct computation."""
    explorer.set(**settings)
    assert explorer.settings == settings
    if re.search("elephant|42", settings.get("prompt", "")):
        assert explorer.sentence.startswith("The model does not know")
        assert "<img" not in explorer.picture.value
        assert html.escape(explorer.sentence) in explorer.picture.value
        return
    panels, said = globals()["direct_" + module.__name__.split(".")[-1]](**settings)
    shown = drawn(explorer)
    assert shown.keys() == panels.keys()
    for name, expected in panels.items():
        together = isinstance(expected, tuple)
        got, expected = (shown[name], expected) if together else ([shown[name]], [expected])
        for numbers, direct in zip(got, expected, strict=True):
            np.testing.assert_allclose(numbers, direct, atol=1e-4, rtol=1e-4, err_msg=name)
    for pattern, value in said.items():
        found = re.search(pattern, explorer.sentence)
        assert found, (pattern, explorer.sentence)
        assert float(found[1]) == pytest.approx(value, abs=0.00502), pattern
    assert f'alt="{html.escape(explorer.sentence)}"' in explorer.picture.value
    assert explorer.said.value == f'<p role="status">{html.escape(explorer.sentence)}</p>'


@each_explorer
def test_picture_and_words_agree_with_a_direct_computation(module):
    choose = random.Random(7)
    explorer = module.explore()
    check(module, explorer, explorer.start)
    for _ in range(50):
        check(module, explorer, some_settings(explorer.controls, choose))
    assert plt.get_fignums() == []


@pytest.mark.slow
@each_explorer
def test_a_thousand_settings_are_shown_without_an_error_and_memory_stays_flat(module):
    choose = random.Random(1)
    explorer = module.explore()
    for number in range(1000):
        if number == 100:
            before = psutil.Process().memory_info().rss
        check(module, explorer, some_settings(explorer.controls, choose))
    assert psutil.Process().memory_info().rss - before < 20e6
    assert plt.get_fignums() == []


@each_explorer
def test_a_picture_does_not_depend_on_what_was_shown_before(module):
    choose = random.Random(3)
    explorer = module.explore()
    size = pixels(explorer).shape
    for _ in range(6):
        settings = some_settings(explorer.controls, choose)
        explorer.set(**settings)
        fresh = module.explore()
        fresh.set(**settings)
        assert explorer.picture.value == fresh.picture.value
        if "<img" in explorer.picture.value:
            assert np.array_equal(pixels(explorer), pixels(fresh))
        assert pixels(explorer).shape == size


@pytest.mark.parametrize(("module", "name"), [(loop_mean, "t"), (transformer, "temperature")])
def test_many_quick_changes_end_on_the_last_value(module, name):
    explorer = module.explore()
    control = explorer.controls[name]
    for number in range(30):
        control.value = control.min + number % 7 * control.step
    check(module, explorer, {**explorer.start, name: control.min + 29 % 7 * control.step})


@each_explorer
def test_reset_goes_back_to_the_start_and_draws_once(module):
    explorer = module.explore()
    first = explorer.picture.value
    explorer.set(**some_settings(explorer.controls, random.Random(2)))
    drawings = []
    explorer.look = lambda **settings: drawings.append(settings) or module.look(**settings)
    explorer.view.children[0].children[-1].click()
    assert explorer.settings == explorer.start
    assert explorer.picture.value == first
    assert drawings == [explorer.start]


@each_explorer
def test_what_a_notebook_stores_is_a_picture_and_what_it_says(module, monkeypatch):
    shown = []
    monkeypatch.setattr(base, "display", lambda data, **how: shown.append((data, how)))
    explorer = module.explore()
    explorer._ipython_display_()
    (picture, how), (said, _) = shown
    stored = np.asarray(
        Image.open(io.BytesIO(base64.b64decode(picture["image/png"]))).convert("RGB")
    )
    assert np.abs(stored.astype(int) - pixels(explorer)).mean() < 1  # of 255
    assert how["metadata"]["image/png"]["alt"] == said["text/plain"] == explorer.sentence
    assert picture["text/plain"] == repr(explorer)
    assert repr(explorer).startswith(explorer.sentence)
    assert all(f"{name} = {value!r}" in repr(explorer) for name, value in explorer.start.items())
    assert picture[base.WIDGET]["model_id"] == explorer.view.model_id
    assert said[base.WIDGET]["model_id"] == explorer.said.model_id
    assert said["text/html"] == explorer.said.value


@each_explorer
def test_the_text_form_changes_with_every_control(module):
    explorer = module.explore()
    others = {"prompt": "One fox", "scheme": "learned", "step": 100, "top_k": 1, "base": 10}
    others |= {"mask": False, "scale": False, "spread": 2.0, "temperature": 2.0}
    others |= {"layer": 1, "head": 1, "column": 1}
    others |= {"n_head": 1, "cache": True, "timed": True}
    start = dict(explorer.start)
    if "prompt" in start:
        start["prompt"] = "One rainy night Ben heard a"  # many tokens may follow
    for name, control in explorer.controls.items():
        explorer.set(**start)
        before = explorer.sentence, explorer.numbers
        explorer.set(**{name: others[name] if name in others else control.min})
        assert (explorer.sentence, explorer.numbers) != before, name


@pytest.mark.parametrize(("module", "name"), [(loop_mean, "t"), (tril_matmul, "row")])
def test_a_position_stays_among_the_positions(module, name):
    explorer = module.explore()
    seen = []
    explorer.look = lambda **settings: seen.append(settings) or module.look(**settings)
    explorer.set(**{"T": 40, name: 39})
    explorer.controls["T"].value = 3
    assert explorer.settings == {**explorer.start, "T": 3, name: 2}
    assert all(settings[name] < settings["T"] for settings in seen)
    explorer.controls["T"].value = 1
    assert explorer.settings[name] == 0


def test_an_impossible_setting_is_said_in_the_pictures_place_and_the_next_brings_it_back():
    explorer = transformer.explore()
    first, size = explorer.picture.value, explorer.canvas.size
    explorer.controls["prompt"].value = "One rainy <i>elephant</i>"
    assert "does not know" in explorer.sentence
    assert 'role="status"' in explorer.picture.value
    assert "<i>" not in explorer.picture.value
    assert f"width:{size[0]}px; max-width:100%" in explorer.picture.value
    assert f"aspect-ratio:{size[0]}/{size[1]}" in explorer.picture.value
    assert explorer.said.value == ""
    explorer.controls["prompt"].value = transformer.PROMPT
    assert explorer.picture.value == first


def test_a_prompt_longer_than_the_block_is_cut_and_that_is_said():
    explorer = transformer.explore()
    explorer.controls["prompt"].value = STORIES
    assert re.search(r"reading 88 tokens \(the \d+ before them do not fit", explorer.sentence)
    assert drawn(explorer)["one head"].shape == (88, 88)


def test_numbers_stand_in_their_cells_and_only_where_there_is_room():
    panel = canvas.Cells(signed=True, vmax=1e9)  # so all cells have one colour
    picture = canvas.Canvas([(2.0, {"cells": (panel, 2.0)})])

    def inside(matrix):
        picture.draw({"cells": {"matrix": matrix}})
        left, bottom, width, height = map(round, panel.ax.bbox.bounds)
        return pixels_of(picture)[-bottom - height : -bottom, left : left + width]

    for row, column in [(0, 0), (1, 2)]:
        plain, marked = np.zeros((2, 3)), np.zeros((2, 3))
        marked[row, column] = 8
        places = np.argwhere((inside(plain) != inside(marked)).any(axis=-1))
        cell = places // np.divide(inside(marked).shape[:2], marked.shape)
        assert (cell == [row, column]).all()
        assert len(places) > 20
    crowd = inside(np.full((30, 30), 0.123))[3:-3, 3:-3]
    assert (crowd == crowd[0, 0]).all()


def test_two_threads_that_move_controls_at_once_leave_the_picture_of_what_is_set():
    explorer = softmax_mask.explore()

    def move(name, values):
        for value in values:
            explorer.controls[name].value = value

    for turn in range(3):
        threads = [
            threading.Thread(target=move, args=("T", [3, 20, 7, 40, 12 + turn])),
            threading.Thread(
                target=move, args=("mask", [False, True, False, True, bool(turn % 2)])
            ),
            threading.Thread(target=move, args=("spread", [0.5, 2.0, 3.0, 1.5])),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fresh = softmax_mask.explore()
        fresh.set(**explorer.settings)
        assert explorer.picture.value == fresh.picture.value
        assert explorer.said.value == fresh.said.value


def test_a_value_that_differs_by_rounding_alone_is_not_drawn_again():
    explorer = softmax_mask.explore()
    explorer.look = None
    explorer.controls["temperature"].value = 1.0000000000000002  # min + 9 steps
    assert explorer.controls["temperature"].value != 1
    assert explorer.settings == explorer.start


def test_what_a_layer_costs_is_what_was_predicted_to_the_last_operation_and_byte():
    choose = random.Random(4)
    settings = [(1, 1, 1), (1, 96, 4), (2, 3, 3), (128, 12, 4), (128, 1, 1)]
    for _ in range(40):
        n_head = choose.choice([1, 2, 3, 4, 6, 8, 12, 16])
        settings.append((choose.randint(1, 128), n_head, choose.randint(1, 4)))
    for setting in settings:
        assert fast_heads.predict(*setting) == fast_heads.count(*setting), setting


def test_both_layers_and_the_cache_give_the_same_at_the_settings_that_are_counted():
    with torch.no_grad():
        works = fast_heads.works(T=33, n_head=6, batch=3)
        (slow, given, _), (fast, also, _), (after, cached, _) = works.values()
        _, _, kept, past = cached
        out = slow(*given)
        torch.testing.assert_close(fast(*also), out, atol=1e-5, rtol=1e-5)
        kept[:] = torch.stack(fast.queries_keys_values(*given)[1:])
        kept[:, :, :, past:] = torch.nan  # the new token brings its own
        torch.testing.assert_close(after(*cached), out[:, -1:], atol=1e-5, rtol=1e-5)
    assert kept.nbytes == works["07 + cache"][2]


def test_times_are_said_only_where_they_are_asked_for():
    explorer = fast_heads.explore()
    numbers = explorer.numbers
    assert " ms" not in explorer.sentence
    for cache in (False, True):
        explorer.set(timed=True, cache=cache)
        single, fast = map(float, re.findall(r"(\d+\.\d\d) ms", explorer.sentence))
        assert 0 < single
        assert 0 < fast
    explorer.set(**explorer.start)
    assert explorer.numbers == numbers
    assert " ms" not in explorer.sentence


def test_heads_that_share_no_channels_evenly_are_refused():
    with pytest.raises(ValueError, match=r"n_embd = 96 does not split among n_head = 5"):
        fast_heads.look(**{**fast_heads.explore().start, "n_head": 5})


def test_looking_at_costs_draws_no_random_numbers_from_the_reader():
    state = torch.get_rng_state()
    fast_heads.layers.cache_clear()
    fast_heads.explore()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_control_that_there_is_not_is_refused_and_the_picture_is_that_of_the_settings():
    explorer = fast_heads.explore()
    with pytest.raises(ValueError, match=r"no control \['n_heads'\]; there are T, n_head, batch"):
        explorer.set(T=9, n_heads=2)
    assert explorer.settings["T"] == 64
    with pytest.raises(Exception, match="selection"):
        explorer.set(T=9, n_head=5)
    assert explorer.sentence.startswith("T = 9, n_head = 4")


@pytest.mark.parametrize("T", [4, 64, 128])
def test_a_frame_leaves_what_it_frames_to_be_seen(T):
    matrix, seen = np.zeros((T, T)), []
    matrix[-1] = 1
    picture = canvas.Canvas([(2.0, {"cells": (canvas.Cells(), 2.0)})])
    for frame in (None, (T - 1, 0, 1, T)):
        picture.draw({"cells": {"matrix": matrix, "frame": frame}})
        red, green, blue = np.moveaxis(pixels_of(picture).astype(int), -1, 0)
        seen.append(((red < 30) & (green < 70) & (blue > 80)).sum())  # the blue of weight 1
    assert seen[1] > 0.4 * seen[0] > 50
