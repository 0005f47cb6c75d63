"""checkpoint: a model in a file, whole or not at all, and back."""

import pytest
import torch

from helpers.checkpoint import CHECKPOINT, load_checkpoint, save_checkpoint
from helpers.maintain.pretrain import MOMENTS, SNAPSHOTS
from helpers.stories import Oracle
from helpers.text import CharTokenizer, WordTokenizer, load_corpus
from helpers.train import SIZES, estimate_loss
from helpers.transformer import Transformer, TransformerConfig


def a_model(**settings):
    torch.manual_seed(1)
    sizes = {"vocab_size": 5, "block_size": 4, "n_embd": 8, "n_head": 2, "n_layer": 1}
    return Transformer(TransformerConfig(**{**sizes, **settings}))


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


def same_weights(one, other):
    torch.testing.assert_close(one.state_dict(), other.state_dict(), atol=0, rtol=0)


@pytest.mark.parametrize("tokenizer", [WordTokenizer("a cat, a"), CharTokenizer("hello")])
def test_a_checkpoint_brings_back_model_and_tokenizer(tmp_path, tokenizer):
    model, path = a_model(vocab_size=len(tokenizer), dropout=0.25), tmp_path / "model.pt"
    save_checkpoint(path, model, tokenizer)
    assert set(torch.load(path)) >= {"config", "weights", "vocabulary"}
    loaded, learned = load_checkpoint(path)
    assert loaded.config == model.config
    assert not any(modes(loaded).values())
    same_weights(loaded, model)
    assert learned.vocabulary == tokenizer.vocabulary
    text = tokenizer.decode(range(len(tokenizer)))
    assert learned.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    tokenizer = CharTokenizer("abcde")
    save_checkpoint(path, a_model(), tokenizer)
    old = path.read_bytes()

    def fail_halfway(parts, file):
        with open(file, "wb") as unfinished:
            unfinished.write(old[: len(old) // 2])
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", fail_halfway)
        with pytest.raises(OSError, match="disk full"):
            save_checkpoint(path, a_model(n_layer=2), tokenizer)
    assert path.read_bytes() == old
    save_checkpoint(path, a_model(n_layer=2), tokenizer)
    assert load_checkpoint(path)[0].config.n_layer == 2
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


def test_a_place_that_cannot_be_written_to_is_named_with_what_to_do(tmp_path):
    with pytest.raises(OSError, match=r"m\.pt could not be written .*pass another place"):
        save_checkpoint(tmp_path / "none" / "m.pt", a_model(), CharTokenizer("abcde"))


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts.pop("tokenizer"),
        lambda parts: parts.update(tokenizer="BPE"),
        lambda parts: parts["config"].update(rope=1),
        lambda parts: parts["weights"].popitem(),
        lambda parts: parts["config"].update(n_embd=10),
    ],
)
def test_a_checkpoint_of_another_program_is_refused_by_name(tmp_path, change):
    path = tmp_path / "model.pt"
    save_checkpoint(path, a_model(), CharTokenizer("abcde"))
    parts = torch.load(path)
    change(parts)
    torch.save(parts, path)
    with pytest.raises(ValueError, match=r"model\.pt is no whole checkpoint"):
        load_checkpoint(path)


def test_a_checkpoint_that_is_not_there_is_named_with_what_makes_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'none\.pt'.*helpers\.train"):
        load_checkpoint(tmp_path / "none.pt")


@pytest.mark.parametrize("spoil", [lambda whole: b"text", lambda whole: whole[:2000]])
def test_a_file_that_is_no_checkpoint_is_refused_by_name(tmp_path, spoil):
    path = tmp_path / "model.pt"
    save_checkpoint(path, a_model(), CharTokenizer("abcde"))
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match=r"model\.pt is no whole checkpoint"):
        load_checkpoint(path)
    torch.save({"weights": {}}, path)
    with pytest.raises(ValueError, match=r"model\.pt is no whole checkpoint"):
        load_checkpoint(path)


def test_the_bundled_model_is_small_and_knows_the_stories():
    assert CHECKPOINT.stat().st_size < 2_000_000
    model, tokenizer = load_checkpoint()
    corpus = load_corpus("stories")
    assert tokenizer.vocabulary == corpus.tokenizer.vocabulary
    assert {name: getattr(model.config, name) for name in SIZES} == SIZES
    assert not any(modes(model).values())
    floor = estimate_loss(Oracle(tokenizer), corpus, block_size=SIZES["block_size"])
    assert floor < estimate_loss(model, corpus) < floor + 0.03


def test_the_bundled_snapshots_are_of_the_same_model_while_it_learned():
    assert SNAPSHOTS.stat().st_size < 2_000_000
    snapshots = torch.load(SNAPSHOTS)
    assert sorted(snapshots) == MOMENTS
    model, _ = load_checkpoint()
    corpus, losses = load_corpus("stories"), []
    for moment in MOMENTS:
        model.load_state_dict({name: weight.float() for name, weight in snapshots[moment].items()})
        losses.append(estimate_loss(model, corpus, batches=2))
    assert sorted(losses, reverse=True) == losses
