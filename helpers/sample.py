"""Writing text with a trained model; `python -m helpers.sample` does it with the bundled one."""

import argparse
from pathlib import Path

import torch

from helpers import expect
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
    expect.sizes(max_new_tokens=max_new_tokens, top_k=top_k or model.config.vocab_size)
    if not temperature >= 0:
        raise ValueError(f"temperature = {temperature!r}; pass 0 for the likeliest token, or more")
    training = model.training
    model.eval()
    try:
        for _ in range(max_new_tokens):
            logits = model(idx[:, -model.config.block_size :])[:, -1]  # (B, T, V) -> (B, V)
            new = next_token(logits, temperature, top_k, generator)  # (B, V) -> (B, 1)
            idx = torch.cat([idx, new], dim=1)  # (B, T) and (B, 1) -> (B, T + 1)
    finally:
        model.train(training)
    return idx


def next_token(logits, temperature=1.0, top_k=None, generator=None):
    """Draw one token for each row of logits.  (B, V) -> (B, 1)"""
    if (
        logits.isnan().any()
        or (logits == float("inf")).any()
        or (logits == float("-inf")).all(dim=-1).any()
    ):
        raise ValueError(
            "the logits are no numbers to draw from; look for NaN or infinity in the model"
        )
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]  # (B, 1)
        logits = logits.masked_fill(logits < least, float("-inf"))
    logits = (
        logits.double() - logits.double().max(dim=-1, keepdim=True).values
    )  # so that no temperature overflows
    return torch.multinomial(
        (logits / temperature).softmax(dim=-1), num_samples=1, generator=generator
    )


def main():
    parser = argparse.ArgumentParser(prog="python -m helpers.sample", description=__doc__)
    parser.add_argument(
        "--prompt", default="This is the", help="how the text begins (default: %(default)r)"
    )
    parser.add_argument(
        "--tokens", type=int, default=60, help="how many tokens to add (default: %(default)s)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0 is likeliest (default: %(default)s)"
    )
    parser.add_argument(
        "--top-k", type=int, help="keep this many of the likeliest tokens (default: all)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="another seed, another text (default: %(default)s)"
    )
    parser.add_argument(
        "--checkpoint", type=Path, default=CHECKPOINT, help="a file that helpers.train wrote"
    )
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
