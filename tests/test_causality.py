"""Nothing leaks: for every layer, by gradient, by changing the future, and by cutting it off."""

import pytest
import torch
from torch import nn

from helpers import probe
from helpers.fast_heads import FastMultiHeadAttention
from helpers.loop_mean import loop_mean
from helpers.qkv_head import Head
from helpers.softmax_mask import softmax_mean
from helpers.transformer import Block, MultiHeadAttention, Transformer, TransformerConfig
from helpers.tril_matmul import tril_mean

B, T, C, NH, BLOCK, V = 2, 5, 6, 3, 8, 11
CONFIG = TransformerConfig(vocab_size=V, block_size=BLOCK, n_embd=C, n_head=NH, n_layer=2)
LAYERS = {
    "loop_mean": lambda: loop_mean,
    "tril_mean": lambda: tril_mean,
    "softmax_mean": lambda: softmax_mean,
    "Head": lambda: Head(C, 4, BLOCK),
    "MultiHeadAttention": lambda: MultiHeadAttention(C, NH, BLOCK),
    "FastMultiHeadAttention": lambda: FastMultiHeadAttention(C, NH, BLOCK),
    "Block": lambda: Block(C, NH, BLOCK),
    "Transformer": lambda: Transformer(CONFIG),
    "fast Transformer": lambda: Transformer(CONFIG, FastMultiHeadAttention),
}
WITH_A_MASK = ["Head", "MultiHeadAttention", "Block", "Transformer"]
BROKEN_MASKS = {
    "everyone is seen": torch.ones(BLOCK, BLOCK, dtype=torch.bool),
    "one step ahead is seen": torch.ones(BLOCK, BLOCK, dtype=torch.bool).tril(1),
    "only the future is seen": torch.ones(BLOCK, BLOCK, dtype=torch.bool).triu(),
}


def a_layer(name):
    torch.manual_seed(1)
    layer = LAYERS[name]()
    if isinstance(layer, nn.Module):
        for weight in layer.parameters():
            nn.init.normal_(weight, std=0.3)
    return layer


def an_input(name):
    generator = torch.Generator().manual_seed(2)
    if "Transformer" in name:
        return torch.randint(V, (B, T), generator=generator)
    return torch.randn(B, T, C, generator=generator)


@pytest.mark.parametrize("name", LAYERS)
def test_no_gradient_comes_from_the_future_and_all_of_the_past_counts(name):
    influence = probe.influence(a_layer(name), an_input(name))
    assert influence.shape == (T, T)
    torch.testing.assert_close(influence.triu(1), torch.zeros(T, T), atol=0, rtol=0)
    assert (influence[torch.ones(T, T).tril().bool()] > 1e-6).all()


@pytest.mark.parametrize("name", LAYERS)
def test_changing_the_future_leaves_the_past_to_the_last_bit(name):
    assert probe.leaks(a_layer(name), an_input(name)) == 0.0


@pytest.mark.parametrize("name", LAYERS)
def test_a_prefix_gives_the_same_outputs(name):
    layer, x = a_layer(name), an_input(name)
    whole = layer(x)
    for t in range(1, T):
        torch.testing.assert_close(layer(x[:, :t]), whole[:, :t], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_other_examples_in_the_batch_change_nothing(name):
    layer, x = a_layer(name), an_input(name)
    torch.testing.assert_close(layer(x)[1:], layer(x[1:]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", WITH_A_MASK)
@pytest.mark.parametrize("mask", BROKEN_MASKS)
def test_a_broken_mask_is_reported(name, mask):
    layer, x = a_layer(name), an_input(name)
    for head in layer.modules():
        if isinstance(head, Head):
            head.mask = BROKEN_MASKS[mask]
    assert probe.influence(layer, x).diagonal(1).min() > 1e-6
    assert probe.leaks(layer, x) > 1e-3


@pytest.mark.parametrize("name", ["MultiHeadAttention", "Block", "Transformer"])
def test_one_broken_head_is_enough_to_be_reported(name):
    layer, x = a_layer(name), an_input(name)
    *_, last = (head for head in layer.modules() if isinstance(head, Head))
    last.mask = BROKEN_MASKS["everyone is seen"]
    assert probe.influence(layer, x).triu(1).max() > 1e-6
    assert probe.leaks(layer, x) > 1e-6


def test_a_mean_that_sees_everyone_is_reported():
    x = an_input("loop_mean")
    influence = probe.influence(lambda x: x.mean(dim=1, keepdim=True).expand_as(x), x)
    torch.testing.assert_close(influence, torch.full((T, T), (B * C) ** 0.5 / T))
    assert probe.leaks(lambda x: x.mean(dim=1, keepdim=True).expand_as(x), x) > 0.1
