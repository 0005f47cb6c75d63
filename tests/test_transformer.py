"""transformer: every part equal to the same part of torch.nn, and a model that starts level."""

import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers.qkv_head import Head
from helpers.softmax_mask import causal_mask
from helpers.transformer import (
    Block,
    FeedForward,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
)

B, T, C, NH, BLOCK, V, L = 2, 5, 6, 3, 8, 11, 2
SIZES = {"vocab_size": V, "block_size": BLOCK, "n_embd": C, "n_head": NH, "n_layer": L}


def drawn_wide(layer):
    """The layer with every weight and bias drawn anew, so that none is small enough to miss."""
    torch.manual_seed(1)
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.4)
    return layer.eval()


def a_model(**settings):
    torch.manual_seed(1)
    return Transformer(TransformerConfig(**{**SIZES, **settings}))


def some_x(T=T):
    return torch.randn(B, T, C, generator=torch.Generator().manual_seed(2))


def some_ids(T=T, vocab_size=V):
    return torch.randint(vocab_size, (B, T), generator=torch.Generator().manual_seed(2))


def copy_heads(ours, theirs):
    """Give nn.MultiheadAttention the weights of our heads: queries, keys, values."""
    stacked = [
        getattr(head, name).weight for name in ("query", "key", "value") for head in ours.heads
    ]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat(stacked))
        theirs.in_proj_bias.zero_()
    theirs.out_proj.load_state_dict(ours.proj.state_dict())


def as_torch_layer(block):
    """Build the nn.TransformerEncoderLayer that has the weights of a Block."""
    layer = nn.TransformerEncoderLayer(
        C,
        NH,
        dim_feedforward=4 * C,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )
    copy_heads(block.attention, layer.self_attn)
    layer.norm1.load_state_dict(block.ln1.state_dict())
    layer.norm2.load_state_dict(block.ln2.state_dict())
    layer.linear1.load_state_dict(block.feed_forward.net[0].state_dict())
    layer.linear2.load_state_dict(block.feed_forward.net[2].state_dict())
    return layer.eval()


def test_heads_stand_side_by_side_and_are_projected():
    layer, x = drawn_wide(MultiHeadAttention(C, NH, BLOCK)), some_x()
    assert [type(head) for head in layer.heads] == [Head] * NH
    side_by_side = torch.cat([head(x) for head in layer.heads], dim=-1)
    torch.testing.assert_close(layer(x), layer.proj(side_by_side))
    assert side_by_side.shape == (B, T, C)
    assert layer.heads[0](x).shape == (B, T, C // NH)


def test_heads_equal_those_of_torch_whose_mask_means_the_opposite():
    ours = drawn_wide(MultiHeadAttention(C, NH, BLOCK))
    theirs = nn.MultiheadAttention(C, NH, batch_first=True)
    copy_heads(ours, theirs)
    x = some_x()
    out, weights = theirs(x, x, x, attn_mask=~causal_mask(T), average_attn_weights=False)
    torch.testing.assert_close(ours(x), out, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(torch.stack([head.weights for head in ours.heads], dim=1), weights)


def test_a_block_equals_the_encoder_layer_of_torch():
    block, x = drawn_wide(Block(C, NH, BLOCK)), some_x()
    expected = as_torch_layer(block)(x, src_mask=~causal_mask(T))
    torch.testing.assert_close(block(x), expected, atol=1e-5, rtol=1e-5)


def test_the_model_equals_the_parts_of_torch_put_together():
    model, idx = drawn_wide(a_model()), some_ids()
    tokens, places = nn.Embedding(V, C), nn.Embedding(BLOCK, C)
    ln_f, lm_head = nn.LayerNorm(C), nn.Linear(C, V, bias=False)
    tokens.load_state_dict(model.embed.tokemb.state_dict())
    places.load_state_dict(model.embed.posemb.state_dict())
    ln_f.load_state_dict(model.ln_f.state_dict())
    lm_head.load_state_dict(model.lm_head.state_dict())
    x = tokens(idx) + places(torch.arange(T))
    for block in model.blocks:
        x = as_torch_layer(block)(x, src_mask=~causal_mask(T))
    torch.testing.assert_close(model(idx), lm_head(ln_f(x)), atol=1e-5, rtol=1e-5)
    assert len(model.blocks) == L


def test_feed_forward_works_on_every_position_alone_through_four_times_the_width():
    layer, x = drawn_wide(FeedForward(C)), some_x()
    wide, narrow = layer.net[0], layer.net[2]
    assert wide.weight.shape == (4 * C, C)
    torch.testing.assert_close(layer(x), narrow(F.gelu(wide(x))))
    torch.testing.assert_close(layer(x)[:, 2], layer(x[:, 2]))


def test_another_attention_can_take_the_first_half_of_every_block():
    class NoAttention(nn.Module):
        def __init__(self, n_embd, n_head, block_size, dropout=0.0):
            super().__init__()
            self.given = (n_embd, n_head, block_size, dropout)

        def forward(self, x):
            return 0 * x

    model = Transformer(TransformerConfig(**SIZES, dropout=0.25), attention=NoAttention)
    assert [block.attention.given for block in model.blocks] == [(C, NH, BLOCK, 0.25)] * L
    block, x = Block(C, NH, BLOCK, attention=NoAttention), some_x()
    torch.testing.assert_close(block(x), x + block.feed_forward(block.ln2(x)))


def test_an_untrained_model_knows_nothing():
    vocab_size = 65
    model = a_model(vocab_size=vocab_size, n_embd=24)
    logits = model(some_ids(8, vocab_size))
    assert logits.shape == (B, 8, vocab_size)
    loss = F.cross_entropy(logits.flatten(0, 1), some_ids(8, vocab_size).flatten())
    torch.testing.assert_close(loss.item(), math.log(vocab_size), atol=0.1, rtol=0)


def test_the_model_gives_logits_not_probabilities():
    logits = drawn_wide(a_model())(some_ids())
    assert logits.min() < 0
    assert ((logits.sum(dim=-1) - 1).abs() > 0.1).any()


def test_the_number_of_parameters_is_the_sum_of_the_parts():
    embeddings = V * C + BLOCK * C
    heads = 3 * C * C
    projection = C * C + C
    feed_forward = (C * 4 * C + 4 * C) + (4 * C * C + C)
    layer_norm = 2 * C
    block = heads + projection + feed_forward + 2 * layer_norm
    expected = embeddings + L * block + layer_norm + C * V
    assert sum(weight.numel() for weight in a_model().parameters()) == expected


def test_weights_start_with_deviation_0_02_and_biases_at_0():
    model = a_model(vocab_size=50, block_size=40, n_embd=48)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Embedding):
            assert 0.018 < layer.weight.std() < 0.022
            assert layer.weight.mean().abs() < 0.002
        if isinstance(layer, nn.LayerNorm):
            torch.testing.assert_close(layer.weight, torch.ones(48), check_dtype=False)
        if getattr(layer, "bias", None) is not None:
            assert (layer.bias == 0).all()


def test_only_query_key_value_and_lm_head_have_no_bias():
    linears = [
        (name.split(".")[-1], layer.bias is None)
        for name, layer in a_model().named_modules()
        if isinstance(layer, nn.Linear)
    ]
    assert {name for name, bare in linears if bare} == {"query", "key", "value", "lm_head"}
    assert {name for name, bare in linears if not bare} == {"proj", "0", "2"}


def test_reading_and_writing_tokens_have_weights_of_their_own():
    model = a_model()
    assert model.lm_head.weight is not model.embed.tokemb.weight
    assert model.lm_head.weight.data_ptr() != model.embed.tokemb.weight.data_ptr()


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: MultiHeadAttention(C, NH, BLOCK, dropout=0.5), some_x),
        (lambda: FeedForward(C, dropout=0.5), some_x),
        (lambda: Block(C, NH, BLOCK, dropout=0.5), some_x),
        (lambda: a_model(dropout=0.5), some_ids),
    ],
)
def test_dropout_acts_in_training_only(make, given):
    layer, x = make(), given()
    assert (layer(x) - layer(x)).abs().max() > 1e-3
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x), atol=0, rtol=0)


def test_dropout_acts_on_embeddings_weights_projection_and_feed_forward():
    model, idx = drawn_wide(a_model(dropout=0.25)).train(), some_ids()
    dropped = [layer for layer in model.modules() if isinstance(layer, nn.Dropout)]
    assert {layer.p for layer in dropped} == {0.25}
    assert len(dropped) == 1 + L * (NH + 1 + 1)
    for layer in dropped:
        layer.p = 0.0
    torch.testing.assert_close(model(idx), model(idx), atol=0, rtol=0)
    for layer in dropped:
        layer.p = 0.5
        assert (model(idx) - model(idx)).abs().max() > 1e-4
        layer.p = 0.0


def test_every_layer_of_the_model_moves_whole():
    model = a_model().to("meta").eval()
    assert all(weight.is_meta for weight in [*model.parameters(), *model.buffers()])
    assert model(some_ids().to("meta")).is_meta
    wide, narrow = a_model().double(), a_model()
    torch.testing.assert_close(wide(some_ids()).float(), narrow(some_ids()))


def test_weights_load_at_another_depth_of_context():
    short, long = drawn_wide(Block(C, NH, BLOCK)), Block(C, NH, 2 * BLOCK)
    long.load_state_dict(short.state_dict())
    torch.testing.assert_close(long(some_x()), short(some_x()))


def test_all_of_block_size_fits_and_one_more_is_refused():
    model = a_model()
    assert model(some_ids(BLOCK)).shape == (B, BLOCK, V)
    with pytest.raises(ValueError, match=r"T = 9 .*block_size = 8.*last 8"):
        model(some_ids(BLOCK + 1))
    with pytest.raises(ValueError, match=r"T = 9 .*block_size = 8.*last 8"):
        Block(C, NH, BLOCK)(some_x(BLOCK + 1))


@pytest.mark.parametrize(
    ("idx", "error", "said"),
    [
        (torch.tensor([[0, V]]), ValueError, "token id 11 .*0 to 10"),
        (torch.tensor([[0, -2]]), ValueError, "token id -2 .*0 to 10"),
        (torch.tensor([[0.5]]), TypeError, "float32.*integer"),
        (torch.tensor([0, 1]), ValueError, r"\(2,\).*\(B, T\)"),
        (torch.zeros(B, 0, dtype=torch.long), ValueError, r"\(2, 0\).*\(B, T\)"),
    ],
)
def test_other_ids_are_refused(idx, error, said):
    with pytest.raises(error, match=said):
        a_model()(idx)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MultiHeadAttention(32, 5, BLOCK),
        lambda: Block(32, 5, BLOCK),
        lambda: TransformerConfig(**{**SIZES, "n_embd": 32, "n_head": 5}),
    ],
)
def test_a_width_that_does_not_split_among_the_heads_is_refused(make):
    with pytest.raises(ValueError, match=r"n_embd = 32 .*n_head = 5 .*2 channels"):
        make()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"vocab_size": 0}, "vocab_size = 0.*at least 1"),
        ({"block_size": -1}, "block_size = -1.*at least 1"),
        ({"n_layer": 0}, "n_layer = 0.*at least 1"),
        ({"n_head": 0}, "n_head = 0.*at least 1"),
        ({"n_embd": 6.0}, "n_embd = 6.0.*whole number"),
        ({"n_embd": NH, "n_head": C}, "n_embd = 3.*n_head = 6"),
        ({"dropout": 1.0}, "dropout = 1.0.*from 0 up to"),
    ],
)
def test_impossible_settings_are_refused_when_the_config_is_made(settings, said):
    with pytest.raises(ValueError, match=said):
        TransformerConfig(**{**SIZES, **settings})


def test_a_config_is_given_by_name_is_complete_and_stays_as_it_is():
    config = TransformerConfig(**SIZES)
    assert config.dropout == 0.0
    assert config == TransformerConfig(**SIZES)
    with pytest.raises(TypeError, match="positional"):
        TransformerConfig(V, BLOCK, C, NH, L)
    with pytest.raises(TypeError, match="n_heads"):
        TransformerConfig(**SIZES, n_heads=NH)
    with pytest.raises(TypeError, match="n_layer"):
        TransformerConfig(vocab_size=V, block_size=BLOCK, n_embd=C, n_head=NH)
    with pytest.raises(FrozenInstanceError):
        config.n_embd = 12
