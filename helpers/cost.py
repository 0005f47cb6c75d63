"""Look: what a computation costs, in operations, seconds and bytes."""

import timeit
import weakref

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from helpers import expect


def operations(work, *arguments):
    """Count the multiplications and additions in the matrix products of work(*arguments).

    A product (m, k) @ (k, n) has 2 m k n of them. What stands outside matrix products is not
    counted, nor are products with a single vector; fused attention is, as if it were written out,
    with the half that its mask hides.
    """
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        work(*arguments)
    return counter.get_total_flops()


def seconds(work, *arguments, repeat=5):
    """Time work(*arguments); returns the shortest of several runs, after one that is not timed.

    Other programs can only make a run longer, so the shortest tells most about the work itself. On
    a GPU, work must wait for its own result.
    Raises ValueError for fewer runs than one.
    """
    expect.sizes(repeat=repeat)
    work(*arguments)
    return min(timeit.repeat(lambda: work(*arguments), number=1, repeat=repeat))


def peak_bytes(work, *arguments):
    """Measure the most memory that tensors made by work(*arguments) hold at one time, in bytes.

    What the arguments hold already is not counted, nor what an operation holds only while it runs.
    """
    with Held() as held:
        work(*arguments)
    return held.peak


class Held(TorchDispatchMode):
    """Sees every operation of PyTorch, and adds up the memory behind what they make."""

    now = peak = 0

    def __torch_dispatch__(self, operation, types, arguments=(), settings=None):
        made = operation(*arguments, **(settings or {}))
        known = {id(memory) for memory in memories((arguments, settings))}
        for memory in memories(made):
            if id(memory) not in known:  # not a view of what went in
                known.add(id(memory))
                self.now += memory.nbytes()
                weakref.finalize(memory, self.free, memory.nbytes())
        self.peak = max(self.peak, self.now)
        return made

    def free(self, size):
        self.now -= size


def memories(tree):
    """List the memory behind the tensors in a tree of lists, tuples and dicts."""
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
