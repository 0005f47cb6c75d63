"""Measure what each part of the transformer buys: take one out, train, and compare.

python -m helpers.maintain.parts writes data/parts.json, which notebook 06 draws. Every variant
trains on the stories for the same time, with five seeds.
"""

import argparse
import json
import time
from statistics import mean

import torch
from torch import nn

from helpers.softmax_mask import softmax_mean
from helpers.stories import Oracle
from helpers.text import DATA, load_corpus
from helpers.train import SIZES, estimate_loss, train
from helpers.transformer import MultiHeadAttention, Transformer, TransformerConfig

PARTS = DATA / "parts.json"


class UniformAttention(nn.Module):
    """The mean of the past in place of heads.  (B, T, C) -> (B, T, C)"""

    def __init__(self, n_embd, n_head, block_size, dropout=0.0):
        super().__init__()
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(softmax_mean(x))


class Nothing(nn.Module):
    """A layer that adds nothing.  (B, T, C) -> (B, T, C)"""

    def forward(self, x):
        return torch.zeros_like(x)


def without_positions(model):
    model.embed.posemb.weight.requires_grad_(False).zero_()


def without_residual(model):
    for block in model.blocks:
        block.forward = lambda x, b=block: b.feed_forward(b.ln2(b.attention(b.ln1(x))))


def without_layer_norm(model):
    model.ln_f = nn.Identity()
    for block in model.blocks:
        block.ln1 = block.ln2 = nn.Identity()


def without_feed_forward(model):
    for block in model.blocks:
        block.feed_forward = Nothing()


def without_scaling(model):
    for block in model.blocks:
        for head in block.attention.heads:
            head.query.register_forward_hook(lambda layer, x, q: q * q.shape[-1] ** 0.5)


VARIANTS = {  # name: (sizes to change, attention, what to do to the model)
    "everything": ({}, MultiHeadAttention, None),
    "mean of the past for heads": ({}, UniformAttention, None),
    "one head": ({"n_head": 1}, MultiHeadAttention, None),
    "no positions": ({}, MultiHeadAttention, without_positions),
    "no residual": ({}, MultiHeadAttention, without_residual),
    "no layer norm": ({}, MultiHeadAttention, without_layer_norm),
    "no feed-forward": ({}, MultiHeadAttention, without_feed_forward),
    "no scaling": ({}, MultiHeadAttention, without_scaling),
}


def build(name, vocab_size, seed):
    """Make a fresh model of a variant."""
    sizes, attention, change = VARIANTS[name]
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(vocab_size=vocab_size, **SIZES | sizes), attention)
    if change is not None:
        change(model)
    return model


def run(name, corpus, seed, steps):
    """Train a fresh model of a variant; returns (held-out loss in nats per token, seconds)."""
    model = build(name, len(corpus.tokenizer), seed)
    begin = time.perf_counter()
    train(model, corpus, steps, warmup=5, eval_every=steps, seed=seed)
    return estimate_loss(model, corpus), time.perf_counter() - begin


def steps_in(seconds, name, corpus):
    """Measure how many steps of training a variant makes in some seconds."""
    _, few, more = (run(name, corpus, 0, steps)[1] for steps in (10, 10, 60))  # one to warm up
    return max(1, round(seconds * 50 / (more - few)))


def compare(seconds, seeds):
    """Train every variant for the same time with every seed; returns {name: row of the table}."""
    corpus = load_corpus("stories")
    floor = estimate_loss(Oracle(corpus.tokenizer), corpus, block_size=SIZES["block_size"])
    table = {"seconds": seconds, "floor": floor, "variants": {}}
    for name in VARIANTS:
        steps = steps_in(seconds, name, corpus)
        losses = [run(name, corpus, seed, steps)[0] for seed in range(seeds)]
        table["variants"][name] = {"steps": steps, "losses": losses}
        spread = f"{min(losses):.3f} to {max(losses):.3f}"
        print(f"{name:28} {steps:5} steps  {mean(losses):.3f}  {spread}", flush=True)
    return table


def main():
    parser = argparse.ArgumentParser(prog="python -m helpers.maintain.parts", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of training (%(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    table = compare(given.seconds, given.seeds)
    PARTS.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
