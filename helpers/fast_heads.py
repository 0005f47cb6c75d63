"""07: the same heads in one product, and a cache so that writing on computes nothing twice."""

import torch
from torch import nn
from torch.nn import functional as F

from helpers import expect
from helpers.qkv_head import attention
from helpers.softmax_mask import causal_mask


class FastMultiHeadAttention(nn.Module):
    """All heads of MultiHeadAttention at once: one product for q, k and v, one call for the rest.

    Shape:
        x       (B, T, n_embd)  T at most block_size
        return  (B, T, n_embd)  equal to MultiHeadAttention with the same weights

    It gives and takes the state dict of MultiHeadAttention, head by head, so that each loads what
    the other saved. Without dropout, memory grows with T, not with T * T.
    Raises ValueError as MultiHeadAttention does.
    Source: Dao et al. 2022, "FlashAttention: Fast and Memory-Efficient Exact Attention with
    IO-Awareness", algorithm 1.
    """

    def __init__(self, n_embd, n_head, block_size, dropout=0.0):
        super().__init__()
        expect.heads_share(n_embd, n_head)
        expect.sizes(block_size=block_size)
        expect.rate(dropout=dropout)
        self.n_head, self.block_size = n_head, block_size
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)
        self.register_load_state_dict_pre_hook(stack_heads)
        self.register_state_dict_post_hook(unstack_heads)

    def forward(self, x):
        expect.vectors(x, self.qkv.in_features)
        expect.fits(x.shape[1], self.block_size)
        q, k, v = self.queries_keys_values(x)  # (B, T, C) -> 3 times (B, nh, T, hs)
        rate = self.dropout.p if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        out = out.transpose(1, 2).flatten(2)  # (B, nh, T, hs) -> (B, T, nh, hs) -> (B, T, C)
        return self.dropout(self.proj(out))

    def queries_keys_values(self, x):
        """Make the queries, keys and values of all heads.  (B, T, C) -> 3 times (B, nh, T, hs)"""
        B, T, C = x.shape
        parts = self.qkv(x).chunk(3, dim=-1)  # (B, T, C) -> (B, T, 3 C) -> 3 times (B, T, C)
        return [part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in parts]

    def weights_of(self, x):
        """Return who looks at whom, which forward never holds.  (B, T, C) -> (B, nh, T, T)"""
        expect.vectors(x, self.qkv.in_features)
        expect.fits(x.shape[1], self.block_size)
        mask = causal_mask(x.shape[1]).to(x.device)  # (T, T)
        return attention(*self.queries_keys_values(x), mask)[1]


def attend_after(layer, x, kept, past):
    """Let positions attend that follow `past` others, which were read before.

    Shape:
        layer   a FastMultiHeadAttention
        x       (B, T, n_embd)
        kept    (2, B, nh, block_size, hs)  keys and values of those others; x adds its own
        return  (B, T, n_embd)              equal to the last T rows of layer's own, in eval mode
    """
    q, k, v = layer.queries_keys_values(x)  # (B, T, C) -> 3 times (B, nh, T, hs)
    T, S = x.shape[1], past + x.shape[1]
    kept[0, :, :, past:S], kept[1, :, :, past:S] = k, v
    k, v = kept[:, :, :, :S]  # (2, B, nh, S, hs) -> 2 times (B, nh, S, hs)
    mask = None  # one query stands last, and sees every key
    if past and T > 1:  # is_causal would let the first query see key 0 only, not `past` more
        mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(past)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not past)
    return layer.proj(out.transpose(1, 2).flatten(2))  # (B, nh, T, hs) -> (B, T, C)


class KVCache:
    """Keys and values of all that a model has read, so that reading on costs only what is new.

    Shape:
        kept  (n_layer, 2, B, nh, block_size, hs)  keys and values, filled up to `length` positions

    Make a fresh one for every text. When block_size positions are full, it cannot go on: the next
    token moves every other to an earlier place, and no key or value stays what it was.
    Raises TypeError for a model whose attention is not FastMultiHeadAttention or like it.
    Source: Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2.
    """

    def __init__(self, model, batch_size=1):
        expect.all_heads_at_once(model)
        expect.sizes(batch_size=batch_size)
        config = model.config
        heads = config.n_head, config.block_size, config.n_embd // config.n_head
        sizes = len(model.blocks), 2, batch_size, *heads
        self.kept = model.embed.tokemb.weight.new_empty(sizes)
        self.model, self.length = model, 0

    @torch.no_grad()
    def read_on(self, idx):
        """Read tokens that follow those read before, and return their logits.

        Shape:
            idx     (B, T)              integer ids
            return  (B, T, vocab_size)  equal to the last T rows of the model's own logits

        Raises ValueError where they do not fit behind those before, or in training mode.
        """
        expect.token_ids(idx, self.model.config.vocab_size)
        expect.room(idx, self.length, self.kept.shape[2], self.model.config.block_size)
        expect.eval_mode(self.model)
        model, past, T = self.model, self.length, idx.shape[1]
        x = model.embed.tokemb(idx) + model.embed.posemb.weight[past : past + T]  # (B, T, C)
        for block, kept in zip(model.blocks, self.kept, strict=True):
            x = x + attend_after(block.attention, block.ln1(x), kept, past)
            x = x + block.feed_forward(block.ln2(x))
        self.length = past + T
        return model.lm_head(model.ln_f(x))  # (B, T, C) -> (B, T, V)


def head_names(n_head, prefix):
    """Name the weights of single heads, in the order in which they stand in one product."""
    parts = "query", "key", "value"
    return [f"{prefix}heads.{n}.{part}.weight" for part in parts for n in range(n_head)]


def stack_heads(layer, state, prefix, *_):
    """Before weights are loaded: put those of single heads below each other."""
    names = head_names(layer.n_head, prefix)
    given = [state[name].shape for name in names if name in state]
    if given == [row.shape for row in layer.qkv.weight.chunk(len(names))]:  # each (hs, C)
        state[f"{prefix}qkv.weight"] = torch.cat([state.pop(name) for name in names])  # (3 C, C)


def unstack_heads(layer, state, prefix, _):
    """After weights are saved: name the rows of each head, as MultiHeadAttention does."""
    if f"{prefix}qkv.weight" in state:
        rows = state.pop(f"{prefix}qkv.weight").chunk(3 * layer.n_head)  # (3 C, C) -> each (hs, C)
        state.update(zip(head_names(layer.n_head, prefix), rows, strict=True))
