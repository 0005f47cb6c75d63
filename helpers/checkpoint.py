"""A trained model in a file: tensors and plain values, no code."""

import os
from dataclasses import asdict
from pathlib import Path

import torch

from helpers.text import DATA, CharTokenizer, WordTokenizer
from helpers.transformer import MultiHeadAttention, Transformer, TransformerConfig

CHECKPOINT = DATA / "stories_model.pt"
SNAPSHOTS = DATA / "stories_snapshots.pt"  # its weights early in training, by step
PARTS = {"config", "weights", "tokenizer", "vocabulary"}
TOKENIZERS = {kind.__name__: kind for kind in [CharTokenizer, WordTokenizer]}


def save_checkpoint(path, model, tokenizer, **state):
    """Write a model, its vocabulary and the state of its training, whole or not at all.

    Raises OSError where it cannot be written.
    """
    parts = {
        "config": asdict(model.config),
        "weights": model.state_dict(),
        "tokenizer": type(tokenizer).__name__,
        "vocabulary": tokenizer.vocabulary,
        **state,
    }
    path = Path(path)
    unfinished = unfinished_beside(path)
    try:
        torch.save(parts, unfinished)
        os.replace(unfinished, path)
    except RuntimeError as error:  # so torch says that a disk is full, or a folder closed
        reason, *_ = str(error).split("\n")
        raise OSError(
            f"{path} could not be written ({reason}); pass another place to save to, or make room"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def unfinished_beside(path):
    """Name the file that is written first, and then takes the place of a checkpoint."""
    return path.with_name(f"{path.name}.part")


def read_checkpoint(path):
    """Read all parts of a checkpoint.

    Raises FileNotFoundError where there is no such file, ValueError where it is no checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path.name!r}; helpers.train makes one")
    try:
        parts = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # torch raises many kinds for what it cannot read, with advice of its own
        raise ValueError(refused(path)) from None
    if not isinstance(parts, dict) or not PARTS <= parts.keys():
        raise ValueError(refused(path))
    return parts


def refused(path):
    return f"{Path(path).name} is no whole checkpoint of this course; train again, or pick another"


def load_checkpoint(path=CHECKPOINT, attention=MultiHeadAttention):
    """Read a model and its vocabulary from a file; returns (model in eval mode, tokenizer).

    `attention` is the class of its heads, MultiHeadAttention or FastMultiHeadAttention: either
    reads what a model with the other wrote.
    Raises as read_checkpoint does.
    """
    parts = read_checkpoint(path)
    try:
        config = TransformerConfig(**parts["config"])
        tokenizer = TOKENIZERS[parts["tokenizer"]].of(parts["vocabulary"])
    except (TypeError, KeyError):  # other names than ours
        raise ValueError(refused(path)) from None
    model = Transformer(config, attention)
    try:
        model.load_state_dict(parts["weights"])
    except RuntimeError as error:  # other names or sizes than the model's
        raise ValueError(refused(path)) from error
    return model.eval(), tokenizer
