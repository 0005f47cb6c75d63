"""Losses and the training loop; `python -m helpers.train` trains from a terminal."""

import argparse
import math
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from helpers import expect
from helpers.checkpoint import read_checkpoint, save_checkpoint, unfinished_beside
from helpers.fast_heads import FastMultiHeadAttention
from helpers.pace import CHOICES, Pace, choose
from helpers.probe import calm
from helpers.processes import ALONE, is_stop, launched, started, unbroken
from helpers.sample import generate
from helpers.stories import START, Oracle
from helpers.text import CharTokenizer, WordTokenizer, get_batch, load_corpus
from helpers.transformer import MultiHeadAttention, Transformer, TransformerConfig

SIZES = {"block_size": 88, "n_embd": 96, "n_head": 2, "n_layer": 2}  # enough for the stories
RATE = 6e-3  # and the learning rate that suits them
DEVICES = "auto", "cpu", "cuda", "mps"
FUSED = "cpu", "cuda", "mps"  # devices where one call of AdamW changes all weights
TOGETHER = (
    "Several processes can share the work of each step: torchrun --nproc-per-node=2 "
    "--local-addr=127.0.0.1 -m helpers.train, then the same options. On a CPU each uses one thread "
    "(or OMP_NUM_THREADS, where that is set), on GPUs each has one of its own. --resume goes on "
    "with any number of processes."
)


def cross_entropy(logits, targets):
    """Average the surprise, in nats, at the tokens that did come next.

    Shape:
        logits   (B, T, V)  any real numbers
        targets  (B, T)     ids below V
        return   ()         at least 0; ln V for a model that knows nothing
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # (B * T, V), (B * T,) -> ()


@torch.no_grad()
def estimate_loss(model, corpus, part="held_out", block_size=None, batches=8, seed=0):
    """Measure the loss of a model, in nats per token, on the same windows of a text every time.

    `part` is "train" or "held_out"; `block_size` is the model's own, unless given. The model is
    used in eval mode and given back as it was.
    Raises ValueError for a part too short for a single window.
    """
    block_size = block_size or model.config.block_size
    ids = getattr(corpus, part)
    starts = corpus.starts(ids, block_size)
    generator = torch.Generator().manual_seed(seed)
    drawn = [get_batch(ids, block_size, 32, generator, starts) for _ in range(batches)]
    device = device_of(model)
    with calm(model):
        losses = [cross_entropy(model(x.to(device)), y.to(device)).item() for x, y in drawn]
    return sum(losses) / batches


def device_of(model):
    """Return where the parameters of a model are; the CPU for one that has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def rate_at(step, steps, warmup):
    """Return the share of the learning rate at a step: a straight rise, then half a cosine to 0.

    Source: Loshchilov and Hutter 2017, "SGDR: Stochastic Gradient Descent with Warm Restarts".
    """
    if step <= warmup:
        return step / warmup
    done = (step - warmup) / (steps - warmup)
    return (1 + math.cos(math.pi * done)) / 2


def train(
    model,
    corpus,
    steps,
    *,
    batch_size=32,
    learning_rate=RATE,
    warmup=50,
    clip=1.0,
    eval_every=100,
    seed=0,
    out=None,
    resume=None,
    watch=None,
    processes=ALONE,
    pace=Pace(),
):
    """Teach a model to predict the next token, and return how its losses fell.

    Returns {"loss": the loss of every step, "step": [...], "train": [...], "held_out": [...]}, the
    last two measured before the first step, every `eval_every` steps and after the last. `watch` is
    called with it at each measurement. `out` is a path to save to, at each measurement and at the
    end: the last state there, the best beside it.
    `resume` is such a file to go on from, with the same settings, as if there had been no stop.
    `seed` chooses batches and dropout. `processes` share each batch; the first of them measures,
    watches and saves. `pace` says how they compute.

    Stopping the cell (KeyboardInterrupt) keeps and saves what was learned, and returns how far the
    losses fell; so does a process that notices that another is gone.
    Raises ValueError, having changed nothing, for settings out of range, a model, a text, a file to
    go on from or a place to save to that do not fit; FloatingPointError at once where a loss is not
    finite, leaving what was saved last.
    """
    expect.sizes(steps=steps, batch_size=batch_size, warmup=warmup, eval_every=eval_every)
    expect.positive(learning_rate=learning_rate, clip=clip)
    expect.seeds(seed=seed)
    expect.processes_share(batch_size, processes.count)
    device = device_of(model)
    block_size = model.config.block_size
    require_fit(model, corpus)
    starts = corpus.starts(corpus.train, block_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=device.type in FUSED)
    generator = torch.Generator().manual_seed(seed)
    history = {"loss": [], "step": [], "train": [], "held_out": []}
    begun = None
    if resume is not None:
        begun = read_run(resume, model, corpus.tokenizer, optimizer, steps)
    out = writable(out) if out is not None and processes.first else None
    if begun is not None:
        restore(begun, model, optimizer, generator, history)
        if processes.first:
            print(f"going on after step {len(history['loss'])} of {steps}", flush=True)
    drawn = generator.get_state()
    logits_of = pace.of(processes.join(model))

    def save(path):
        state = {"optimizer": optimizer.state_dict(), "history": history, "batches": drawn}
        save_checkpoint(path, model, corpus.tokenizer, **state)

    def measure():
        if not processes.first:
            return
        losses = [estimate_loss(model, corpus, part) for part in ("train", "held_out")]
        row = {"step": len(history["loss"]), "train": losses[0], "held_out": losses[1]}
        require_finite(losses, row["step"])
        for name, number in row.items():
            history[name].append(number)
        if out is not None and history["loss"]:
            save(out)
            if losses[1] == min(history["held_out"]):
                save(best_beside(out))
        if watch is not None:
            watch(history)

    model.train()
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus):  # the caller's own noise stays as it is
        try:
            done = len(history["loss"])
            if history["step"][-1:] != [done] and (done % eval_every == 0 or done == steps):
                measure()
            ahead = range(len(history["loss"]) + 1, steps + 1)
            for step in tqdm(ahead, "training", leave=False, disable=not processes.first):
                batch = get_batch(corpus.train, block_size, batch_size, generator, starts)
                x, y = (processes.rows(part).to(device) for part in batch)
                processes.seed_noise(seed, step)
                loss = cross_entropy(logits_of(x), y)
                mean, stop = processes.agree(loss)
                if stop:
                    raise KeyboardInterrupt
                require_finite([mean.item()], step)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), clip)
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate * rate_at(step, steps, warmup)
                with unbroken():  # no step counts by half
                    optimizer.step()
                    history["loss"].append(mean.item())
                    drawn = generator.get_state()
                if step % eval_every == 0 or step == steps:
                    measure()
        except FloatingPointError:
            out = None  # the step before may have spoiled the weights
            raise
        except (KeyboardInterrupt, RuntimeError) as error:
            if not is_stop(error):
                raise
            kept = "what was learned is kept" if history["loss"] else "nothing was learned yet"
            if processes.first:
                print(f"stopped after {len(history['loss'])} of {steps} steps; {kept}", flush=True)
        finally:
            model.eval()
            logits_of = None  # an error keeps this frame, which must not keep processes joined
            if out is not None and history["loss"]:
                save(out)
    return history


def require_fit(model, corpus):
    """Require a model and a corpus that belong together, else raise ValueError."""
    V, block_size = model.config.vocab_size, model.config.block_size
    if V != len(corpus.tokenizer):
        raise ValueError(
            f"the model has vocab_size = {V} and the corpus {len(corpus.tokenizer)} tokens; "
            "make the two equal"
        )
    for part in ("train", "held_out"):
        ids = getattr(corpus, part)
        if not len(corpus.starts(ids, block_size)):
            raise ValueError(
                f"the {part} part of the text has {len(ids)} tokens and no window of block_size = "
                f"{block_size}; pass a longer text, or a smaller block_size"
            )


def require_finite(losses, step):
    """Require losses that are numbers, else raise FloatingPointError."""
    for loss in losses:
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} at step {step}; lower the learning rate, and start again or "
                "go on from what was saved last"
            )


def writable(out):
    """Return the path of a file, having made its folder.

    Raises ValueError where none can be written, or one would be lost that is no checkpoint.
    """
    out = Path(out)
    unfinished = unfinished_beside(best_beside(out))  # the longest of all names
    try:
        if out.is_dir():
            raise ValueError(f"out = {out.name!r} is a folder; pass the name of a file in it")
        for file in (out, best_beside(out)):
            if file.exists() and not is_checkpoint(file):
                raise ValueError(
                    f"{file.name!r} is there and no checkpoint, and would be lost; pass another out"
                )
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
        unfinished.unlink()
    except OSError as error:
        raise ValueError(
            f"out = {str(out)!r} cannot be written ({error}); pass another place"
        ) from None
    return out


def is_checkpoint(path):
    """Tell whether a file is a whole checkpoint."""
    try:
        read_checkpoint(path)
    except ValueError:
        return False
    return True


def best_beside(path):
    """Name the file for the best state beside that for the last."""
    path = Path(path)
    return path.with_name(f"{path.stem}_best{path.suffix}")


def read_run(path, model, tokenizer, optimizer, steps):
    """Read the parts of a checkpoint that this run can go on with, else raise ValueError."""
    parts = read_checkpoint(path)
    if not {"optimizer", "history", "batches"} <= parts.keys():
        raise ValueError(f"{Path(path).name} holds a model but no training to go on with")
    if parts["config"] != asdict(model.config):
        raise ValueError(
            f"{Path(path).name} is of a model with {parts['config']}; make one like it, for the "
            "same text"
        )
    if parts["vocabulary"] != tokenizer.vocabulary:
        raise ValueError(f"{Path(path).name} knows other tokens; go on with the text it came from")
    if weights_trained(parts["optimizer"]) != weights_trained(optimizer.state_dict()):
        raise ValueError(
            f"{Path(path).name} was trained with the other attention; make the model with "
            "attention=MultiHeadAttention where it was, else with FastMultiHeadAttention"
        )
    done = len(parts["history"]["loss"])
    if done > steps:
        raise ValueError(
            f"{Path(path).name} has {done} steps behind it; steps = {steps} counts them too, so "
            "pass more"
        )
    return parts


def restore(parts, model, optimizer, generator, history):
    """Put a training run back to where a checkpoint was written."""
    model.load_state_dict(parts["weights"])
    optimizer.load_state_dict(parts["optimizer"])
    generator.set_state(parts["batches"])
    history.update(parts["history"])


def pick_device(name="auto"):
    """Return a device by name; "auto" takes CUDA, Apple's GPU or the CPU, as there is.

    Apple's GPU cannot be shared, so for torchrun "auto" leaves it out.
    Raises ValueError for one that this machine lacks.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = "cuda" if there["cuda"] else "mps" if there["mps"] and not launched() else "cpu"
    expect.available(name, there)
    return torch.device(name)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m helpers.train", description=__doc__, epilog=TOGETHER
    )
    add = parser.add_argument
    add("--text", default="stories", help='"stories", "tinyshakespeare" or a path (%(default)s)')
    add("--chars", action="store_true", help="letters as tokens, in place of words")
    add("--n_layer", type=int, default=SIZES["n_layer"], help="(%(default)s)")
    add("--n_head", type=int, default=SIZES["n_head"], help="in each layer (%(default)s)")
    add("--n_embd", type=int, default=SIZES["n_embd"], help="at each position (%(default)s)")
    add("--block_size", type=int, default=SIZES["block_size"], help="longest window (%(default)s)")
    add("--dropout", type=float, default=0.0, help="(%(default)s)")
    add("--steps", type=int, default=600, help="in all, those before a stop too (%(default)s)")
    add("--batch_size", type=int, default=32, help="windows in each step (%(default)s)")
    add(
        "--learning_rate",
        type=float,
        default=RATE,
        help="learning rate at its highest (%(default)s)",
    )
    add("--eval_every", type=int, default=100, help="steps between measurements (%(default)s)")
    add("--seed", type=int, default=0, help="for the first weights and the batches (%(default)s)")
    add("--device", choices=DEVICES, default="auto", help="auto: the best that is there")
    add("--compile", choices=CHOICES, default="auto", help="auto: on CUDA, where it pays")
    add("--bf16", choices=CHOICES, default="auto", help="auto: on CUDA, where the GPU has it")
    add("--out", type=Path, help="the file to save to (model.pt, or that of --resume)")
    add("--resume", type=Path, help="a saved file to go on from; add it to the same command")
    given = parser.parse_args()
    given.out = given.out or given.resume or Path("model.pt")
    try:
        device = pick_device(given.device)
        with started(device) as processes:
            run(given, device, processes)
    except (ValueError, OSError, FloatingPointError) as error:
        sys.exit(f"helpers.train: {error}")
    except KeyboardInterrupt:
        sys.exit("helpers.train: stopped")


def run(given, device, processes):
    """Train a new model as the command says, and let it write."""
    expect.processes_share(given.batch_size, processes.count)
    tokenizer = CharTokenizer if given.chars else WordTokenizer
    corpus = processes.first_then_others(lambda: load_corpus(given.text, tokenizer))
    config = TransformerConfig(
        vocab_size=len(corpus.tokenizer),
        block_size=given.block_size,
        n_embd=given.n_embd,
        n_head=given.n_head,
        n_layer=given.n_layer,
        dropout=given.dropout,
    )
    model = new_model(config, given.seed, given.resume).to(device)
    share = given.batch_size // processes.count
    pace, said = processes.first_decides(lambda: choose(model, share, given.compile, given.bf16))
    if processes.first:
        print(said, flush=True)
    history = train(
        model,
        corpus,
        given.steps,
        batch_size=given.batch_size,
        learning_rate=given.learning_rate,
        eval_every=given.eval_every,
        seed=given.seed,
        out=given.out,
        resume=given.resume,
        watch=print_losses,
        processes=processes,
        pace=pace,
    )
    if processes.count > 1 and len(history["loss"]) < given.steps:
        sys.exit(
            f"\nprocess {processes.rank}: the run was told to stop, or another process is gone; go "
            f"on by the same command with --resume {given.out}, or start again where this run has "
            "not written it yet"
        )
    if not processes.first or not history["loss"]:
        return
    if corpus.start is not None:
        floor = estimate_loss(Oracle(corpus.tokenizer), corpus, block_size=given.block_size)
        print(f"the floor, which no model can pass: {floor:.3f}")
    first = corpus.tokenizer.ids.get(START, 0)
    prompt = torch.tensor([[first]], device=device_of(model))  # (1, 1)
    print(corpus.tokenizer.decode(generate(model, prompt, 2 * given.block_size)[0].cpu()))
    print(f"saved to {given.out}", end="")
    best = best_beside(given.out)
    print(f", and as it was when the held-out loss was lowest to {best}" if best.is_file() else "")
    if len(history["loss"]) < given.steps:
        print(f"to go on, run the same command with --resume {given.out}")


def new_model(config, seed, resume=None):
    """Make the fast model with the first weights of 06's, or 06's where a file goes on with it."""
    expect.seeds(seed=seed)
    attention = FastMultiHeadAttention
    parts = {} if resume is None else read_checkpoint(resume)
    if "optimizer" in parts and weights_trained(parts["optimizer"]) == len(parts["weights"]):
        attention = MultiHeadAttention  # as many weights were trained as the file names
    model = Transformer(config, attention)
    torch.manual_seed(seed)
    model.load_state_dict(Transformer(config, with_small_masks).state_dict())
    return model


def with_small_masks(n_embd, n_head, block_size, dropout):
    """Make 06's attention for a single position, which draws the same weights."""
    return MultiHeadAttention(n_embd, n_head, 1, dropout)


def weights_trained(state):
    """Count the weights that an optimizer with this state trains."""
    return sum(len(group["params"]) for group in state["param_groups"])


def print_losses(history):
    """Print the last losses of a history on one line."""
    step, train_loss, held_out = (history[name][-1] for name in ("step", "train", "held_out"))
    print(
        f"step {step:5}: training text {train_loss:.3f}, held-out text {held_out:.3f}", flush=True
    )


if __name__ == "__main__":
    main()
