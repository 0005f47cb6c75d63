"""Checks that bad input meets: each says what was given, what is allowed and what to do."""

from numbers import Integral

import torch


def sizes(**named):
    """Require whole numbers of at least 1, else raise ValueError."""
    for name, size in named.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} = {size!r} is no size; pass a whole number of at least 1")


def positive(**named):
    """Require finite numbers above 0, else raise ValueError."""
    for name, number in named.items():
        if not 0 < number < float("inf"):
            raise ValueError(f"{name} = {number!r} is no finite number above 0; pass one")


def rate(**named):
    """Require numbers from 0 up to, not including, 1, else raise ValueError."""
    for name, number in named.items():
        if not 0 <= number < 1:
            raise ValueError(f"{name} = {number!r} is no rate; pass a number from 0 up to, not 1")


def seeds(**named):
    """Require whole numbers of at most 18 digits, which fit into 64 bits, else raise ValueError."""
    for name, seed in named.items():
        if not isinstance(seed, Integral) or abs(seed) >= 10**18:
            raise ValueError(
                f"{name} = {seed!r} is no seed; pass a whole number of at most 18 digits"
            )


def one_of(choices, **named):
    """Require names among some, else raise ValueError."""
    for name, choice in named.items():
        if choice not in choices:
            raise ValueError(f"{name} = {choice!r} is no choice; pass one of {', '.join(choices)}")


def available(device, there):
    """Require a device that is there, {name: whether it is}, else raise ValueError."""
    if not there.get(device, True):
        raise ValueError(f"there is no device {device!r} here; pass --device cpu, or auto")


def draws(temperature, top_k, top_p):
    """Require what tokens can be drawn with, else raise ValueError."""
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature = {temperature!r}; pass 0 for the likeliest token, or more")
    if top_k is not None:
        sizes(top_k=top_k)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p = {top_p!r}; pass a probability above 0, at most 1")


def floats(**named):
    """Require tensors of floating-point numbers, else raise TypeError."""
    for name, x in named.items():
        if not torch.is_tensor(x) or not x.is_floating_point():
            given = x.dtype if torch.is_tensor(x) else type(x).__name__
            raise TypeError(
                f"{name} holds {given}; pass a tensor of floating-point numbers, "
                f"for example {name}.float()"
            )


def vectors(x, C=None):
    """Require floats of shape (B, T, C) with T at least 1, else raise ValueError or TypeError."""
    if not torch.is_tensor(x):
        raise TypeError(f"x is a {type(x).__name__}; pass a tensor of shape (B, T, C)")
    if x.dim() != 3 or x.shape[1] == 0:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; pass (B, T, C): batch, positions, channels; "
            "x[None] makes a batch of a single example"
        )
    floats(x=x)
    if C is not None and x.shape[-1] != C:
        raise ValueError(
            f"x has {x.shape[-1]} channels and the layer n_embd = {C}; make the two equal"
        )


def bool_mask(mask, scores):
    """Require a boolean mask that covers the scores, else raise TypeError or ValueError."""
    if not torch.is_tensor(mask) or mask.dtype != torch.bool:
        given = mask.dtype if torch.is_tensor(mask) else type(mask).__name__
        raise TypeError(
            f"the mask holds {given}; pass torch.bool, True where a row may look, "
            "for example mask == 1"
        )
    fits = mask.dim() <= scores.dim() and mask.shape[-2:] == scores.shape[-2:]
    before = zip(reversed(mask.shape[:-2]), reversed(scores.shape[:-2]), strict=False)
    if not fits or any(m not in (1, s) for m, s in before):
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} does not cover scores of shape "
            f"{tuple(scores.shape)}; their last two sizes must be equal, for example mask[:T, :T]"
        )


def queries_keys_values(q, k, v):
    """Require q (..., T, hs), k (..., S, hs) and v (..., S, any), else raise ValueError."""
    deep = min(q.dim(), k.dim(), v.dim()) >= 2
    if not deep or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit; q and k "
            "need the same last size (head_size), k and v the same number of positions"
        )


def fits(T, block_size):
    """Require T positions to fit into block_size, else raise ValueError."""
    if T > block_size:
        raise ValueError(
            f"T = {T} is longer than block_size = {block_size}; "
            f"pass at most the last {block_size} tokens"
        )


def token_ids(idx, vocab_size):
    """Require integers of shape (B, T) below vocab_size, else raise TypeError or ValueError."""
    if not torch.is_tensor(idx) or idx.dtype not in (torch.int64, torch.int32):
        given = idx.dtype if torch.is_tensor(idx) else type(idx).__name__
        raise TypeError(f"idx holds {given}; pass integer ids, for example torch.tensor([[3, 1]])")
    if idx.dim() != 2 or idx.shape[1] == 0:
        raise ValueError(
            f"idx has shape {tuple(idx.shape)}; pass (B, T): batch and positions (at least one); "
            "idx[None] makes a batch of a single sequence"
        )
    if idx.is_meta:
        return
    outside = idx[(idx < 0) | (idx >= vocab_size)]
    if outside.numel():
        raise ValueError(
            f"token id {outside[0].item()} is outside the vocabulary; ids run from 0 to "
            f"{vocab_size - 1}; encode the text with the tokenizer that belongs to the model"
        )


def heads_share(n_embd, n_head):
    """Require n_embd channels to split evenly among n_head heads, else raise ValueError."""
    sizes(n_embd=n_embd, n_head=n_head)
    if n_embd % n_head:
        raise ValueError(
            f"n_embd = {n_embd} does not split among n_head = {n_head} heads, {n_embd % n_head} "
            f"channels are left over; make n_embd a multiple of n_head"
        )


def processes_share(batch_size, count):
    """Require a batch to split evenly among count processes, else raise ValueError."""
    if batch_size % count:
        raise ValueError(
            f"a batch of {batch_size} does not split among {count} processes; make it a multiple "
            f"of {count}, or start another number of them"
        )


def device_for_each(device, count):
    """Require a device that count processes can use at once, else raise ValueError."""
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"processes cannot share {device.type!r}; pass --device cpu, or start one")
    if device.type == "cuda" and count > torch.cuda.device_count():
        raise ValueError(
            f"{count} processes need a GPU each and there are {torch.cuda.device_count()}; "
            "start fewer, or pass --device cpu"
        )


def all_heads_at_once(model):
    """Require attention that makes the keys and values of all heads at once, else TypeError."""
    if not hasattr(model, "blocks"):
        raise TypeError(f"a cache is for a whole Transformer, not for {type(model).__name__}")
    for attention in (block.attention for block in model.blocks):
        if not hasattr(attention, "queries_keys_values"):
            raise TypeError(
                f"{type(attention).__name__} cannot use a cache of keys and values; make the model "
                "with Transformer(config, attention=FastMultiHeadAttention)"
            )


def room(idx, length, batch_size, block_size):
    """Require tokens (B, T) to fit behind those that a cache holds, else raise ValueError."""
    B, T = idx.shape
    if batch_size != B:
        raise ValueError(
            f"idx has {B} rows and the cache {batch_size}; make a cache with batch_size = {B}"
        )
    if length + T > block_size:
        raise ValueError(
            f"the cache holds {length} of block_size = {block_size} positions, and T = {T} more do "
            f"not fit; let the model itself read the last {block_size} tokens, as they all move"
        )


def eval_mode(model):
    """Require a model that is not in training, else raise ValueError."""
    if any(layer.training for layer in model.modules()):
        raise ValueError(
            "the model is in training mode, where dropout changes what a cache keeps; "
            "call model.eval() first"
        )


def matrix(array):
    """Require rows and columns, at least one of each, else raise ValueError."""
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            f"an array of shape {array.shape} is not a matrix; pass rows and columns, "
            "for example weights[0]"
        )


def labels(names, count):
    """Require one label for each of count positions, else raise ValueError."""
    if len(names) != count:
        raise ValueError(f"{len(names)} labels for {count} positions; pass one for each")
