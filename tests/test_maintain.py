"""The commands for those who change the course run, and do what they say."""

import json
from pathlib import Path

import pytest
import torch

from helpers.maintain import bench, parts
from helpers.text import load_corpus

SHAKESPEARE = Path(__file__).resolve().parents[2] / "shared" / "data" / "tinyshakespeare.txt"


@pytest.mark.parametrize("name", list(parts.VARIANTS))
def test_each_variant_lacks_what_it_says_and_still_learns(name):
    idx = torch.tensor([[3, 1, 4, 1, 5]])
    model, whole = parts.build(name, 20, seed=1), parts.build("everything", 20, seed=1)
    differs = (model(idx) - whole(idx)).abs().max() > 0
    assert differs == (name != "everything")
    model(idx).square().sum().backward()
    assert any(weight.grad is not None for weight in model.parameters())


def test_the_table_in_the_notebook_has_five_seeds_of_every_variant():
    table = json.loads(parts.PARTS.read_text(encoding="utf-8"))
    assert list(table["variants"]) == list(parts.VARIANTS)
    assert all(len(row["losses"]) == 5 for row in table["variants"].values())


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
