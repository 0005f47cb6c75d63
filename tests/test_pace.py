"""pace: what makes steps faster is used where it works, and never needed."""

import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers import pace, train
from helpers.checkpoint import read_checkpoint
from helpers.fast_heads import FastMultiHeadAttention
from helpers.pace import Pace, choose
from helpers.text import CharTokenizer, Corpus
from helpers.transformer import Transformer, TransformerConfig

V, BLOCK = 5, 4
IDS = torch.arange(V).repeat(40)
CORPUS = Corpus(CharTokenizer("abcde"), IDS, IDS.roll(2))
SETTINGS = {"learning_rate": 3e-3, "warmup": 5, "eval_every": 4, "batch_size": 6}


def a_model(dropout=0.0):
    torch.manual_seed(1)
    config = TransformerConfig(
        vocab_size=V, block_size=BLOCK, n_embd=8, n_head=2, n_layer=1, dropout=dropout
    )
    return Transformer(config, FastMultiHeadAttention)


def learn(steps, **settings):
    return train.train(a_model(), CORPUS, steps, **SETTINGS, **settings)


def refuse(model):
    raise RuntimeError("no compiler here")


def refuse_when_called(model):
    return lambda idx: refuse(model)


class Slow(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, idx):
        for _ in range(20):
            out = self.model(idx)
        return out


def test_a_cpu_is_left_as_it_is_and_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", pytest.fail)
    model = a_model()
    chosen, said = choose(model, 6)
    assert chosen == Pace()
    assert chosen.of(model) is model
    assert said == "training on cpu in 32-bit numbers, not compiled"


@pytest.mark.parametrize("broken", [refuse, refuse_when_called])
def test_what_does_not_compile_trains_as_it_is_and_one_sentence_says_so(monkeypatch, broken):
    monkeypatch.setattr(torch, "compile", broken)
    chosen, said = choose(a_model(), 6, compiled="on")
    assert chosen == Pace()
    assert said.endswith("not compiled, as torch.compile failed here (RuntimeError)")
    assert len(said.splitlines()) == 1


def test_windows_without_a_compiler_is_not_asked_to_compile(monkeypatch):
    monkeypatch.setattr(torch, "compile", pytest.fail)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    chosen, said = choose(a_model(), 6, compiled="on")
    assert chosen == Pace()
    assert "Windows has no compiler here" in said


def test_what_is_slower_compiled_is_compiled_where_asked_for(monkeypatch):
    monkeypatch.setattr(torch, "compile", Slow)
    chosen, said = choose(a_model(), 6, compiled="on")
    assert chosen == Pace(compiled=True)
    assert "times as long" in said


@pytest.mark.parametrize(("seconds", "compiled"), [(0.9, True), (1.1, False)])
def test_on_a_gpu_it_is_compiled_where_that_pays_and_in_bf16(monkeypatch, seconds, compiled):
    weight = SimpleNamespace(device=torch.device("cuda"))
    model = SimpleNamespace(lm_head=SimpleNamespace(weight=weight))
    took = {True: seconds, False: 1.0}
    monkeypatch.setattr(pace, "seconds_of_passes", lambda model, B, pace: took[pace.compiled])
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: not including_emulation
    )
    chosen, said = choose(model, 6)
    assert chosen == Pace(compiled=compiled, bf16=True)
    assert said.startswith("training on cuda with products in bf16, ")
    assert f"take {seconds:.2f} times as long" in said
    assert choose(model, 6, compiled="off", bf16="off")[0] == Pace()
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert not choose(model, 6)[0].bf16


@pytest.mark.parametrize("name", ["compiled", "bf16"])
def test_another_choice_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} = 'On' is no choice; pass one of auto, on, off"):
        choose(a_model(), 6, **{name: "On"})


def test_trying_leaves_the_model_and_the_noise_as_they_were(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model: model)
    model, noise = a_model(dropout=0.5), torch.get_rng_state()
    choose(model, 6, compiled="on")
    assert torch.equal(torch.get_rng_state(), noise)
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())


def test_bf16_learns_nearly_the_same_from_the_first_loss_on():
    chosen, said = choose(a_model(), 6, bf16="on")
    assert chosen == Pace(bf16=True)
    assert "bf16" in said
    plain, half = learn(20), learn(20, pace=chosen)
    assert half["loss"] != plain["loss"]
    assert half["loss"][0] == pytest.approx(plain["loss"][0], abs=0.05)
    assert half["held_out"][-1] == pytest.approx(plain["held_out"][-1], abs=0.05)


def test_bf16_keeps_weights_gradients_and_logits_in_32_bits():
    model = a_model()
    logits = Pace(bf16=True).of(model)(IDS[None, :BLOCK])
    logits.sum().backward()
    assert logits.dtype == torch.float32
    assert {weight.grad.dtype for weight in model.parameters()} == {torch.float32}


def test_a_run_in_bf16_goes_on_as_if_there_had_been_no_stop(tmp_path):
    def stop(history):
        if len(history["loss"]) == 4:
            raise KeyboardInterrupt

    out, half = tmp_path / "m.pt", Pace(bf16=True)
    learn(10, pace=half, out=out, watch=stop)
    assert learn(10, pace=half, resume=out) == learn(10, pace=half)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler warns itself of what it uses
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler on a CPU")
def test_compiled_it_learns_the_same_and_goes_on(tmp_path):
    def stop(history):
        if len(history["loss"]) == 4:
            raise KeyboardInterrupt

    chosen, said = choose(a_model(), 6, compiled="on")
    assert chosen == Pace(compiled=True), said
    out, plain = tmp_path / "m.pt", learn(8)
    learn(8, pace=chosen, out=out, watch=stop)
    assert not [name for name in read_checkpoint(out)["weights"] if "_orig_mod" in name]
    torch.testing.assert_close(
        learn(8, pace=chosen, resume=out)["loss"], plain["loss"], atol=1e-4, rtol=0
    )
