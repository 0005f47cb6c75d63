"""train: losses that fall, runs that can be stopped and gone on with."""

import math
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from helpers import plots, qkv_head, train
from helpers.checkpoint import load_checkpoint, read_checkpoint
from helpers.fast_heads import FastMultiHeadAttention
from helpers.text import CharTokenizer, Corpus
from helpers.transformer import MultiHeadAttention, Transformer, TransformerConfig

V, BLOCK = 5, 4
IDS = torch.arange(V).repeat(40)
CORPUS = Corpus(CharTokenizer("abcde"), IDS, IDS.roll(2))
SETTINGS = {"learning_rate": 3e-3, "warmup": 5}


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
    torch.testing.assert_close(one.state_dict(), other.state_dict(), atol=0, rtol=0)


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
    history = train.train(model, CORPUS, steps=110, eval_every=50, **SETTINGS)
    assert history["step"] == [0, 50, 100, 110]
    assert len(history["loss"]) == 110
    for losses in (history["train"], history["held_out"]):
        assert losses[0] == pytest.approx(math.log(V), abs=0.1)
        assert losses[-1] < 0.7
        assert sorted(losses, reverse=True) == losses
    assert not any(modes(model).values())
    assert train.estimate_loss(model, CORPUS) == history["held_out"][-1]
    assert "held-out text goes from" in plots.loss_curve(history).sentence


def test_the_same_seed_trains_the_same_model():
    runs = []
    for other_seed in (1, 2):
        model = a_model()
        torch.manual_seed(other_seed)
        runs.append((train.train(model, CORPUS, steps=5, seed=3, **SETTINGS), model))
    assert runs[0][0] == runs[1][0]
    same_weights(runs[0][1], runs[1][1])


def test_the_seed_chooses_dropout_too_and_the_callers_noise_is_left_alone():
    runs = []
    for other_seed in (1, 2):
        model = a_model(dropout=0.5)
        torch.manual_seed(other_seed)
        noise = torch.get_rng_state()
        runs.append(train.train(model, CORPUS, steps=5, seed=3, **SETTINGS))
        assert torch.equal(torch.get_rng_state(), noise)
    assert runs[0] == runs[1]


def test_the_learning_rate_rises_then_falls_to_nothing():
    rates = [train.rate_at(step, 100, 10) for step in range(101)]
    assert rates[0] == 0
    assert rates[10] == max(rates) == 1
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0, abs=1e-9)


def test_stopping_keeps_what_was_learned_until_then(tmp_path, capsys):
    model, out = a_model(), tmp_path / "model.pt"
    stop(model, in_training=True, at_call=7)
    history = train.train(model, CORPUS, steps=50, eval_every=1, out=out, **SETTINGS)
    assert history["step"] == [0, 1, 2, 3, 4, 5, 6]
    assert len(history["loss"]) == 6
    assert "stopped after 6 of 50 steps" in capsys.readouterr().out
    assert not any(modes(model).values())
    assert train.estimate_loss(model, CORPUS) == history["held_out"][-1]
    same_weights(load_checkpoint(out)[0], model)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.pt", "model_best.pt"]


def test_stopping_from_a_watcher_keeps_every_step_until_then():
    def watch(history):
        if len(history["loss"]) == 7:
            raise KeyboardInterrupt

    history = train.train(a_model(), CORPUS, steps=50, eval_every=1, watch=watch, **SETTINGS)
    assert len(history["loss"]) == 7


@pytest.mark.parametrize("at_call", [17, 20, 25, 30])
def test_stopping_while_losses_are_measured_leaves_whole_rows(at_call):
    model = a_model()
    stop(model, in_training=False, at_call=at_call)
    history = train.train(model, CORPUS, steps=50, eval_every=2, **SETTINGS)
    assert len(history["step"]) == len(history["train"]) == len(history["held_out"]) >= 1
    assert "Loss" in plots.loss_curve(history).sentence


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, dropout):
    settings = {"steps": 20, "eval_every": 4, **SETTINGS}
    whole_model, model, out = a_model(dropout=dropout), a_model(dropout=dropout), tmp_path / "m.pt"
    whole = train.train(whole_model, CORPUS, **settings)
    stop(model, in_training=True, at_call=11)
    train.train(model, CORPUS, out=out, **settings)
    again = a_model(dropout=dropout)
    history = train.train(again, CORPUS, resume=out, **settings)
    assert history == whole
    same_weights(again, whole_model)


@pytest.mark.parametrize("step", [1, 3, 8])
def test_ctrl_c_in_an_update_waits_until_the_step_counts(tmp_path, step):
    settings = {"steps": 9, "eval_every": 4, **SETTINGS}
    whole_model, model, out = a_model(), a_model(), tmp_path / "m.pt"
    whole, updates = train.train(whole_model, CORPUS, **settings), []

    def press(optimizer, given, named):
        updates.append(1)
        if len(updates) == step:
            signal.raise_signal(signal.SIGINT)

    hook = register_optimizer_step_post_hook(press)
    try:
        stopped = train.train(model, CORPUS, out=out, **settings)
    finally:
        hook.remove()
    assert len(stopped["loss"]) == step
    again = a_model()
    assert train.train(again, CORPUS, resume=out, **settings) == whole
    same_weights(again, whole_model)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_training_outside_the_main_thread_needs_no_signals():
    with ThreadPoolExecutor() as pool:
        history = pool.submit(train.train, a_model(), CORPUS, steps=2, **SETTINGS).result()
    assert len(history["loss"]) == 2


def test_the_best_state_is_kept_beside_the_last(tmp_path):
    losses = iter([9.0, 3.0, 9.0, 1.0, 9.0, 2.0, 7.0, 8.0])  # train and held out, by turns
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train, "estimate_loss", lambda *given, **named: next(losses))
        train.train(a_model(), CORPUS, steps=3, eval_every=1, out=tmp_path / "m.pt", **SETTINGS)
    assert len(read_checkpoint(tmp_path / "m.pt")["history"]["loss"]) == 3
    best = read_checkpoint(tmp_path / "m_best.pt")["history"]
    assert best["held_out"] == [3.0, 1.0]
    assert len(best["loss"]) == 1


def test_a_run_that_learned_nothing_leaves_older_files_as_they_were(tmp_path, capsys):
    def watch(history):
        raise KeyboardInterrupt

    out = tmp_path / "m.pt"
    train.train(a_model(), CORPUS, steps=2, out=out, **SETTINGS)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    train.train(a_model(), CORPUS, steps=2, out=out, watch=watch, **SETTINGS)
    assert "stopped after 0 of 2 steps; nothing was learned yet" in capsys.readouterr().out
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert sorted(before) == ["m.pt", "m_best.pt"]


def test_a_loss_that_is_no_number_stops_the_run_and_says_where(tmp_path):
    model, calls = a_model(), []

    def spoil(module, given, out):
        calls.append(module.training)
        return out * float("nan") if sum(calls) == 4 and module.training else out

    model.register_forward_hook(spoil)
    with pytest.raises(FloatingPointError, match="nan at step 4"):
        train.train(model, CORPUS, steps=20, eval_every=2, out=tmp_path / "m.pt", **SETTINGS)
    saved = read_checkpoint(tmp_path / "m.pt")
    assert len(saved["history"]["loss"]) == 2  # the third step may have spoiled the weights
    assert all(weight.isfinite().all() for weight in saved["weights"].values())


def test_weights_that_an_update_spoiled_are_not_saved(tmp_path):
    model, out, updates = a_model(), tmp_path / "m.pt", []

    def spoil(optimizer, given, named):
        updates.append(1)
        if len(updates) == 4:  # just before a measurement
            model.lm_head.weight.data[0, 0] = float("nan")

    hook = register_optimizer_step_post_hook(spoil)
    try:
        with pytest.raises(FloatingPointError, match="nan at step 4"):
            train.train(model, CORPUS, steps=20, eval_every=2, out=out, **SETTINGS)
    finally:
        hook.remove()
    saved = read_checkpoint(out)
    assert len(saved["history"]["loss"]) == 2
    assert all(weight.isfinite().all() for weight in saved["weights"].values())


def test_gradients_are_clipped():
    model, before = a_model(), a_model()
    train.train(model, CORPUS, steps=1, clip=1e-12, learning_rate=1.0, warmup=1)
    moved = max(
        (a - b).abs().max().item()
        for a, b in zip(model.parameters(), before.parameters(), strict=True)
    )
    assert moved < 0.05  # AdamW would move each weight by about 1


def test_only_a_training_of_the_same_model_can_be_gone_on_with(tmp_path):
    out = tmp_path / "m.pt"
    train.train(a_model(), CORPUS, steps=2, out=out, **SETTINGS)
    with pytest.raises(ValueError, match=r"'n_layer': 1"):
        train.train(a_model(n_layer=2), CORPUS, steps=2, resume=out, **SETTINGS)
    with pytest.raises(FileNotFoundError, match=r"none\.pt"):
        train.train(a_model(), CORPUS, steps=2, resume=tmp_path / "none.pt", **SETTINGS)


def test_what_cannot_be_trained_or_saved_is_refused_before_anything_is_lost(tmp_path, monkeypatch):
    def closed(path):
        raise PermissionError(13, "closed")

    out = tmp_path / "new folder" / "m.pt"
    train.train(a_model(), CORPUS, steps=2, out=out, **SETTINGS)
    good = out.read_bytes()
    short = Corpus(CORPUS.tokenizer, IDS, IDS[:3])
    with pytest.raises(ValueError, match=r"held_out part .* 3 tokens .* block_size = 4"):
        train.train(a_model(), short, steps=2, out=out, **SETTINGS)
    with pytest.raises(ValueError, match=r"vocab_size = 7 and the corpus 5"):
        train.train(a_model(vocab_size=7), CORPUS, steps=2, out=out, **SETTINGS)
    with pytest.raises(ValueError, match="is a folder"):
        train.train(a_model(), CORPUS, steps=2, out=tmp_path, **SETTINGS)
    with pytest.raises(ValueError, match=r"out = '.*x\.pt' cannot be written"):
        train.train(a_model(), CORPUS, steps=2, out=out / "x.pt", **SETTINGS)
    own = tmp_path / "own.txt"
    own.write_text("all that I ever wrote", encoding="utf-8")
    with pytest.raises(ValueError, match=r"'own\.txt' is there and no checkpoint"):
        train.train(a_model(), CORPUS, steps=2, out=own, **SETTINGS)
    assert own.read_text(encoding="utf-8") == "all that I ever wrote"
    monkeypatch.setattr(Path, "touch", closed)
    with pytest.raises(ValueError, match=r"m\.pt' cannot be written \(.*closed\)"):
        train.train(a_model(), CORPUS, steps=2, out=out, **SETTINGS)
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        train.train(a_model(), CORPUS, steps=2, out=tmp_path / "n" / "m.pt", resume="none.pt")
    assert not (tmp_path / "n").exists()
    other = Corpus(CharTokenizer("vwxyz"), IDS, IDS)
    with pytest.raises(ValueError, match=r"m\.pt knows other tokens"):
        train.train(a_model(), other, steps=4, out=out, resume=out, **SETTINGS)
    assert out.read_bytes() == good


def test_a_run_stopped_while_it_measured_measures_again(tmp_path):
    settings = {"steps": 6, "eval_every": 2, **SETTINGS}
    model, out = a_model(), tmp_path / "m.pt"
    stop(model, in_training=False, at_call=16 * 2 + 3)  # in the measurement after step 4
    train.train(model, CORPUS, out=out, **settings)
    again = a_model()
    assert train.train(again, CORPUS, resume=out, **settings)["step"] == [0, 2, 4, 6]


def test_a_loss_is_measured_on_the_same_windows_at_every_call():
    model, seen = a_model(dropout=0.5), []
    model.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    losses = []
    for other_seed in (1, 2):
        torch.manual_seed(other_seed)
        losses.append(train.estimate_loss(model, CORPUS, batches=2))
    assert losses[0] == losses[1]
    torch.testing.assert_close(seen[:2], seen[2:])
    assert not torch.equal(seen[0], seen[1])
    assert train.estimate_loss(model, CORPUS, seed=1) != train.estimate_loss(model, CORPUS, seed=2)


def test_measuring_gives_the_model_back_as_it_was():
    for model in (a_model(), a_model().eval()):
        before = modes(model)
        train.estimate_loss(model, CORPUS, batches=1)
        assert modes(model) == before
        assert all(weight.grad is None for weight in model.parameters())


def test_measuring_leaves_parts_that_were_not_in_training_as_they_were():
    model = a_model()
    model.blocks.eval()
    before = modes(model)
    train.estimate_loss(model, CORPUS, batches=1)
    assert modes(model) == before


def test_measuring_that_fails_gives_the_model_back_as_it_was():
    model = a_model()
    with pytest.raises(ValueError, match=r"3 tokens.*block_size = 4"):
        train.estimate_loss(model, Corpus(CORPUS.tokenizer, IDS, IDS[:3]))
    assert all(modes(model).values())
    with pytest.raises(ValueError, match="outside the vocabulary"):
        train.estimate_loss(model, Corpus(CORPUS.tokenizer, IDS, IDS + 1))
    assert all(modes(model).values())


COMMAND = "train --text {} --block_size 6 --n_embd 8 --n_layer 1 --batch_size 4 --device cpu"


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Run the command on a text of its own, with more options; returns the file it writes."""
    text, out = tmp_path / "own.txt", tmp_path / "own.pt"
    text.write_text("one two, " * 60, encoding="utf-8")

    def run(*more):
        monkeypatch.setattr("sys.argv", [*COMMAND.format(text).split(), "--out", str(out), *more])
        train.main()
        return out

    run.options = COMMAND.format(text).split()[1:]
    return run


def test_the_command_trains_saves_resumes_and_prints_a_sample(command, capsys):
    out = command("--steps", "2")
    assert f"saved to {out}, and as it was when" in capsys.readouterr().out
    command("--steps", "3", "--resume", str(out))
    assert f"saved to {out}" in capsys.readouterr().out
    model, tokenizer = load_checkpoint(out)
    assert tokenizer.vocabulary == [" ", " one", " two", ",", "one"]
    assert (model.config.block_size, model.config.n_embd, model.config.n_layer) == (6, 8, 1)
    assert len(read_checkpoint(out)["history"]["loss"]) == 3


def test_going_on_with_fewer_steps_than_there_were_is_refused(command):
    out = command("--steps", "4")
    with pytest.raises(SystemExit, match=r"own\.pt has 4 steps behind it; steps = 3 counts them"):
        command("--steps", "3", "--resume", str(out))


def test_a_run_goes_on_into_its_own_file_unless_another_is_named(command, monkeypatch, capsys):
    out = command("--steps", "2")
    monkeypatch.setattr(
        "sys.argv", ["train", *command.options, "--steps", "3", "--resume", str(out)]
    )
    train.main()
    assert f"saved to {out}," in capsys.readouterr().out
    assert len(read_checkpoint(out)["history"]["loss"]) == 3


def test_the_command_says_how_to_go_on_when_it_was_stopped(command, monkeypatch, capsys):
    compute, calls = train.cross_entropy, []

    def interrupt(*given):
        calls.append(torch.is_grad_enabled())
        if sum(calls) == 3:
            raise KeyboardInterrupt
        return compute(*given)

    monkeypatch.setattr(train, "cross_entropy", interrupt)
    out = command("--steps", "9")
    said = f"to go on, run the same command with --resume {out}\n"
    assert capsys.readouterr().out.endswith(said)
    monkeypatch.setattr(train, "pick_device", lambda name: interrupt_at_once())
    with pytest.raises(SystemExit, match="stopped"):
        command("--steps", "9")


def interrupt_at_once():
    raise KeyboardInterrupt


def test_the_command_names_no_file_that_it_did_not_write(command, monkeypatch, capsys):
    out = command("--steps", "4", "--eval_every", "2")
    best = train.best_beside(out)
    best.unlink()
    monkeypatch.setattr(train, "estimate_loss", lambda *given, **named: 99.0)  # none is better
    capsys.readouterr()
    command("--steps", "6", "--resume", str(out))
    assert f"saved to {out}\n" in capsys.readouterr().out
    assert not best.exists()

    def interrupt(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "cross_entropy", interrupt)
    command("--steps", "3")
    assert "saved to" not in capsys.readouterr().out


def test_a_device_that_is_not_there_is_refused_in_one_line(command, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="there is no device 'cuda' here; pass --device cpu"):
        command("--steps", "2", "--device", "cuda")


@pytest.mark.parametrize(("together", "kind"), [(False, "mps"), (True, "cpu")])
def test_the_gpu_of_apple_is_left_out_where_it_would_have_to_be_shared(monkeypatch, together, kind):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(train, "launched", lambda: together)
    assert train.pick_device().type == kind


def test_a_new_model_has_the_first_weights_of_06_and_makes_no_masks(monkeypatch):
    config, masks = a_model().config, []
    torch.manual_seed(3)
    slow = Transformer(config)
    monkeypatch.setattr(
        qkv_head, "causal_mask", lambda T: masks.append(T) or torch.ones(T, T, dtype=torch.bool)
    )
    same_weights(train.new_model(config, seed=3), slow)
    assert set(masks) == {1}


def test_a_seed_that_is_too_long_is_refused_in_one_line(command):
    with pytest.raises(SystemExit, match=f"seed = {10**20} is no seed"):
        command("--steps", "2", "--seed", str(10**20))
    with pytest.raises(ValueError, match=r"seed = 0\.5 is no seed"):
        train.train(a_model(), CORPUS, steps=2, seed=0.5)


def test_the_command_trains_the_fast_model_to_what_06_learns(command, monkeypatch):
    fast = read_checkpoint(command("--steps", "5"))
    monkeypatch.setattr(train, "FastMultiHeadAttention", MultiHeadAttention)
    slow = read_checkpoint(command("--steps", "5"))
    count = [len(parts["optimizer"]["param_groups"][0]["params"]) for parts in (fast, slow)]
    assert count[0] < count[1] == len(slow["weights"])
    assert fast["weights"].keys() == slow["weights"].keys()
    for name in ("loss", "train", "held_out"):
        torch.testing.assert_close(fast["history"][name], slow["history"][name])


def test_the_command_goes_on_with_a_run_of_06_as_it_was(command, monkeypatch):
    def stop(history):
        if len(history["loss"]) == 4:
            raise KeyboardInterrupt

    steps = "--steps", "6", "--eval_every", "2"
    with monkeypatch.context() as before:
        before.setattr(train, "FastMultiHeadAttention", MultiHeadAttention)
        before.setattr(train, "FUSED", ())
        whole = read_checkpoint(command(*steps))["history"]
        before.setattr(train, "print_losses", stop)
        out = command(*steps)
    parts = read_checkpoint(out)
    assert parts["optimizer"]["param_groups"][0]["fused"] is not True
    assert len(parts["history"]["loss"]) == 4
    again = read_checkpoint(command(*steps, "--resume", str(out)))
    torch.testing.assert_close(again["history"]["loss"], whole["loss"])
    assert len(again["optimizer"]["param_groups"][0]["params"]) == len(again["weights"])


def test_a_run_of_the_other_attention_is_refused_by_name(tmp_path):
    out, slow = tmp_path / "m.pt", a_model()
    fast = Transformer(slow.config, FastMultiHeadAttention)
    for one, other in [(slow, fast), (fast, slow)]:
        train.train(one, CORPUS, steps=2, out=out, **SETTINGS)
        with pytest.raises(ValueError, match=r"m\.pt was trained with the other attention"):
            train.train(other, CORPUS, steps=4, resume=out, **SETTINGS)


def test_the_command_says_how_it_computes(command, capsys):
    command("--steps", "2")
    assert "training on cpu in 32-bit numbers, not compiled" in capsys.readouterr().out
    command("--steps", "2", "--bf16", "on", "--compile", "off")
    assert "training on cpu with products in bf16, not compiled" in capsys.readouterr().out
