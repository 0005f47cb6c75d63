"""The commands for those who change the course run, and do what they say."""

import json
import re
from pathlib import Path

import pytest
import torch

from helpers.maintain import bench, parts, speed
from helpers.text import load_corpus
from helpers.train import cross_entropy

SHAKESPEARE = Path(__file__).resolve().parents[2] / "shared" / "data" / "tinyshakespeare.txt"


@pytest.mark.parametrize("name", list(parts.VARIANTS))
def test_each_variant_lacks_what_it_says_and_can_learn(name):
    idx = torch.tensor([[3, 1, 4, 1, 5]])
    model, whole = parts.build(name, 20, seed=1), parts.build("everything", 20, seed=1)
    differs = (model(idx) - whole(idx)).abs().max() > 0
    assert differs == (name != "everything")
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(cross_entropy(model(idx[:, :-1]), idx[:, 1:]))
        losses[-1].backward()
        optimizer.step()
    assert losses[2] < losses[1] < losses[0]


def test_the_table_in_the_notebook_has_five_seeds_of_every_variant():
    table = json.loads(parts.PARTS.read_text(encoding="utf-8"))
    assert list(table["variants"]) == list(parts.VARIANTS)
    assert all(len(row["losses"]) == 5 for row in table["variants"].values())


@pytest.mark.parametrize("option", ["--steps", "--seeds", "--threads"])
def test_a_benchmark_of_nothing_is_refused(option, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "speed", option, "0"])
    with pytest.raises(SystemExit):
        bench.main()
    assert f"{option[2:]} = 0 is no size; pass a whole number" in capsys.readouterr().err


@pytest.mark.slow
def test_the_benchmark_of_stories_runs(capsys):
    bench.bench_stories(3, seeds=1)
    assert "of 100 stories accepted" in capsys.readouterr().out


@pytest.mark.slow
def test_the_benchmark_of_shakespeare_runs(capsys):
    if not SHAKESPEARE.is_file():
        pytest.skip("Tiny Shakespeare is not beside the project")
    bench.bench_shakespeare(3, SHAKESPEARE)
    assert "over the whole held-out text" in capsys.readouterr().out


@pytest.mark.slow
def test_the_benchmark_of_the_race_runs_and_gives_both_losses(capsys):
    if not SHAKESPEARE.is_file():
        pytest.skip("Tiny Shakespeare is not beside the project")
    bench.bench_race(4, SHAKESPEARE)
    time, *losses = capsys.readouterr().out.splitlines()
    assert "time: 07 / 06" in time
    assert [line.split(": 0")[1][0] for line in losses] == ["6", "7"]
    slow, fast = (float(line.split(": 0")[1].split()[1]) for line in losses)
    assert slow == pytest.approx(fast, abs=0.011)


@pytest.mark.slow
def test_the_benchmark_of_speed_prints_one_table(monkeypatch, capsys):
    tiny = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 16}
    monkeypatch.setattr(speed, "SMALL", tiny)
    monkeypatch.setattr(speed, "LARGE", tiny)
    speed.bench_speed(2)
    head, more, *rows = capsys.readouterr().out.splitlines()
    assert f"on {torch.get_num_threads()} threads" in head
    assert [row.rsplit(": 07 / ", 1)[1].split()[0] for row in rows if ": 07 / " in row] == [
        *["torch.nn", "06", "product", "06", "torch.nn"] * 2
    ]
    assert sum("time: in bf16 / 07" in row for row in rows) == 2
    refused = [row for row in rows if "not compiled" in row]  # a machine without a C++ compiler
    assert sum("time: compiled / 07" in row for row in rows) + len(refused) == 2
    figures = [row[67:] for row in rows if row not in refused]
    assert all(re.match(r" +\d+\.\d\d( |$)", figure) for figure in figures)


TINY = {"n_layer": 2, "n_head": 3, "n_embd": 12, "block_size": 7}


@pytest.mark.parametrize("changed", ["06", "07", "torch.nn"])
def test_only_models_that_agree_are_measured(changed):
    models = speed.three_models(**TINY)
    speed.require_same(models)
    assert all(weight.grad is None for model in models.values() for weight in model.parameters())
    assert not any(model.training for model in speed.three_writers(**TINY).values())
    with torch.no_grad():
        models[changed].lm_head.weight[3, 4] += 0.1
    with pytest.raises(AssertionError):
        speed.require_same(models)


def test_gradients_must_agree_too_though_those_of_queries_are_small():
    models = speed.three_models(**TINY)
    queries = torch.arange(3 * 12)[:, None] < 12  # the first rows of q, k and v
    qkv = models["07"].blocks[0].attention.qkv.weight
    qkv.register_hook(lambda gradient: gradient.masked_fill(queries, 0.0))
    with pytest.raises(AssertionError):
        speed.require_same(models)


def test_rounds_go_back_and_forth():
    calls = []
    works = {name: lambda name=name: calls.append(name) for name in "AB"}
    times = speed.interleaved(works, rounds=3)
    assert "".join(calls) == "AB" + "AB" + "BA" + "AB"
    assert [len(times[name]) for name in "AB"] == [3, 3]


def test_a_row_gives_the_median_and_the_quartiles(capsys):
    speed.print_row("what", [5.0, 1.0, 3.0, 2.0, 4.0], "aim")
    assert capsys.readouterr().out.split() == ["what", "3.00", "2.00", "to", "4.00", "aim"]


@torch.no_grad()
def test_the_trigram_predicts_from_the_last_two_tokens():
    corpus = load_corpus("stories")
    model = bench.Trigram(corpus)
    text = "One rainy morning Mara lost her red hat. She"
    idx = corpus.tokenizer.encode(text)[None]
    probs = model(idx).softmax(dim=-1)[0]
    ids, before = corpus.train, idx[0, -2:]
    places = ((ids[:-2] == before[0]) & (ids[1:-1] == before[1])).nonzero().flatten()
    follows = ids[places + 2].bincount(minlength=len(corpus.tokenizer)) + 0.01
    torch.testing.assert_close(probs[-1], follows / follows.sum())
