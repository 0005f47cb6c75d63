"""Markers for the exercises, one module for each notebook.

marker        tell a right answer from a nearly right one, and say what is likely wrong with it
loop_mean     01, what loops can make of the past
tril_matmul   02, matrices of weights
softmax_mask  03, scores, masks and softmax
positional    04, tokens and their places
qkv_head      05, queries, keys and values
transformer   06, what stands around a head
fast_heads    07, heads in one product, softmax in parts, and a cache
"""

from helpers.checks import (
    fast_heads,
    loop_mean,
    positional,
    qkv_head,
    softmax_mask,
    transformer,
    tril_matmul,
)
from helpers.checks.marker import MARKED

__all__ = [
    "fast_heads",
    "loop_mean",
    "positional",
    "progress",
    "qkv_head",
    "softmax_mask",
    "transformer",
    "tril_matmul",
]


def progress():
    """Print which exercises that were marked since the kernel started are solved."""
    if not MARKED:
        print("nothing is marked yet; run the markers first")
        return
    print(f"{sum(verdict.solved for verdict in MARKED.values())} of {len(MARKED)} solved")
    for name, verdict in MARKED.items():
        print(f"  {'solved ' if verdict.solved else 'not yet'}  {name}")
