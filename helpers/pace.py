"""How a training step is computed: compiled or not, in 32-bit numbers or partly in 16-bit ones."""

import shutil
import sys
from dataclasses import dataclass

import torch

from helpers import cost, expect

CHOICES = "auto", "on", "off"


@dataclass(frozen=True)
class Pace:
    """What makes a training step faster on some machines, and slower on others."""

    compiled: bool = False
    bf16: bool = False

    def of(self, model):
        """Return what makes a model's logits at this pace; the model itself, where nothing differs.

        In bf16 matrix products have 8 bits for the digits of a number in place of 24; weights, the
        loss and the vectors between blocks keep all of them.
        """
        compute = torch.compile(model) if self.compiled else model
        if not self.bf16:
            return compute

        def in_bf16(idx):
            with torch.autocast(idx.device.type, torch.bfloat16):
                return compute(idx).float()  # (B, T) -> (B, T, V)

        return in_bf16


def choose(model, batch_size, compiled="auto", bf16="auto"):
    """Choose the pace for a model on the device where it is; returns (Pace, what was chosen).

    "auto" leaves both off but on CUDA: there bf16 comes with the hardware that has it, and the
    model is compiled where a few timed steps are faster for it. What cannot be compiled here
    trains as it is, also for "on". Raises ValueError for another choice.
    """
    expect.one_of(CHOICES, compiled=compiled, bf16=bf16)
    device = model.lm_head.weight.device
    half = bf16 == "on"
    if bf16 == "auto" and device.type == "cuda":
        half = torch.cuda.is_bf16_supported(including_emulation=False)
    pace, said = Pace(bf16=half), "not compiled"
    if compiled == "on" or (compiled == "auto" and device.type == "cuda"):
        pace, said = try_compiled(model, batch_size, pace, only_if_faster=compiled == "auto")
    numbers = "with products in bf16" if half else "in 32-bit numbers"
    return pace, f"training on {device.type} {numbers}, {said}"


def try_compiled(model, batch_size, pace, only_if_faster):
    """Try a few passes compiled; returns (Pace, what came of it), the one given unless it pays."""
    if sys.platform == "win32" and shutil.which("cl") is None:
        return pace, "not compiled, as Windows has no compiler here"
    faster = Pace(compiled=True, bf16=pace.bf16)
    plain = seconds_of_passes(model, batch_size, pace)
    try:
        ratio = seconds_of_passes(model, batch_size, faster) / plain
    except Exception as error:  # compilers fail in many ways
        return pace, f"not compiled, as torch.compile failed here ({type(error).__name__})"
    if only_if_faster and ratio >= 1:
        return pace, f"not compiled, as its passes then take {ratio:.2f} times as long"
    return faster, f"compiled: its passes take {ratio:.2f} times as long as without"


def seconds_of_passes(model, batch_size, pace):
    """Time the passes forward and backward. Gradients are gone then; all else is as it was."""
    weight, T = model.lm_head.weight, model.config.block_size
    idx = torch.zeros(batch_size, T, dtype=torch.long, device=weight.device)  # (B, T)
    compute = pace.of(model)

    def step():
        compute(idx).square().mean().backward()
        return weight.grad.sum().item()  # a GPU answers when all is done

    with torch.random.fork_rng([weight.device] if weight.is_cuda else []):
        try:
            return cost.seconds(step)
        finally:
            model.zero_grad()
