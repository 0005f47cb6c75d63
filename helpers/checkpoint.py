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
    unfinished = path.with_name(path.name + ".part")
    try:
        torch.save(parts, unfinished)
        os.replace(unfinished, path)
    except RuntimeError as error:  # so torch says that a disk is full, or a folder closed
        raise OSError(
            f"{path} could not be written ({str(error).splitlines()[0]}); pass another place to "
            "save to, or make room"
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)


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
        model = Transformer(TransformerConfig(**parts["config"]), attention)
        model.load_state_dict(parts["weights"])
        tokenizer = TOKENIZERS[parts["tokenizer"]].of(parts["vocabulary"])
    except (TypeError, RuntimeError, KeyError):  # other names, or other sizes, than ours
        raise ValueError(refused(path)) from None
    return model.eval(), tokenizer
