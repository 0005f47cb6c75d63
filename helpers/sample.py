"""Writing text with a trained model; `python -m helpers.sample` does it with the bundled one."""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from helpers import expect
from helpers.checkpoint import CHECKPOINT, load_checkpoint
from helpers.fast_heads import FastMultiHeadAttention, KVCache
from helpers.positional import TokenAndPosition
from helpers.probe import calm
from helpers.stories import START
from helpers.transformer import Block, Transformer


def generate(model, idx, max_new_tokens, **choices):
    """Let a model write on: draw the next token from what it predicts, append it, and ask again.

    Shape:
        idx     (B, T)                   integer ids, the prompt; T at least 1
        return  (B, T + max_new_tokens)  the prompt and what follows; shorter where `stop` came

    The choices are those of `stream`, and so are the errors.
    """
    return torch.cat([idx, *stream(model, idx, max_new_tokens, **choices)], dim=1)


def stream(
    model,
    idx,
    max_new_tokens,
    *,
    temperature=1.0,
    top_k=None,
    top_p=None,
    stop=None,
    generator=None,
):
    """Yield the tokens that a model writes, each of shape (B, 1), as they come.

    The model sees the last block_size tokens; one with FastMultiHeadAttention reads each token once
    while all of them fit, and writes the same. `temperature` below 1 prefers likely tokens, above 1
    evens them out, and 0 always takes the likeliest. `top_k` draws among the k likeliest tokens
    (all, where k is above the vocabulary), `top_p` among the likeliest that together have at least
    probability p. `stop` is an id: once it has come in every row, the writing ends. The model works
    in eval mode without gradients, and is given back as it was.
    Raises ValueError, when the first token is asked for, for a negative temperature, sizes below 1,
    a top_p outside (0, 1], an empty prompt, or logits that are not numbers.
    """
    expect.token_ids(idx, model.config.vocab_size)
    expect.sizes(max_new_tokens=max_new_tokens)
    expect.draws(temperature, top_k, top_p)
    stopped = torch.zeros(len(idx), 1, dtype=torch.bool, device=idx.device)
    cache = KVCache(model, len(idx)) if len(idx) and can_cache(model) else None
    for _ in range(max_new_tokens):
        with calm(model), torch.no_grad():
            logits = last_logits(model, idx, cache)  # (B, T) -> (B, V)
        new = next_token(logits, temperature, top_k, top_p, generator)  # (B, V) -> (B, 1)
        idx = torch.cat([idx, new], dim=1)  # (B, T) and (B, 1) -> (B, T + 1)
        yield new
        if stop is not None:
            stopped |= new == stop
            if stopped.all():
                return


def can_cache(model):
    """Tell whether reading on gives what the model itself would, to all who look on.

    What a KVCache passes over must be as it is here: no other class, no forward of its own, and no
    hook, which would not be called. An attention of another class is believed, where its forward
    came with its queries_keys_values.
    """
    return all(type(layer) is kind and not is_changed(layer) for layer, kind in passed_over(model))


def passed_over(model):
    """Yield what a KVCache does not call, or not as a whole, each with the class it must have."""
    yield model, Transformer
    yield model.dropout, nn.Dropout
    yield model.embed, TokenAndPosition
    yield model.embed.posemb, nn.Embedding
    yield model.blocks, nn.Sequential
    for block in model.blocks:
        yield block, Block
        attention = block.attention
        yield attention, type(attention) if forward_is_its_own(attention) else None
        yield getattr(attention, "dropout", None), nn.Dropout


def forward_is_its_own(layer):
    """Tell whether a layer's forward came with its queries_keys_values, or before it."""
    makes, goes = (
        next((kind for kind in type(layer).__mro__ if name in vars(kind)), None)
        for name in ("queries_keys_values", "forward")
    )
    return makes is not None and issubclass(makes, goes)


def is_changed(layer):
    """Tell whether somebody hooked into a layer's calls, or replaced its forward."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer))


def last_logits(model, idx, cache):
    """Say what follows the last block_size tokens.  (B, T) -> (B, V)

    A cache, where there is one, holds tokens that were read before, so that only new ones have to
    be. Where idx is longer than block_size it is of no use: with each token all others move to
    another place.
    """
    block_size = model.config.block_size
    if cache is None or idx.shape[1] > block_size:
        return model(idx[:, -block_size:])[:, -1]  # (B, T, V) -> (B, V)
    return cache.read_on(idx[:, cache.length :])[:, -1]  # (B, new, V) -> (B, V)


def next_token(logits, temperature=1.0, top_k=None, top_p=None, generator=None):
    """Draw one token for each row of logits.  (B, V) -> (B, 1)"""
    probs = probabilities(logits, temperature, top_k, top_p)
    if temperature == 0:
        return probs.argmax(dim=-1, keepdim=True)
    return torch.multinomial(probs, num_samples=1, generator=generator)


def probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    """Turn logits into the probabilities that tokens are drawn with.  (B, V) -> (B, V)

    The arguments are those of `stream`, and so are the errors.
    Source: top_p from Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration".
    """
    expect.draws(temperature, top_k, top_p)
    if not (logits < float("inf")).all() or logits.isneginf().all(dim=-1).any():
        raise ValueError(
            "the logits are no numbers to draw from; look for NaN or infinity in the model"
        )
    if temperature == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).double()
    logits = logits.double()  # a tiny temperature would overflow smaller numbers
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    if top_k is not None:
        best = logits.topk(min(top_k, logits.shape[-1]))  # (B, k)
        logits = torch.full_like(logits, float("-inf")).scatter(-1, best.indices, best.values)
    probs = logits.softmax(dim=-1)  # (B, V)
    return probs if top_p is None else likeliest(probs, top_p)


def likeliest(probs, top_p):
    """Keep the likeliest tokens that together have at least probability top_p.  (B, V) -> (B, V)"""
    ranked, order = probs.sort(dim=-1, descending=True)
    before = ranked.cumsum(dim=-1) - ranked  # what the likelier ones have together
    return torch.zeros_like(probs).scatter(-1, order, ranked.masked_fill(before >= top_p, 0.0))


def main():
    parser = argparse.ArgumentParser(prog="python -m helpers.sample", description=__doc__)
    add = parser.add_argument
    add("--prompt", default="", help="how the text begins")
    add("--tokens", type=int, default=90, help="how many to add (default: %(default)s)")
    add("--temperature", type=float, default=0.8, help="0: the likeliest (default: %(default)s)")
    add("--top_k", type=int, help="draw among this many of the likeliest (default: all)")
    add("--top_p", type=float, help="draw among the likeliest with this share (default: all)")
    add("--seed", type=int, default=0, help="another seed, another text (default: %(default)s)")
    add("--checkpoint", type=Path, default=CHECKPOINT, help="a file that helpers.train wrote")
    given = parser.parse_args()
    try:
        write(given)
    except (ValueError, OSError) as error:
        sys.exit(f"helpers.sample: {error}")


def write(given):
    """Print a text as the command says, token by token."""
    expect.seeds(seed=given.seed)
    expect.sizes(tokens=given.tokens)
    expect.draws(given.temperature, given.top_k, given.top_p)
    model, tokenizer = load_checkpoint(given.checkpoint, FastMultiHeadAttention)
    start = START if START in tokenizer.ids else ""
    tokenizer.encode(given.prompt)  # an unknown token is counted from its own beginning
    idx = tokenizer.encode(start + given.prompt or tokenizer.vocabulary[0])[None]  # (1, T)
    choices = {"temperature": given.temperature, "top_k": given.top_k, "top_p": given.top_p}
    generator = torch.Generator().manual_seed(given.seed)
    print(given.prompt, end="")
    for new in stream(model, idx, given.tokens, generator=generator, **choices):
        print(tokenizer.decode(new[0]), end="", flush=True)
    print()


if __name__ == "__main__":
    main()
