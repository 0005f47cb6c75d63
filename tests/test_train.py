"""train: losses that fall, runs that can be stopped, and checkpoints that come back."""

import math

import pytest
import torch
from torch.nn import functional as F

from helpers import plots, train
from helpers.text import CharTokenizer, WordTokenizer, load_text
from helpers.transformer import Transformer, TransformerConfig

V, BLOCK = 5, 4
IDS = torch.arange(V).repeat(40)


def a_model(**settings):
    torch.manual_seed(1)
    sizes = {"vocab_size": V, "block_size": BLOCK, "n_embd": 8, "n_head": 2, "n_layer": 1}
    return Transformer(TransformerConfig(**{**sizes, **settings}))


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


def stop(model, in_training, at_call):
    """Make a model raise KeyboardInterrupt at its nth call in training, or in evaluation."""
    calls = 0

    def interrupt(module, given):
        nonlocal calls
        calls += module.training == in_training
        if module.training == in_training and calls == at_call:
            raise KeyboardInterrupt

    model.register_forward_pre_hook(interrupt)


def same_weights(one, other):
    state = other.state_dict()
    assert list(one.state_dict()) == list(state)
    for name, weight in one.state_dict().items():
        torch.testing.assert_close(weight, state[name], atol=0, rtol=0)


def test_cross_entropy_is_the_mean_surprise_at_what_came_next():
    torch.manual_seed(1)
    logits, targets = torch.randn(2, 3, V), torch.randint(V, (2, 3))
    surprises = [
        -math.log(logits[b, t].softmax(dim=0)[targets[b, t]]) for b in range(2) for t in range(3)
    ]
    torch.testing.assert_close(train.cross_entropy(logits, targets).item(), sum(surprises) / 6)
    torch.testing.assert_close(train.cross_entropy(0 * logits, targets).item(), math.log(V))


def test_a_perfect_guess_costs_nothing():
    targets = torch.tensor([[0, 3, 1], [4, 2, 2]])
    assert train.cross_entropy(100.0 * F.one_hot(targets, V), targets) < 1e-3


def test_the_loss_falls_below_that_of_a_guess():
    model = a_model()
    history = train.train(model, IDS, IDS, steps=60, eval_every=25)
    assert history["step"] == [0, 25, 50, 60]
    for losses in (history["train"], history["val"]):
        assert losses[0] == pytest.approx(math.log(V), abs=0.1)
        assert losses[-1] < 0.5
        assert sorted(losses, reverse=True) == losses
    assert not any(modes(model).values())
    assert train.estimate_loss(model, IDS) == history["train"][-1]
    assert "held-out text goes from" in plots.loss_curve(history).sentence


def test_the_same_seed_trains_the_same_model():
    runs = []
    for other_seed in (1, 2):
        model = a_model()
        torch.manual_seed(other_seed)
        runs.append((train.train(model, IDS, IDS, steps=5, seed=3), model))
    assert runs[0][0] == runs[1][0]
    same_weights(runs[0][1], runs[1][1])


def test_stopping_keeps_what_was_learned_until_then(capsys):
    model = a_model()
    stop(model, in_training=True, at_call=7)
    history = train.train(model, IDS, IDS, steps=50, eval_every=1)
    assert history["step"] == [0, 1, 2, 3, 4, 5, 6]
    assert len(history["train"]) == len(history["val"]) == 7
    assert "stopped in step 7 of 50" in capsys.readouterr().out
    assert not any(modes(model).values())
    assert history["train"][-1] < history["train"][0]
    assert train.estimate_loss(model, IDS) == history["train"][-1]


@pytest.mark.parametrize("at_call", [17, 20, 25, 30])
def test_stopping_while_losses_are_measured_leaves_whole_rows(at_call):
    model = a_model()
    stop(model, in_training=False, at_call=at_call)
    history = train.train(model, IDS, IDS, steps=50, eval_every=2)
    assert len(history["step"]) == len(history["train"]) == len(history["val"]) >= 1
    assert "Loss" in plots.loss_curve(history).sentence
    assert not any(modes(model).values())


def test_a_loss_is_measured_on_the_same_windows_at_every_call():
    model, seen = a_model(dropout=0.5), []
    model.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    losses = []
    for other_seed in (1, 2):
        torch.manual_seed(other_seed)
        losses.append(train.estimate_loss(model, IDS, batch_size=3, batches=2))
    assert losses[0] == losses[1]
    torch.testing.assert_close(seen[:2], seen[2:])
    assert seen[0].shape == (3, BLOCK)
    assert not torch.equal(seen[0], seen[1])
    assert train.estimate_loss(model, IDS, seed=1) != train.estimate_loss(model, IDS, seed=2)


def test_measuring_gives_the_model_back_as_it_was():
    for model in (a_model(), a_model().eval()):
        before = modes(model)
        train.estimate_loss(model, IDS, batches=1)
        assert modes(model) == before
        assert all(weight.grad is None for weight in model.parameters())


def test_measuring_leaves_parts_that_were_not_in_training_as_they_were():
    model = a_model()
    model.blocks.eval()
    before = modes(model)
    train.estimate_loss(model, IDS, batches=1)
    assert modes(model) == before


def test_measuring_that_fails_gives_the_model_back_as_it_was():
    model = a_model()
    with pytest.raises(ValueError, match=r"3 tokens.*block_size = 4"):
        train.estimate_loss(model, IDS[:3])
    assert all(modes(model).values())
    with pytest.raises(ValueError, match="outside the vocabulary"):
        train.estimate_loss(model, IDS + 1)
    assert all(modes(model).values())


@pytest.mark.parametrize(("held_out", "cut"), [(0.1, 90), (0.25, 75), (0.0, 100)])
def test_a_text_is_cut_in_two_at_its_end(held_out, cut):
    ids = torch.arange(100)
    first, rest = train.split(ids, held_out)
    assert len(first) == cut
    torch.testing.assert_close(torch.cat([first, rest]), ids)


@pytest.mark.parametrize("tokenizer", [WordTokenizer("a cat, a"), CharTokenizer("hello")])
def test_a_checkpoint_brings_back_model_and_tokenizer(tmp_path, tokenizer):
    model, path = a_model(vocab_size=len(tokenizer), dropout=0.25), tmp_path / "model.pt"
    train.save_checkpoint(path, model, tokenizer)
    assert set(torch.load(path)) >= {"config", "weights", "vocabulary"}
    loaded, learned = train.load_checkpoint(path)
    assert loaded.config == model.config
    assert not any(modes(loaded).values())
    same_weights(loaded, model)
    assert learned.vocabulary == tokenizer.vocabulary
    text = tokenizer.decode(range(len(tokenizer)))
    assert learned.encode(text) == tokenizer.encode(text)
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    tokenizer = CharTokenizer("abcde")
    train.save_checkpoint(path, a_model(), tokenizer)
    old = path.read_bytes()

    def fail_halfway(parts, file):
        with open(file, "wb") as unfinished:
            unfinished.write(old[: len(old) // 2])
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", fail_halfway)
        with pytest.raises(OSError, match="disk full"):
            train.save_checkpoint(path, a_model(n_layer=2), tokenizer)
    assert path.read_bytes() == old
    train.save_checkpoint(path, a_model(n_layer=2), tokenizer)
    assert train.load_checkpoint(path)[0].config.n_layer == 2
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


def test_a_checkpoint_that_is_not_there_is_named_with_what_makes_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'none\.pt'.*python -m helpers\.train"):
        train.load_checkpoint(tmp_path / "none.pt")


def test_the_bundled_model_is_small_and_knows_its_text():
    assert train.CHECKPOINT.stat().st_size < 2_000_000
    model, tokenizer = train.load_checkpoint()
    text = load_text("stories")
    assert tokenizer.vocabulary == WordTokenizer(text).vocabulary
    assert model.config.vocab_size == len(tokenizer)
    sizes = {name: getattr(model.config, name) for name in train.RECIPE}
    assert sizes == train.RECIPE
    assert not any(modes(model).values())
    guess = math.log(len(tokenizer))
    learned, held_out = train.split(torch.tensor(tokenizer.encode(text)))
    assert train.estimate_loss(model, learned) < guess / 4
    assert train.estimate_loss(model, held_out) < guess / 2


def test_the_command_trains_and_writes_a_checkpoint(tmp_path, monkeypatch, capsys):
    text, out = tmp_path / "own.txt", tmp_path / "own.pt"
    text.write_text("one two, " * 30, encoding="utf-8")
    recipe = {"block_size": BLOCK, "n_embd": 8, "n_head": 2, "n_layer": 1}
    monkeypatch.setattr(train, "RECIPE", recipe)
    command = ["train", "--text", str(text), "--steps", "2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", command)
    train.main()
    assert "nats per token" in capsys.readouterr().out
    model, tokenizer = train.load_checkpoint(out)
    assert tokenizer.vocabulary == [" ", " one", " two", ",", "one"]
    assert model.config == TransformerConfig(vocab_size=5, **recipe)
