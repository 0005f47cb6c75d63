"""probe: who looks at whom, measured from outside, with row = output and column = input."""

import math

import pytest
import torch
from torch import nn

from helpers import probe
from helpers.loop_mean import loop_mean
from helpers.qkv_head import Head
from helpers.softmax_mask import softmax_mean
from helpers.transformer import Transformer, TransformerConfig
from helpers.tril_matmul import mean_weights, tril_mean

B, T, C, NH, BLOCK, V, L = 2, 5, 6, 3, 8, 11, 2


def a_model(**settings):
    torch.manual_seed(1)
    sizes = {"vocab_size": V, "block_size": BLOCK, "n_embd": C, "n_head": NH, "n_layer": L}
    return Transformer(TransformerConfig(**sizes, **settings))


def some_x(T=T, dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(B, T, C, dtype=dtype, generator=generator)


def modes(layer):
    return {name: module.training for name, module in layer.named_modules()}


class Half(nn.Module):
    """A head and its dropout, one in training and one not, that may refuse to work."""

    def __init__(self, error=None):
        super().__init__()
        self.head, self.dropout, self.error = Head(C, C, BLOCK), nn.Dropout(0.5), error
        self.head.eval()

    def forward(self, x):
        if self.error:
            raise self.error
        assert not any(modes(self).values())
        return self.dropout(self.head(x))


@pytest.mark.parametrize("layer", [loop_mean, tril_mean, softmax_mean])
@pytest.mark.parametrize("T", [1, 2, 7])
def test_weights_read_from_a_mean_are_its_weights(layer, T):
    torch.testing.assert_close(probe.weights_of(layer, T), mean_weights(T), atol=1e-6, rtol=0)


def test_weights_of_a_lopsided_average_come_row_by_row():
    weights = torch.tensor([[0.0, 0.9, 0.1], [0.3, 0.7, 0.0], [0.2, 0.2, 0.6]])
    torch.testing.assert_close(probe.weights_of(lambda x: weights @ x, 3), weights)


def test_weights_of_a_size_that_is_none_are_refused():
    with pytest.raises(ValueError, match=r"T = 0.*at least 1"):
        probe.weights_of(loop_mean, 0)


def test_influence_of_a_lopsided_average_is_known():
    weights = torch.tensor([[0.0, -0.9, 0.1], [0.3, 0.7, 0.0], [2.0, 0.2, 0.6]])
    found = probe.influence(lambda x: weights @ x, some_x(T=3))
    torch.testing.assert_close(found, weights.abs() * math.sqrt(B * C))


def test_influence_equals_finite_differences():
    torch.manual_seed(1)
    head, x, step = Head(C, 3, BLOCK).double(), some_x(dtype=torch.float64), 1e-5
    expected = torch.zeros(T, T, dtype=torch.float64)
    for b in range(B):
        for s in range(T):
            for c in range(C):
                nudge = torch.zeros_like(x)
                nudge[b, s, c] = step
                slope = (head(x + nudge) - head(x - nudge)) / (2 * step)
                expected[:, s] += slope.square().sum(dim=(0, 2)).detach()
    torch.testing.assert_close(probe.influence(head, x), expected.sqrt(), atol=1e-7, rtol=1e-6)


def test_influence_leaves_no_gradients_behind():
    head, x = Head(C, 3, BLOCK), some_x().requires_grad_()
    with torch.no_grad():
        found = probe.influence(head, x)
    assert not found.requires_grad
    assert x.grad is None
    assert all(weight.grad is None for weight in head.parameters())
    assert found.diagonal().min() > 0


def test_a_model_of_ids_is_probed_at_its_embeddings():
    model, idx = a_model(dropout=0.5), torch.tensor([[3, 1, 10, 1], [0, 2, 4, 9]])
    model.eval()

    def after_embedding(vectors):
        return model.lm_head(model.ln_f(model.blocks(vectors)))

    vectors = model.embed(idx).detach()
    expected = probe.influence(after_embedding, vectors)
    torch.testing.assert_close(probe.influence(model.train(), idx), expected)
    assert expected.tril().count_nonzero() == 4 * 5 / 2
    assert probe.leaks(model, idx) == 0.0
    assert not model.embed._forward_hooks


@pytest.mark.parametrize("look", [probe.influence, probe.leaks])
def test_input_of_another_kind_is_refused(look):
    with pytest.raises(TypeError, match=r"int64.*\.embed"):
        look(Head(C, 3, BLOCK), torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match=r"\(5, 6\).*\(B, T, C\)"):
        look(loop_mean, torch.zeros(5, 6))
    with pytest.raises(TypeError, match="list"):
        look(loop_mean, [[[1.0]]])
    with pytest.raises(ValueError, match=r"token id 11 .*0 to 10"):
        look(a_model(), torch.tensor([[1, V]]))


def test_leaks_grow_with_what_is_let_through_from_ahead_and_not_from_behind():
    def ahead(share):
        return lambda x: x + share * x.roll(-1, dims=1)

    def behind(x):
        return x + torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)

    x = some_x()
    assert probe.leaks(ahead(0.1), x) > 0.1
    assert probe.leaks(ahead(0.5), x) == pytest.approx(5 * probe.leaks(ahead(0.1), x), rel=1e-4)
    assert probe.leaks(behind, x) == 0.0


@pytest.mark.parametrize(("t", "ahead"), [(0, 1), (0, 4), (2, 3), (3, 4)])
def test_a_single_number_that_looks_ahead_is_enough(t, ahead):
    def layer(x):
        out = x.clone()
        out[1, t, 2] += x[1, ahead, 3]
        return out

    expected = torch.eye(T) * math.sqrt(B * C)
    expected[t, ahead] = 1
    torch.testing.assert_close(probe.influence(layer, some_x()), expected)
    assert probe.leaks(layer, some_x()) > 1e-3


def test_one_position_has_no_future_to_leak():
    assert probe.leaks(lambda x: x.mean(dim=1, keepdim=True), some_x(T=1)) == 0.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_leaks_are_found_in_every_precision(dtype):
    found = probe.leaks(lambda x: x.mean(dim=1, keepdim=True).expand_as(x), some_x(dtype=dtype))
    assert isinstance(found, float)
    assert found > 0.1
    assert probe.leaks(tril_mean, some_x(dtype=dtype)) == 0.0


def test_a_change_that_is_no_number_is_not_reported_as_none():
    def breaks_after_a_change(y, x=some_x()):
        return y if torch.equal(y, x) else y * float("nan")

    assert math.isnan(probe.leaks(breaks_after_a_change, some_x()))


@pytest.mark.parametrize(
    "look",
    [
        lambda layer: probe.weights_of(layer, C),
        lambda layer: probe.influence(layer, some_x()),
        lambda layer: probe.leaks(layer, some_x()),
    ],
)
def test_a_layer_is_probed_in_eval_mode_and_given_back_as_it_was(look):
    for layer in (Half(), Half().eval(), Half().train()):
        before = modes(layer)
        look(layer)
        assert modes(layer) == before
    broken = Half(error=RuntimeError("no"))
    before = modes(broken)
    with pytest.raises(RuntimeError, match="no"):
        look(broken)
    assert modes(broken) == before


def test_maps_come_by_layer_and_head():
    model, idx = a_model(), torch.tensor([[3, 1, 10, 1, 5]])
    nn.init.normal_(model.embed.tokemb.weight)
    for head in (head for block in model.blocks for head in block.attention.heads):
        nn.init.normal_(head.query.weight)
        nn.init.normal_(head.key.weight)
    nn.init.zeros_(model.blocks[1].attention.heads[2].query.weight)
    before = modes(model)
    maps = probe.attention_maps(model, idx)
    assert maps.shape == (L, NH, T, T)
    assert not maps.requires_grad
    assert modes(model) == before
    torch.testing.assert_close(maps.sum(dim=-1), torch.ones(L, NH, T))
    torch.testing.assert_close(maps.triu(1), torch.zeros(L, NH, T, T), atol=0, rtol=0)
    torch.testing.assert_close(maps[1, 2], mean_weights(T))
    level = (maps - mean_weights(T)).abs().amax(dim=(-2, -1)) < 1e-3
    assert level.tolist() == [[False, False, False], [False, False, True]]
    head = model.blocks[0].attention.heads[1]
    x = model.blocks[0].ln1(model.embed(idx))
    torch.testing.assert_close(maps[0, 1] @ head.value(x)[0], head(x)[0])


@pytest.mark.parametrize("idx", [torch.zeros(2, 5, dtype=torch.long), torch.zeros(0, 5).long()])
def test_maps_of_several_sequences_are_refused(idx):
    with pytest.raises(ValueError, match=rf"\({len(idx)}, 5\).*\(1, T\)"):
        probe.attention_maps(a_model(), idx)


def test_maps_of_a_sequence_that_is_too_long_are_refused():
    with pytest.raises(ValueError, match=r"T = 9 .*block_size = 8"):
        probe.attention_maps(a_model(), torch.zeros(1, BLOCK + 1, dtype=torch.long))
