"""Losses, the training loop and checkpoints; `python -m helpers.train` makes the bundled one."""

import argparse
import os
from dataclasses import asdict
from pathlib import Path

import torch
from torch.nn import functional as F
from tqdm.auto import tqdm

from helpers.probe import calm
from helpers.text import DATA, CharTokenizer, WordTokenizer, get_batch, load_text
from helpers.transformer import Transformer, TransformerConfig

CHECKPOINT = DATA / "stories.pt"
TOKENIZERS = {kind.__name__: kind for kind in [CharTokenizer, WordTokenizer]}
RECIPE = {"block_size": 32, "n_embd": 48, "n_head": 4, "n_layer": 2}


def cross_entropy(logits, targets):
    """Average the surprise, in nats, at the tokens that did come next.

    Shape:
        logits   (B, T, V)  any real numbers
        targets  (B, T)     ids below V
        return   ()         at least 0; ln V for a model that knows nothing
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # (B * T, V), (B * T,) -> ()


@torch.no_grad()
def estimate_loss(model, ids, batch_size=32, batches=8, seed=0):
    """Measure a model's loss, in nats, on windows of a text, the same ones at every call.

    The model is measured in eval mode and given back as it was.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = [get_batch(ids, model.config.block_size, batch_size, generator) for _ in range(batches)]
    with calm(model):
        return sum(cross_entropy(model(x), y).item() for x, y in drawn) / batches


def train(
    model, train_ids, val_ids, steps, batch_size=32, learning_rate=3e-3, eval_every=50, seed=0
):
    """Teach a model to predict the next token, and return how its losses fell.

    Returns {"step": [...], "train": [...], "val": [...]}, measured before the first step, every
    `eval_every` steps and after the last. Stopping the cell keeps what was learned until then and
    still returns the losses.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    history = {"step": [], "train": [], "val": []}

    def measure(step):
        row = step, estimate_loss(model, train_ids), estimate_loss(model, val_ids)
        for losses, number in zip(history.values(), row, strict=True):
            losses.append(number)

    measure(0)
    step = 0
    model.train()
    try:
        for step in tqdm(range(1, steps + 1), desc="training", leave=False):
            x, y = get_batch(train_ids, model.config.block_size, batch_size, generator)
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % eval_every == 0 or step == steps:
                measure(step)
    except KeyboardInterrupt:
        print(f"stopped in step {step} of {steps}; the model keeps what it learned")
    model.eval()
    return history


def split(ids, held_out=0.1):
    """Cut a text in two: most to learn from, the end to be tested on.  (N,) -> (most,), (rest,)"""
    cut = round(len(ids) * (1 - held_out))
    return ids[:cut], ids[cut:]


def save_checkpoint(path, model, tokenizer):
    """Write a model and its vocabulary into one file, whole or not at all."""
    parts = {
        "config": asdict(model.config),
        "weights": model.state_dict(),
        "tokenizer": type(tokenizer).__name__,
        "vocabulary": tokenizer.vocabulary,
    }
    path = Path(path)
    unfinished = path.with_name(path.name + ".part")
    try:
        torch.save(parts, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_checkpoint(path=CHECKPOINT):
    """Read a model and its vocabulary from a file; returns (model in eval mode, tokenizer)."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no checkpoint {path.name!r}; python -m helpers.train makes it"
        )
    parts = torch.load(path, map_location="cpu", weights_only=True)
    model = Transformer(TransformerConfig(**parts["config"]))
    model.load_state_dict(parts["weights"])
    return model.eval(), TOKENIZERS[parts["tokenizer"]].of(parts["vocabulary"])


def main():
    parser = argparse.ArgumentParser(prog="python -m helpers.train", description=__doc__)
    parser.add_argument("--text", default="stories", help="a bundled text or a path (%(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="training steps (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="first weights and batches (%(default)s)"
    )
    parser.add_argument("--out", type=Path, default=CHECKPOINT, help="the file to write")
    given = parser.parse_args()

    text = load_text(given.text)
    tokenizer = WordTokenizer(text)
    train_ids, val_ids = split(torch.tensor(tokenizer.encode(text)))
    torch.manual_seed(given.seed)
    model = Transformer(TransformerConfig(vocab_size=len(tokenizer), **RECIPE))
    history = train(model, train_ids, val_ids, given.steps, seed=given.seed)
    save_checkpoint(given.out, model, tokenizer)
    print(f"train {history['train'][-1]:.2f}, held out {history['val'][-1]:.2f} nats per token")


if __name__ == "__main__":
    main()
