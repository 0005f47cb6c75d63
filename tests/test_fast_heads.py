"""fast_heads: what 06 gives, to the fifth decimal, in one product and from a cache."""

import copy
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers import cost, probe
from helpers.checkpoint import load_checkpoint, save_checkpoint
from helpers.fast_heads import FastMultiHeadAttention, KVCache
from helpers.sample import can_cache, generate
from helpers.text import CharTokenizer
from helpers.train import cross_entropy
from helpers.transformer import Block, MultiHeadAttention, Transformer, TransformerConfig

ROOT = Path(__file__).resolve().parents[1]
B, T, C, NH, HS, BLOCK, V, L = 6, 5, 12, 3, 4, 8, 11, 7
SIZES = {"vocab_size": V, "block_size": BLOCK, "n_embd": C, "n_head": NH, "n_layer": L}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
ATTENTIONS = [MultiHeadAttention, FastMultiHeadAttention]


def drawn_wide(layer):
    """The layer with every weight and bias drawn anew, so that none is small enough to miss."""
    torch.manual_seed(1)
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.4)
    return layer


def two_layers(**more):
    """06's layer and the fast one with the same weights."""
    slow, fast = (attention(C, NH, BLOCK, **more) for attention in ATTENTIONS)
    fast.load_state_dict(drawn_wide(slow).state_dict())
    return slow, fast


def two_models(**more):
    """06's model and the fast one with the same weights, in eval mode."""
    config = TransformerConfig(**{**SIZES, **more})
    slow, fast = (Transformer(config, attention).eval() for attention in ATTENTIONS)
    fast.load_state_dict(drawn_wide(slow).state_dict())
    return slow, fast


MODELS = two_models()  # for those who do not change them


def some_x(T=T):
    return torch.randn(B, T, C, generator=torch.Generator().manual_seed(2))


def some_ids(T=T, B=B):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(2))


def seeded():
    return torch.Generator().manual_seed(5)


def same_weights(one, other):
    torch.testing.assert_close(one.state_dict(), other.state_dict(), atol=0, rtol=0)


# one product


@pytest.mark.parametrize(("n_embd", "n_head"), [(C, NH), (C, 1), (6, 6), (32, 2)])
@pytest.mark.parametrize("T", [1, 2, BLOCK])
def test_one_product_gives_what_single_heads_give(n_embd, n_head, T):
    slow, fast = (attention(n_embd, n_head, BLOCK) for attention in ATTENTIONS)
    fast.load_state_dict(drawn_wide(slow).state_dict())
    x = torch.randn(B, T, n_embd)
    assert fast(x).shape == (B, T, n_embd)
    torch.testing.assert_close(fast(x), slow(x), **CLOSE)


def test_the_whole_model_gives_the_logits_of_06():
    slow, fast = MODELS
    torch.testing.assert_close(fast(some_ids(BLOCK)), slow(some_ids(BLOCK)), **CLOSE)


def test_gradients_are_those_of_single_heads():
    slow, fast = two_models()
    for model in (slow, fast):
        cross_entropy(model(some_ids()), some_ids().roll(1)).backward()
        for weight in model.parameters():
            weight.data = weight.grad
    gradients = slow.state_dict()
    assert all((gradient != 0).any() for gradient in gradients.values())
    torch.testing.assert_close(dict(fast.state_dict()), dict(gradients), **CLOSE)


def test_gradients_reach_the_input():
    slow, fast = two_layers()
    grads = []
    for layer in (slow, fast):
        x = some_x().requires_grad_()
        (layer(x) * some_x().flip(1)).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads, **CLOSE)


def test_a_head_has_neighbouring_channels_of_its_own_token():
    layer = FastMultiHeadAttention(6, 2, BLOCK)
    with torch.no_grad():
        layer.qkv.weight.copy_(torch.cat([torch.eye(6), 2 * torch.eye(6), 3 * torch.eye(6)]))
    x = torch.arange(24.0).view(1, 4, 6)
    for number, made in enumerate(layer.queries_keys_values(x), start=1):
        assert made.shape == (1, 2, 4, 3)
        torch.testing.assert_close(made[0, 0], number * x[0, :, :3])
        torch.testing.assert_close(made[0, 1], number * x[0, :, 3:])


def test_weights_start_with_deviation_0_02_as_all_others():
    config = TransformerConfig(**{**SIZES, "n_embd": 48})
    for block in Transformer(config, FastMultiHeadAttention).blocks:
        assert 0.018 < block.attention.qkv.weight.std() < 0.022
        assert (block.attention.proj.bias == 0).all()
        assert block.attention.qkv.bias is None


def test_dropout_acts_in_training_only():
    layer, x = FastMultiHeadAttention(C, NH, BLOCK, dropout=0.5), some_x()
    assert (layer(x) - layer(x)).abs().max() > 1e-3
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x), atol=0, rtol=0)


def test_dropout_acts_on_the_weights_and_on_what_the_heads_bring():
    layer, x = two_layers(dropout=0.5)[1], some_x()
    layer.dropout.register_forward_hook(lambda dropout, given, out: given[0])
    assert (layer.train()(x) - layer(x)).abs().max() > 1e-3  # on the weights
    layer = two_layers(dropout=0.5)[1].train()
    assert (layer(x) == 0).any()  # and at the end


def test_weights_come_when_asked_for_and_are_those_of_single_heads():
    slow, fast = two_layers()
    x = some_x()
    slow.eval()(x)
    weights = fast.weights_of(x)
    assert weights.shape == (B, NH, T, T)
    torch.testing.assert_close(weights, torch.stack([h.weights for h in slow.heads], 1), **CLOSE)
    v = fast.queries_keys_values(x)[2]
    torch.testing.assert_close(fast.proj((weights @ v).transpose(1, 2).flatten(2)), fast(x))


def test_the_pictures_of_a_model_are_those_of_06():
    slow, fast = two_models(dropout=0.25)
    maps = probe.attention_maps(fast.train(), some_ids(B=1))
    assert maps.shape == (L, NH, T, T)
    assert not maps.requires_grad
    assert fast.blocks[1].attention.training
    torch.testing.assert_close(maps, probe.attention_maps(slow, some_ids(B=1)), **CLOSE)


# saving and loading


def test_either_model_loads_what_the_other_saved(tmp_path):
    slow, fast = two_models()
    fast = drawn_wide(fast)
    tokenizer, path = CharTokenizer("abcdefghijk"), tmp_path / "model.pt"
    for wrote in (slow, fast):
        save_checkpoint(path, wrote, tokenizer)
        for attention in ATTENTIONS:
            read, _ = load_checkpoint(path, attention)
            assert type(read.blocks[0].attention) is attention
            same_weights(read, wrote)
            torch.testing.assert_close(read(some_ids()), wrote(some_ids()), **CLOSE)


def test_saving_changes_nothing_and_a_copy_saves_its_own():
    fast = two_models()[1]
    names = [name for name, _ in fast.named_parameters()]
    saved = copy.deepcopy(fast.state_dict())
    other = copy.deepcopy(fast)
    drawn = {name: torch.randn_like(weight) for name, weight in saved.items()}
    other.load_state_dict(drawn)
    assert len(drawn) == len(saved)
    torch.testing.assert_close(dict(other.state_dict()), drawn, atol=0, rtol=0)
    torch.testing.assert_close(dict(fast.state_dict()), dict(saved), atol=0, rtol=0)
    assert [name for name, _ in fast.named_parameters()] == names


def test_heads_of_other_sizes_are_refused_though_all_rows_together_would_fit():
    slow, fast = two_layers()
    state = slow.state_dict()
    state["heads.1.key.weight"], state["heads.2.key.weight"] = torch.ones(5, C), torch.ones(3, C)
    with pytest.raises(RuntimeError, match=r"heads\.1\.key\.weight"):
        fast.load_state_dict(state)


@pytest.mark.parametrize("n_head", [2, 4])
def test_weights_of_another_number_of_heads_are_refused(n_head):
    other = Transformer(TransformerConfig(**{**SIZES, "n_head": n_head}))
    fast = Transformer(TransformerConfig(**SIZES), FastMultiHeadAttention)
    with pytest.raises(RuntimeError, match=r"heads"):
        fast.load_state_dict(other.state_dict())


def test_weights_load_at_another_block_size():
    short, long = FastMultiHeadAttention(C, NH, BLOCK), FastMultiHeadAttention(C, NH, 2 * BLOCK)
    long.load_state_dict(short.state_dict())
    torch.testing.assert_close(long(some_x()), short(some_x()))
    assert not list(long.buffers())


# sizes, kinds and places


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.bfloat16, 0.05)])
def test_every_precision_gives_its_own_kind(dtype, atol):
    slow, fast = two_models()
    exact = slow.double()(some_ids())
    fast = fast.to(dtype)
    logits = fast(some_ids())
    assert logits.dtype == dtype
    torch.testing.assert_close(logits.double(), exact, atol=atol, rtol=atol)
    cache = KVCache(fast, B)
    assert cache.kept.dtype == dtype
    read = torch.cat([cache.read_on(ids) for ids in some_ids().split(2, dim=1)], dim=1)
    torch.testing.assert_close(read.double(), exact, atol=atol, rtol=atol)


def test_layer_and_cache_move_whole():
    fast = two_models()[1].to("meta")
    idx = some_ids().to("meta")
    assert fast(idx).is_meta
    cache = KVCache(fast, B)
    assert cache.read_on(idx).is_meta
    assert cache.kept.is_meta


def test_a_width_that_does_not_split_among_the_heads_is_refused():
    with pytest.raises(ValueError, match=r"n_embd = 32 .*n_head = 5 .*2 channels"):
        FastMultiHeadAttention(32, 5, BLOCK)
    with pytest.raises(ValueError, match="block_size = 0"):
        FastMultiHeadAttention(C, NH, 0)
    with pytest.raises(ValueError, match=r"dropout = 1\.0"):
        FastMultiHeadAttention(C, NH, BLOCK, dropout=1.0)


@pytest.mark.parametrize(
    ("x", "error", "said"),
    [
        (torch.zeros(B, BLOCK + 1, C), ValueError, "T = 9 .*block_size = 8.*last 8"),
        (torch.zeros(T, C), ValueError, r"\(5, 12\).*\(B, T, C\)"),
        (torch.zeros(B, T, C + 1), ValueError, "13 channels.*n_embd = 12"),
        (torch.zeros(B, T, C, dtype=torch.long), TypeError, "int64"),
    ],
)
def test_other_input_is_refused(x, error, said):
    layer = FastMultiHeadAttention(C, NH, BLOCK)
    for look in (layer, layer.weights_of):
        with pytest.raises(error, match=said):
            look(x)


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peaks are read as Linux has them"
)
def test_memory_grows_with_T_and_not_with_its_square():
    script = """
import json, re
import torch
from helpers.fast_heads import FastMultiHeadAttention

torch.set_num_threads(1)
layer = FastMultiHeadAttention(64, 2, 8192)
peaks = []
for T in (512, 4096, 8192):
    layer(torch.randn(1, T, 64, requires_grad=True)).sum().backward()
    status = open("/proc/self/status", encoding="utf-8").read()
    peaks.append(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024)
print(json.dumps([peak - peaks[0] for peak in peaks[1:]]))
"""
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, encoding="utf-8")
    half, whole = json.loads(run.stdout)  # bytes above those that T = 512 took
    assert 0 < half < whole < 3 * half
    assert whole < 8192 * 8192  # less than a single mask (T, T) would take


# the cache


@given(cuts=st.sets(st.integers(1, BLOCK - 1)), end=st.integers(1, BLOCK), B=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_however_a_text_is_cut_the_cache_gives_the_logits_of_the_whole(cuts, end, B):
    slow, fast = MODELS
    idx, cache = some_ids(end, B), KVCache(fast, B)
    bounds = [0, *sorted(cut for cut in cuts if cut < end), end]
    for start, stop in itertools.pairwise(bounds):
        logits = cache.read_on(idx[:, start:stop])
        assert cache.length == stop
        torch.testing.assert_close(logits, slow(idx)[:, start:stop], **CLOSE)


def test_a_cache_asks_only_for_the_blocks_that_there_are_and_any_head():
    fast = two_models()[1]
    fast.blocks, fast.lm_head = fast.blocks[:2], nn.Identity()
    assert can_cache(fast.eval())
    torch.testing.assert_close(KVCache(fast, B).read_on(some_ids()), fast(some_ids()), **CLOSE)


def test_reading_a_prompt_takes_memory_that_grows_with_it_and_not_with_its_square():
    config = TransformerConfig(**{**SIZES, "block_size": 1024, "n_layer": 1})
    model = Transformer(config, FastMultiHeadAttention).eval()
    half, whole = (
        cost.peak_bytes(KVCache(model).read_on, some_ids(length, 1)) for length in (512, 1024)
    )
    assert half < whole < 2.1 * half


def test_a_text_read_token_by_token_fills_the_cache_to_the_last_place():
    slow, fast = MODELS
    idx, cache = some_ids(BLOCK), KVCache(fast, B)
    logits = torch.cat([cache.read_on(idx[:, t : t + 1]) for t in range(BLOCK)], dim=1)
    torch.testing.assert_close(logits, fast(idx), **CLOSE)
    torch.testing.assert_close(logits, slow(idx), **CLOSE)


def test_caches_know_nothing_of_each_other():
    fast = MODELS[1]
    one, other = KVCache(fast, B), KVCache(fast, B)
    idx, flipped = some_ids(BLOCK), some_ids(BLOCK).flip(1)
    for t in range(0, BLOCK, 2):
        first, second = (
            cache.read_on(ids[:, t : t + 2]) for cache, ids in ((one, idx), (other, flipped))
        )
        torch.testing.assert_close(first, fast(idx)[:, t : t + 2], **CLOSE)
        torch.testing.assert_close(second, fast(flipped)[:, t : t + 2], **CLOSE)


def test_what_is_read_later_changes_nothing_that_is_kept():
    cache = KVCache(MODELS[1], B)
    cache.read_on(some_ids(3))
    before = cache.kept[..., :3, :].clone()
    cache.read_on(some_ids(4))
    torch.testing.assert_close(cache.kept[..., :3, :], before, atol=0, rtol=0)
    assert cache.kept.shape == (L, 2, B, NH, BLOCK, HS)


def test_nothing_read_through_a_cache_has_gradients():
    cache = KVCache(MODELS[1], B)
    assert cache.read_on(some_ids()).grad_fn is None
    assert not cache.kept.requires_grad


@pytest.mark.parametrize(
    ("read", "idx", "error", "said"),
    [
        (6, some_ids(3), ValueError, "holds 6 of block_size = 8 .*T = 3 more.*last 8 tokens"),
        (8, some_ids(1), ValueError, "holds 8 of block_size = 8 .*T = 1 more"),
        (0, some_ids(9), ValueError, "holds 0 of block_size = 8 .*T = 9 more"),
        (2, some_ids(1, B=1), ValueError, "1 rows.*cache 6.*batch_size = 1"),
        (2, some_ids(1) + V, ValueError, "token id .*0 to 10"),
        (2, some_ids()[0], ValueError, r"\(5,\).*\(B, T\)"),
        (2, some_ids().float(), TypeError, "float32.*integer"),
    ],
)
def test_what_does_not_follow_is_refused_and_leaves_the_cache_as_it_was(read, idx, error, said):
    cache = KVCache(MODELS[1], B)
    if read:
        cache.read_on(some_ids(read))
    with pytest.raises(error, match=said):
        cache.read_on(idx)
    assert cache.length == read


def test_a_cache_is_refused_where_it_could_not_be_right():
    slow, fast = two_models(dropout=0.5)
    with pytest.raises(TypeError, match=r"cannot use a cache.*FastMultiHeadAttention"):
        KVCache(slow, B)
    with pytest.raises(ValueError, match="batch_size = 0"):
        KVCache(fast, 0)
    with pytest.raises(TypeError, match=r"whole Transformer, not for FastMultiHeadAttention"):
        KVCache(fast.blocks[0].attention, B)
    fast.blocks[2].train()  # a part is enough
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        KVCache(fast, B).read_on(some_ids())


def test_no_texts_at_all_are_as_good_as_in_06():
    slow, fast = MODELS
    assert fast(some_ids(B=0)).shape == slow(some_ids(B=0)).shape == (0, T, V)
    assert generate(fast, some_ids(B=0), 4).shape == (0, T + 4)


# writing


@pytest.mark.parametrize("T", [1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
@pytest.mark.parametrize("choices", [{"temperature": 0}, {}, {"temperature": 0.7, "top_k": 4}])
def test_the_fast_model_writes_what_06_writes(T, choices):
    slow, fast = MODELS
    texts = [
        generate(model, some_ids(T), 2 * BLOCK, generator=seeded(), **choices)
        for model in (slow, fast, fast)
    ]
    torch.testing.assert_close(texts[1], texts[0], atol=0, rtol=0)
    torch.testing.assert_close(texts[2], texts[0], atol=0, rtol=0)


@pytest.mark.parametrize(("T", "reads"), [(3, [3, 1, 1, 1, 1, 1]), (BLOCK, [BLOCK]), (12, [])])
def test_each_token_is_read_once_until_the_block_is_full_and_then_all_that_fit(
    monkeypatch, T, reads
):
    fast, read, wholes = two_models()[1], [], []
    attention, whole = fast.blocks[0].attention, Transformer.forward
    attention.qkv.register_forward_hook(lambda layer, given, out: read.append(given[0].shape[1]))
    monkeypatch.setattr(
        Transformer, "forward", lambda model, x: wholes.append(x.shape[1]) or whole(model, x)
    )
    generate(fast, some_ids(T), BLOCK, generator=seeded())
    later = BLOCK - len(reads)
    assert read == reads + [BLOCK] * later
    assert wholes == [BLOCK] * later


class LastTwo(FastMultiHeadAttention):
    """Each position looks at itself and the one before."""

    def forward(self, x):
        return super().forward(x) if x.shape[1] < 3 else 0 * x


class Backwards(nn.Sequential):
    def forward(self, x):
        for block in reversed(self):
            x = block(x)
        return x


@pytest.mark.parametrize(
    "change",
    [
        lambda fast: fast.blocks[3].register_forward_hook(lambda block, given, out: 2 * out),
        lambda fast: fast.blocks[3].attention.register_forward_pre_hook(lambda a, x: x[0].flip(-1)),
        lambda fast: fast.embed.register_forward_hook(lambda embed, given, out: out.flip(-1)),
        lambda fast: setattr(fast.blocks[3], "forward", lambda x: x.flip(-1)),
        lambda fast: setattr(fast.blocks[3].attention, "__class__", LastTwo),
        lambda fast: setattr(fast.blocks[3], "__class__", type("Other", (Block,), {})),
        lambda fast: fast.register_forward_hook(lambda model, given, out: out.flip(-1)),
        lambda fast: fast.blocks.register_forward_hook(lambda blocks, given, out: out.flip(-1)),
        lambda fast: fast.dropout.register_forward_hook(lambda layer, given, out: out.flip(-1)),
        lambda fast: setattr(fast, "dropout", nn.Tanh()),
        lambda fast: fast.embed.posemb.register_forward_hook(lambda layer, given, out: 2 * out),
        lambda fast: setattr(fast, "embed", nn.Sequential(fast.embed.tokemb)),
        lambda fast: setattr(fast, "blocks", Backwards(*fast.blocks)),
        lambda fast: setattr(fast.blocks[3].attention, "dropout", nn.Tanh()),
        lambda fast: fast.blocks[3].attention.dropout.register_forward_hook(
            lambda layer, given, out: out.flip(-1)
        ),
    ],
)
def test_a_model_that_was_changed_writes_as_changed(change):
    fast = two_models()[1]
    assert can_cache(fast)
    change(fast)
    assert not can_cache(fast)
    idx = some_ids(3)
    for _ in range(4):
        idx = torch.cat([idx, fast(idx)[:, -1].argmax(dim=-1, keepdim=True)], dim=1)
    torch.testing.assert_close(generate(fast, some_ids(3), 4, temperature=0), idx)


def test_queries_keys_and_values_of_another_kind_are_cached():
    class Louder(FastMultiHeadAttention):
        def queries_keys_values(self, x):
            q, k, v = super().queries_keys_values(x)
            return 2 * q, k, v

    fast = two_models()[1]
    for block in fast.blocks:
        block.attention.__class__ = Louder
    assert can_cache(fast)
    torch.testing.assert_close(KVCache(fast, B).read_on(some_ids()), fast(some_ids()), **CLOSE)


def test_writing_leaves_a_model_in_training_as_it_was_and_drops_nothing():
    slow, fast = two_models(dropout=0.5)
    texts = [generate(model, some_ids(), 12, temperature=0) for model in (slow, fast.train())]
    torch.testing.assert_close(*texts, atol=0, rtol=0)
    assert all(module.training for module in fast.modules())
