"""sample: text of the length that was asked for, drawn as the logits say."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers import sample
from helpers.checkpoint import load_checkpoint
from helpers.sample import generate, next_token, stream
from helpers.stories import START
from helpers.transformer import Transformer, TransformerConfig

V, BLOCK = 7, 4
SIZES = {"vocab_size": V, "block_size": BLOCK, "n_embd": 6, "n_head": 3, "n_layer": 1}
PROMPT = torch.tensor([[3, 1, 6], [0, 2, 2]])
LOGITS = torch.tensor([[0.5, -1.0, 2.0, 0.0, 1.0, -3.0, 1.5]])


def a_model(**settings):
    torch.manual_seed(1)
    model = Transformer(TransformerConfig(**SIZES, **settings))
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.4)
    return model


class Fixed(nn.Module):
    """A model that gives the same logits whatever it reads, and remembers what it read."""

    def __init__(self, logits):
        super().__init__()
        self.config = TransformerConfig(**SIZES)
        self.logits, self.read, self.modes = logits, [], []

    def forward(self, idx):
        self.read.append(idx)
        self.modes.append(self.training)
        return self.logits.expand(*idx.shape, -1)


def modes(model):
    return {name: module.training for name, module in model.named_modules()}


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("T", [1, BLOCK, 2 * BLOCK + 1])
@pytest.mark.parametrize("new", [1, 3 * BLOCK])
def test_the_prompt_stays_and_exactly_what_was_asked_for_follows(T, new):
    prompt = torch.randint(V, (2, T), generator=seeded())
    given = prompt.clone()
    out = generate(a_model(), prompt, new, generator=seeded())
    assert out.shape == (2, T + new)
    assert out.dtype == torch.long
    assert ((out >= 0) & (out < V)).all()
    torch.testing.assert_close(out[:, :T], given)
    torch.testing.assert_close(prompt, given)


def test_the_model_reads_the_last_block_size_tokens():
    model = Fixed(LOGITS)
    out = generate(model, PROMPT, 6, generator=seeded())
    assert [idx.shape[1] for idx in model.read] == [3, 4, 4, 4, 4, 4]
    for step, idx in enumerate(model.read):
        torch.testing.assert_close(idx, out[:, : 3 + step][:, -BLOCK:])


def test_each_token_is_the_likeliest_at_temperature_0():
    model = a_model(dropout=0.5)
    out = generate(model, PROMPT, 9, temperature=0)
    torch.testing.assert_close(generate(model, PROMPT, 9, temperature=0), out)
    model.eval()
    for t in range(3, 12):
        likeliest = model(out[:, max(0, t - BLOCK) : t])[:, -1].argmax(dim=-1)
        torch.testing.assert_close(out[:, t], likeliest)


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-39])
def test_a_tiny_temperature_takes_the_likeliest(temperature):
    logits = torch.randn(50, V, generator=seeded())
    drawn = next_token(logits, temperature, generator=seeded())
    torch.testing.assert_close(drawn, logits.argmax(dim=-1, keepdim=True))
    out = generate(a_model(), PROMPT, 3, temperature=temperature, generator=seeded())
    torch.testing.assert_close(out, generate(a_model(), PROMPT, 3, temperature=0))


@pytest.mark.parametrize("temperature", [-1, -1e-9, float("nan")])
def test_a_temperature_below_0_is_refused(temperature):
    with pytest.raises(ValueError, match=f"temperature = {temperature!r}.*0"):
        generate(a_model(), PROMPT, 2, temperature=temperature)


@pytest.mark.parametrize("top_k", [V, V + 1, 10000])
def test_keeping_the_whole_vocabulary_or_more_filters_nothing(top_k):
    everything = generate(a_model(), PROMPT, 20, generator=seeded())
    kept = generate(a_model(), PROMPT, 20, top_k=top_k, generator=seeded())
    torch.testing.assert_close(kept, everything)


def test_keeping_one_token_takes_the_likeliest():
    out = generate(a_model(), PROMPT, 9, temperature=3.0, top_k=1, generator=seeded())
    torch.testing.assert_close(out, generate(a_model(), PROMPT, 9, temperature=0))


@pytest.mark.parametrize("top_k", [2, 3])
def test_only_the_likeliest_k_are_drawn(top_k):
    drawn = next_token(LOGITS.expand(2000, V), 5.0, top_k, generator=seeded())
    assert set(drawn.flatten().tolist()) == set(LOGITS[0].topk(top_k).indices.tolist())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens = 0.*at least 1"),
        ({"max_new_tokens": 2.0}, "max_new_tokens = 2.0.*whole number"),
        ({"max_new_tokens": 2, "top_k": -1}, "top_k = -1.*at least 1"),
        ({"max_new_tokens": 2, "top_k": 0}, "top_k = 0.*at least 1"),
    ],
)
def test_sizes_below_1_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        generate(a_model(), PROMPT, **settings)


@pytest.mark.parametrize(
    ("idx", "error", "said"),
    [
        (torch.zeros(1, 0, dtype=torch.long), ValueError, r"\(1, 0\).*at least one"),
        (torch.tensor([3, 1]), ValueError, r"\(2,\).*\(B, T\)"),
        (torch.tensor([[0, V]]), ValueError, "token id 7 .*0 to 6"),
        (torch.tensor([[-1, 0]]), ValueError, "token id -1 .*0 to 6"),
        (torch.tensor([[0.0]]), TypeError, "float32.*integer"),
    ],
)
def test_a_prompt_that_is_empty_or_unreadable_is_refused(idx, error, said):
    with pytest.raises(error, match=said):
        generate(a_model(), idx, 2)


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "all -inf"])
def test_logits_that_are_no_numbers_are_refused_and_the_model_given_back(temperature, bad):
    logits = LOGITS.clone()
    logits[0, 2 if bad != "all -inf" else slice(None)] = -math.inf if bad == "all -inf" else bad
    model = Fixed(logits).train()
    with pytest.raises(ValueError, match=r"logits.*NaN or infinity"):
        generate(model, PROMPT, 2, temperature=temperature)
    assert model.modes == [False]
    assert model.training


def test_a_token_whose_logit_is_minus_infinity_is_never_drawn():
    logits = LOGITS.clone()
    logits[0, 2] = -math.inf
    drawn = next_token(logits.expand(2000, V), generator=seeded())
    assert set(drawn.flatten().tolist()) == {0, 1, 3, 4, 5, 6}


def test_the_model_is_used_in_eval_mode_without_gradients_and_given_back_as_it_was():
    for model in (a_model(dropout=0.5), a_model(dropout=0.5).eval()):
        before, seen = modes(model), []
        hook = model.register_forward_hook(
            lambda module, given, out, seen=seen: seen.append(
                (any(modes(module).values()), out.requires_grad)
            )
        )
        out = generate(model, PROMPT, 2, generator=seeded())
        hook.remove()
        assert seen == [(False, False)] * 2
        assert not out.requires_grad
        assert modes(model) == before


def test_parts_that_were_not_in_training_are_given_back_as_they_were():
    model = a_model()
    model.blocks.eval()
    before = modes(model)
    generate(model, PROMPT, 2, generator=seeded())
    assert modes(model) == before


def test_the_same_seed_writes_the_same_text_whatever_else_is_drawn():
    texts = []
    for other_seed in (1, 2):
        model = a_model()
        torch.manual_seed(other_seed)
        texts.append(generate(model, PROMPT, 20, generator=seeded()))
    torch.testing.assert_close(*texts)
    assert not torch.equal(texts[0], generate(a_model(), PROMPT, 20, generator=seeded(6)))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [None, 4])
def test_tokens_are_drawn_as_often_as_softmax_says(temperature, top_k):
    draws = 20_000
    drawn = next_token(LOGITS.expand(draws, V), temperature, top_k, generator=seeded())
    assert drawn.shape == (draws, 1)
    kept = LOGITS[0].double()
    if top_k:
        kept[kept < kept.topk(top_k).values[-1]] = -math.inf
    probs = (kept / temperature).softmax(dim=0)
    shares = drawn.flatten().bincount(minlength=V) / draws
    errors = (probs * (1 - probs) / draws).sqrt()
    assert ((shares - probs).abs() <= 4 * errors).all()


def test_each_row_of_a_batch_is_drawn_from_its_own_logits():
    logits = torch.full((3, V), -50.0)
    logits[torch.arange(3), torch.tensor([4, 0, 6])] = 50.0
    assert next_token(logits, generator=seeded()).tolist() == [[4], [0], [6]]


def test_the_bundled_model_writes_on_from_its_text():
    model, tokenizer = load_checkpoint()
    idx = tokenizer.encode(START + "One snowy night")[None]
    text = tokenizer.decode(generate(model, idx, 40, temperature=0)[0])
    assert text.startswith("\nOne snowy night ")
    assert len(tokenizer.encode(text)) == 44


def test_two_runs_of_the_command_write_the_same_text():
    command = [sys.executable, "-m", "helpers.sample", "--tokens", "5"]
    root = Path(__file__).resolve().parents[1]
    runs = [
        subprocess.run(command, cwd=root, capture_output=True, check=True, encoding="utf-8")
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stdout.startswith("One ")
    assert len(runs[0].stdout) > len("One ") + 5
    assert runs[0].stderr == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--tokens -1", "tokens = -1 is no size"),
        ("--top_p 2", r"top_p = 2\.0; pass"),
        ("--temperature -1", r"temperature = -1\.0; pass"),
        (f"--seed {10**20}", "is no seed"),
        ("--prompt zebra", r"lacks \['zebra'\], the first of them at token 0"),
    ],
)
def test_the_command_refuses_in_one_line_before_it_writes(options, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sample", "--prompt", "One", *options.split()])
    with pytest.raises(SystemExit, match=f"^helpers.sample: .*{said}"):
        sample.main()
    assert capsys.readouterr().out == ""


def test_a_stream_yields_what_generate_returns_token_by_token():
    whole = generate(a_model(), PROMPT, 6, temperature=0.7, generator=seeded())
    tokens = list(stream(a_model(), PROMPT, 6, temperature=0.7, generator=seeded()))
    assert [token.shape for token in tokens] == [(2, 1)] * 6
    torch.testing.assert_close(torch.cat([PROMPT, *tokens], dim=1), whole)


def test_a_model_is_as_it_was_between_two_tokens_of_a_stream():
    model = a_model(dropout=0.5)
    tokens = stream(model, PROMPT, 3, generator=seeded())
    next(tokens)
    assert all(modes(model).values())


def test_writing_ends_once_every_row_has_stopped():
    logits = torch.full((V, V), -50.0)
    logits[torch.arange(V), torch.arange(1, V + 1) % V] = 50.0  # each id is followed by the next

    class Counting(Fixed):
        def forward(self, idx):
            return logits[idx]

    prompt = torch.tensor([[2], [4]])
    out = generate(Counting(LOGITS), prompt, 20, stop=5)
    assert out.tolist() == [[2, 3, 4, 5], [4, 5, 6, 0]]


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, [2]), (0.55, [2, 6]), (1.0, [0, 1, 2, 3, 4, 5, 6])]
)
def test_only_the_likeliest_with_a_share_of_top_p_are_drawn(top_p, kept):
    drawn = next_token(LOGITS.expand(5000, V), 1.0, top_p=top_p, generator=seeded())
    assert sorted(set(drawn.flatten().tolist())) == kept


@pytest.mark.parametrize("top_p", [0, -0.1, 1.1, float("nan")])
def test_a_top_p_that_is_no_probability_is_refused(top_p):
    with pytest.raises(ValueError, match=r"top_p = .*at most 1"):
        generate(a_model(), PROMPT, 2, top_p=top_p)


def test_of_equal_tokens_no_more_than_k_are_drawn():
    drawn = next_token(torch.zeros(500, V), top_k=2, generator=seeded())
    assert len(set(drawn.flatten().tolist())) == 2
