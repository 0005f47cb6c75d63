"""Writing text with a trained model; `python -m helpers.sample` does it with the bundled one."""

import argparse
from pathlib import Path

import torch

from helpers import expect
from helpers.probe import calm
from helpers.train import CHECKPOINT, load_checkpoint


@torch.no_grad()
def generate(model, idx, max_new_tokens, temperature=1.0, top_k=None, generator=None):
    """Let a model write on: draw the next token from what it predicts, append it, and ask again.

    Shape:
        idx     (B, T)                   integer ids, the prompt; T at least 1
        return  (B, T + max_new_tokens)  the prompt and what follows

    The model sees the last block_size tokens. `temperature` below 1 prefers likely tokens, above 1
    evens them out, and 0 always takes the likeliest; `top_k` keeps the k likeliest (all, where k
    is above the vocabulary). The model is used in eval mode and given back as it was.
    Raises ValueError for a negative temperature, sizes below 1, an empty prompt, or logits that
    are not numbers.
    """
    expect.token_ids(idx, model.config.vocab_size)
    expect.sizes(max_new_tokens=max_new_tokens)
    if top_k is not None:
        expect.sizes(top_k=top_k)
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature = {temperature!r}; pass 0 for the likeliest token, or more")
    with calm(model):
        for _ in range(max_new_tokens):
            logits = model(idx[:, -model.config.block_size :])[:, -1]  # (B, T, V) -> (B, V)
            new = next_token(logits, temperature, top_k, generator)  # (B, V) -> (B, 1)
            idx = torch.cat([idx, new], dim=1)  # (B, T) and (B, 1) -> (B, T + 1)
    return idx


def next_token(logits, temperature=1.0, top_k=None, generator=None):
    """Draw one token for each row of logits.  (B, V) -> (B, 1)"""
    if not (logits < float("inf")).all() or logits.isneginf().all(dim=-1).any():
        raise ValueError(
            "the logits are no numbers to draw from; look for NaN or infinity in the model"
        )
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]  # (B, 1)
        logits = logits.masked_fill(logits < least, float("-inf"))
    logits = logits.double()  # a tiny temperature would overflow smaller numbers
    probs = ((logits - logits.amax(dim=-1, keepdim=True)) / temperature).softmax(dim=-1)
    return torch.multinomial(probs, num_samples=1, generator=generator)


def main():
    parser = argparse.ArgumentParser(prog="python -m helpers.sample", description=__doc__)
    add = parser.add_argument
    add("--prompt", default="This is the", help="how the text begins (default: %(default)r)")
    add("--tokens", type=int, default=60, help="how many to add (default: %(default)s)")
    add("--temperature", type=float, default=0.8, help="0: the likeliest (default: %(default)s)")
    add("--top-k", type=int, help="draw among this many of the likeliest (default: all)")
    add("--seed", type=int, default=0, help="another seed, another text (default: %(default)s)")
    add("--checkpoint", type=Path, default=CHECKPOINT, help="a file that helpers.train wrote")
    given = parser.parse_args()

    model, tokenizer = load_checkpoint(given.checkpoint)
    idx = torch.tensor([tokenizer.encode(given.prompt)], dtype=torch.long)
    generator = torch.Generator().manual_seed(given.seed)
    print(
        tokenizer.decode(
            generate(model, idx, given.tokens, given.temperature, given.top_k, generator)[0]
        )
    )


if __name__ == "__main__":
    main()
