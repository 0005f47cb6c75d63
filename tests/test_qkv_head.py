"""qkv_head: attention equal to PyTorch's, and a head that keeps its promises."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers.qkv_head import Head, attention
from helpers.softmax_mask import causal_mask

B, T, S, C, HS, BLOCK = 2, 5, 4, 6, 3, 8


def a_head(**settings):
    torch.manual_seed(1)
    return Head(**{"n_embd": C, "head_size": HS, "block_size": BLOCK, **settings})


def some_x(T=T):
    return torch.randn(B, T, C, generator=torch.Generator().manual_seed(2))


def test_a_key_that_answers_a_query_gets_its_weight():
    q = torch.tensor([[[0.0, 40.0]]])
    k = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]])
    v = torch.tensor([[[1.0], [2.0], [4.0]]])
    out, weights = attention(q, k, v, torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(weights, torch.tensor([[[0.0, 1.0, 0.0]]]), atol=1e-5, rtol=0)
    torch.testing.assert_close(out, torch.tensor([[[2.0]]]), atol=1e-4, rtol=0)


def test_attention_equals_the_fused_call():
    torch.manual_seed(1)
    q, k, v = torch.randn(B, T, HS), torch.randn(B, S, HS), torch.randn(B, S, 7)
    mask = torch.rand(T, S) < 0.5
    mask[:, 1] = True
    out, weights = attention(q, k, v, mask)
    assert (out.shape, weights.shape) == ((B, T, 7), (B, T, S))
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(weights @ v, out)


def test_the_causal_flag_of_the_fused_call_is_the_mask():
    torch.manual_seed(1)
    q, k, v = torch.randn(3, B, 2, T, HS)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(attention(q, k, v, causal_mask(T))[0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("shape", [(B, 1, T, S), (1, 1, T, S), (B, 7, T, S), (7, T, S)])
def test_masks_may_differ_between_examples_and_heads(shape):
    torch.manual_seed(1)
    q, k, v = torch.randn(B, 7, T, HS), torch.randn(B, 7, S, HS), torch.randn(B, 7, S, HS)
    mask = torch.rand(shape) < 0.5
    mask[..., 1] = True
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(attention(q, k, v, mask)[0], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_row_that_may_look_at_nothing_gives_zero_and_finite_gradients(dtype):
    torch.manual_seed(1)
    q, k, v = (torch.randn(B, T, HS).to(dtype).requires_grad_() for _ in range(3))
    mask = causal_mask(T)
    mask[2] = False
    out, weights = attention(q, k, v, mask)
    torch.testing.assert_close(out[:, 2], torch.zeros(B, HS, dtype=dtype), atol=0, rtol=0)
    torch.testing.assert_close(weights[:, 2], torch.zeros(B, T, dtype=dtype), atol=0, rtol=0)
    out.square().sum().backward()
    assert all(given.grad.isfinite().all() for given in (q, k, v))
    assert (v.grad != 0).any()


def test_dropout_acts_on_the_weights_that_are_used_not_on_those_returned():
    torch.manual_seed(1)
    q, k, v = torch.randn(3, B, T, HS)
    out, weights = attention(q, k, v, causal_mask(T), dropout=lambda weights: 2 * weights)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(B, T))
    torch.testing.assert_close(out, 2 * weights @ v)


@pytest.mark.parametrize(
    ("q", "k", "v", "said"),
    [
        ((B, T, HS), (B, S, HS + 1), (B, S, HS), r"\(2, 5, 3\).*\(2, 4, 4\).*head_size"),
        ((B, T, HS), (B, S, HS), (B, S + 1, HS), r"\(2, 4, 3\).*\(2, 5, 3\).*positions"),
        ((HS,), (B, S, HS), (B, S, HS), r"\(3,\)"),
    ],
)
def test_queries_keys_and_values_that_do_not_fit_are_refused(q, k, v, said):
    with pytest.raises(ValueError, match=said):
        attention(torch.zeros(q), torch.zeros(k), torch.zeros(v), causal_mask(T))


def test_a_mask_of_another_kind_or_shape_is_refused():
    q, k, v = torch.zeros(3, B, T, HS)
    with pytest.raises(TypeError, match=r"float32.*torch\.bool"):
        attention(q, k, v, causal_mask(T).float())
    with pytest.raises(ValueError, match=r"\(8, 8\).*\(2, 5, 5\).*mask\[:T, :T\]"):
        attention(q, k, v, causal_mask(BLOCK))


@pytest.mark.parametrize("head_size", [4, 16, 64])
def test_scaled_scores_of_unit_queries_and_keys_have_variance_near_1(head_size):
    torch.manual_seed(1)
    q, k = torch.randn(2, 20, 50, head_size)
    _, weights = attention(q, k, torch.zeros(20, 50, 1), torch.ones(50, 50, dtype=torch.bool))
    logs = weights.log()
    scores = logs - logs.mean(dim=-1, keepdim=True)
    assert 0.8 < scores.var().item() < 1.2


@pytest.mark.parametrize(("n_embd", "head_size"), [(64, 16), (6, 3), (3, 7)])
def test_a_head_equals_the_fused_call_and_scales_by_head_size(n_embd, head_size):
    head = a_head(n_embd=n_embd, head_size=head_size)
    for linear in (head.query, head.key, head.value):
        nn.init.normal_(linear.weight, std=n_embd**-0.5)
    x = torch.randn(B, T, n_embd)
    q, k, v = (F.linear(x, made.weight) for made in (head.query, head.key, head.value))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert expected.shape == (B, T, head_size)
    torch.testing.assert_close(head(x), expected, atol=1e-6, rtol=1e-5)


def test_query_key_and_value_have_no_bias():
    shapes = {name: tuple(weight.shape) for name, weight in a_head().named_parameters()}
    assert shapes == {f"{name}.weight": (HS, C) for name in ("query", "key", "value")}


def test_weights_are_kept_in_eval_mode_only_and_detached():
    head, x = a_head(), some_x()
    head(x)
    assert head.weights is None
    head.eval()
    out = head(x)
    assert head.weights.shape == (B, T, T)
    assert not head.weights.requires_grad
    assert out.requires_grad
    torch.testing.assert_close(head.weights @ head.value(x), out)
    kept = head.weights
    head.train()(some_x(T=3))
    assert head.weights is kept


def test_dropout_acts_in_training_only():
    head, x = a_head(dropout=0.5), some_x()
    assert (head(x) - head(x)).abs().max() > 0.01
    head.eval()
    torch.testing.assert_close(head(x), head(x), atol=0, rtol=0)
    calm = a_head(dropout=0.0)
    torch.testing.assert_close(calm(x), head(x), atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_hidden_weights_are_exactly_zero_in_every_precision(dtype):
    head = a_head().to(dtype).eval()
    out = head(30 * some_x().to(dtype))
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert (head.weights.triu(1) == 0).all()
    torch.testing.assert_close(
        head.weights.float().sum(dim=-1), torch.ones(B, T), atol=1e-2, rtol=0
    )


def test_weights_load_at_another_block_size():
    short, long = a_head(), Head(C, HS, 2 * BLOCK)
    assert not any("mask" in name for name in short.state_dict())
    long.load_state_dict(short.state_dict())
    torch.testing.assert_close(long(some_x()), short(some_x()))
    assert long(some_x(T=2 * BLOCK)).shape == (B, 2 * BLOCK, HS)


def test_a_head_moves_whole():
    head = a_head().to(torch.float64)
    assert head.mask.dtype == torch.bool
    torch.testing.assert_close(head(some_x().double()).float(), a_head()(some_x()))
    away = a_head().to("meta").eval()
    assert away.mask.is_meta
    assert away(some_x().to("meta")).is_meta


def test_all_of_block_size_fits_and_one_more_is_refused():
    assert a_head()(some_x(T=BLOCK)).shape == (B, BLOCK, HS)
    with pytest.raises(ValueError, match=r"T = 9 .*block_size = 8.*last 8"):
        a_head()(some_x(T=BLOCK + 1))


@pytest.mark.parametrize(
    ("x", "error", "said"),
    [
        (torch.zeros(T, C), ValueError, r"\(5, 6\).*\(B, T, C\)"),
        (torch.zeros(B, 0, C), ValueError, r"\(2, 0, 6\)"),
        (torch.zeros(B, T, C + 1), ValueError, "7 channels.*n_embd = 6"),
        (torch.zeros(B, T, C, dtype=torch.long), TypeError, "int64"),
    ],
)
def test_other_input_is_refused(x, error, said):
    with pytest.raises(error, match=said):
        a_head()(x)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"head_size": 0}, "head_size = 0.*at least 1"),
        ({"block_size": -4}, "block_size = -4.*at least 1"),
        ({"n_embd": 6.0}, "n_embd = 6.0.*whole number"),
        ({"dropout": 1.0}, "dropout = 1.0.*from 0 up to"),
        ({"dropout": -0.5}, "dropout = -0.5"),
    ],
)
def test_impossible_sizes_are_refused_when_a_head_is_made(settings, said):
    with pytest.raises(ValueError, match=said):
        a_head(**settings)
