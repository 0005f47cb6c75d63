"""Measure what the course claims about training, and how fast explorers and markers are.

python -m helpers.maintain.bench            all of it, in about half an hour on two cores
python -m helpers.maintain.bench speed      a part of it: 07 against 06 and torch.nn
python -m helpers.maintain.bench --steps 3  a few steps of each, to see that it runs
"""

import argparse
import io
import statistics
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

from helpers import checks, expect, plots
from helpers.checks.marker import Exercise, tasks_of
from helpers.explorers import (
    fast_heads,
    loop_mean,
    positional,
    qkv_head,
    softmax_mask,
    transformer,
    tril_matmul,
)
from helpers.fast_heads import FastMultiHeadAttention
from helpers.maintain.speed import bench_speed, interleaved, print_row, ratios, seconds_of
from helpers.sample import generate
from helpers.stories import START, Oracle, is_story
from helpers.text import CharTokenizer, load_corpus
from helpers.train import SIZES, cross_entropy, estimate_loss, train
from helpers.transformer import Transformer, TransformerConfig

SHAKESPEARE = {"block_size": 64, "n_embd": 128, "n_head": 4, "n_layer": 4}  # nanoGPT's, for a CPU
RUN = {"batch_size": 12, "learning_rate": 2e-3, "seed": 1337}


class Trigram(nn.Module):
    """Predict from the last two tokens alone, by counting.  (B, T) -> (B, T, V)"""

    def __init__(self, corpus):
        super().__init__()
        V, ids = len(corpus.tokenizer), corpus.train
        self.counts = torch.full((V, V, V), 0.01)
        ones = torch.ones(len(ids) - 2)
        self.counts.index_put_((ids[:-2], ids[1:-1], ids[2:]), ones, accumulate=True)
        self.before_start = corpus.tokenizer.ids["."]

    def forward(self, idx):
        before = torch.full_like(idx[:, :1], self.before_start)
        pairs = torch.cat([before, idx[:, :-1]], dim=1), idx
        return self.counts[pairs].log()


def trained(corpus, sizes, steps, seed, **settings):
    """Train a fresh model; returns (model, seconds)."""
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(vocab_size=len(corpus.tokenizer), **sizes))
    settings = {"eval_every": steps, "seed": seed, **settings}
    return model, seconds_of(train, model, corpus, steps, **settings)


def accepted(model, corpus, count, seed):
    """Let a model tell stories, and return how many of them the grammar accepts."""
    start = corpus.tokenizer.ids[START]
    idx = torch.full((count, 1), start)
    generator = torch.Generator().manual_seed(seed)
    told = generate(model, idx, model.config.block_size, stop=start, generator=generator)
    stories = [corpus.tokenizer.split(corpus.tokenizer.decode(ids)[1:]) for ids in told]
    ends = [story.index(START) + 1 if START in story else None for story in stories]
    return sum(is_story(story[:end]) for story, end in zip(stories, ends, strict=True))


def bench_stories(steps, seeds):
    """Stories, word by word: how close to the floor, and how many correct stories of 100."""
    corpus = load_corpus("stories")
    T = SIZES["block_size"]
    floor, trigram = (
        estimate_loss(model, corpus, block_size=T)
        for model in (Oracle(corpus.tokenizer), Trigram(corpus))
    )
    print(f"stories: floor {floor:.3f}, trigram {trigram:.3f}")
    for seed in range(seeds):
        model, seconds = trained(corpus, SIZES, steps, seed)
        loss = estimate_loss(model, corpus)
        closed = (trigram - loss) / (trigram - floor)
        right = accepted(model, corpus, 100, seed)
        print(
            f"  seed {seed}: {seconds:3.0f} s, held-out {loss:.4f}, {100 * closed:.1f} % of the gap"
            f" closed, {right} of 100 stories accepted",
            flush=True,
        )


@torch.no_grad()
def loss_over_all(model, ids):
    """Measure a model's loss in windows side by side, which leave out the rest of a last one."""
    T = model.config.block_size
    windows = (len(ids) - 1) // T
    x, y = ids[: windows * T].view(-1, T), ids[1 : windows * T + 1].view(-1, T)
    losses = [cross_entropy(model(x[n : n + 64]), y[n : n + 64]) for n in range(0, windows, 64)]
    sizes = [len(x[n : n + 64]) for n in range(0, windows, 64)]
    return sum(loss.item() * size for loss, size in zip(losses, sizes, strict=True)) / windows


def bench_shakespeare(steps, text):
    """Tiny Shakespeare, letter by letter, in the sizes that nanoGPT gives for a CPU."""
    corpus = load_corpus(text, CharTokenizer)
    model, seconds = trained(corpus, SHAKESPEARE, steps, **RUN)
    loss = loss_over_all(model, corpus.held_out)
    print(f"tinyshakespeare: {seconds:.0f} s, {loss:.3f} over the whole held-out text", flush=True)


def bench_race(steps, text):
    """Tiny Shakespeare again, for the models of 07 and 06: same weights, same batches, by turns."""
    corpus = load_corpus(text, CharTokenizer)
    config = TransformerConfig(vocab_size=len(corpus.tokenizer), **SHAKESPEARE)
    torch.manual_seed(RUN["seed"])
    models = {"06": Transformer(config), "07": Transformer(config, FastMultiHeadAttention)}
    models["07"].load_state_dict(models["06"].state_dict())
    each = max(1, steps // 20)  # steps in a turn
    steps -= steps % each
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.pt" for name in models}
        works = {
            name: lambda name=name: go_on(models[name], corpus, steps, each, files[name])
            for name in models
        }
        times = interleaved(works, rounds=max(1, steps // each - 1))
    print_row(
        f"{steps} steps on tinyshakespeare, {each} by turns, time: 07 / 06",
        ratios(times["07"], times["06"]),
        "<= 0.75",
    )
    for name, model in models.items():
        loss = loss_over_all(model, corpus.held_out)
        print_row(f"and the loss over the whole held-out text: {name}", [loss], "<= 1.88")


def go_on(model, corpus, steps, each, out):
    """Train for the next turn of a run that is saved to a file: steps, measurements and saving."""

    def stop(history):
        if history["loss"]:
            raise KeyboardInterrupt

    resume = out if out.exists() else None
    with redirect_stdout(io.StringIO()):
        history = train(
            model,
            corpus,
            steps,
            eval_every=each,
            out=out,
            resume=resume,
            watch=stop,
            **RUN,
        )
    if len(history["loss"]) % each:
        raise KeyboardInterrupt  # by the user, which train has taken for the end of a turn


def bench_explorers(steps):
    """The explorers, step by step: seconds from a new value to a new picture, and the plain way."""
    modules = [loop_mean, tril_matmul, softmax_mask, positional, qkv_head, transformer, fast_heads]
    print("explorers: median over a slider's steps, plain way, ratio (least to largest)")
    for module in modules:
        explorer = module.explore()
        ours, plainly = [], []
        for number in range(steps):
            ours.append(seconds_of(explorer.set, **changed(explorer, number)))
            plainly.append(seconds_of(draw_plainly, module, explorer))
        beside = ratios(ours, plainly)
        milliseconds = [1000 * statistics.median(times) for times in (ours, plainly)]
        print(
            f"  {module.__name__.split('.')[-1]:13} {milliseconds[0]:4.0f} ms, "
            f"{milliseconds[1]:4.0f} ms, "
            f"{statistics.median(beside):.2f} ({min(beside):.2f} to {max(beside):.2f})",
            flush=True,
        )


def changed(explorer, number):
    """Choose the next setting: another T, or where there is none a prompt with one word more."""
    if "T" in explorer.controls:
        return {"T": 1 + number * 37 % 64}
    words = explorer.start["prompt"].split()
    return {"prompt": " ".join((words * 4)[: 1 + number * 29 % 80])}


def draw_plainly(module, explorer):
    """Look and draw as one would without an explorer: a new figure, saved and closed."""
    seen, size = module.look(**explorer.settings), explorer.canvas.figure.get_size_inches()
    figure, axes = plt.subplots(1, len(seen.panels), figsize=size, dpi=plots.DPI)
    for ax, (name, content) in zip(axes, seen.panels.items(), strict=True):
        if "matrix" in content:
            ax.imshow(plots.as_array(content["matrix"]), aspect="auto")
        elif "lengths" in content:
            ax.barh(range(len(content["lengths"])), plots.as_array(content["lengths"]))
        else:
            ax.plot(plots.as_array(content["y"]))
        ax.set_title(name)
    figure.savefig(io.BytesIO(), format="png")
    plt.close(figure)


def bench_checks(steps):
    """The markers: how long it takes to mark the solution of each task, the slowest of them."""
    modules = [getattr(checks, name) for name in checks.__all__ if name != "progress"]
    exercises = [
        task
        for module in modules
        for task in tasks_of(module).values()
        if isinstance(task, Exercise)
    ]
    slowest = {}
    for task in exercises[:steps]:
        answers = [task.solution, *task.mistakes.values()]
        slowest[task.name] = max(seconds_of(task.mark, answer) for answer in answers)
    name = max(slowest, key=slowest.get)
    print(f"checks: {len(slowest)} exercises, the slowest mark {slowest[name]:.2f} s ({name})")


def main():
    parser = argparse.ArgumentParser(prog="python -m helpers.maintain.bench")
    parser.add_argument(
        "parts",
        nargs="*",
        help="speed, race, stories, shakespeare, explorers, checks (default: all)",
    )
    parser.add_argument("--steps", type=int, help="of each part, to see that it runs")
    parser.add_argument("--seeds", type=int, default=5, help="for the stories (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--shakespeare", default="tinyshakespeare", help="a path, where offline")
    given = parser.parse_args()
    parts = {
        "speed": lambda: bench_speed(given.steps),
        "race": lambda: bench_race(given.steps or 2000, given.shakespeare),
        "stories": lambda: bench_stories(given.steps or 1250, given.seeds),
        "shakespeare": lambda: bench_shakespeare(given.steps or 2000, given.shakespeare),
        "explorers": lambda: bench_explorers(given.steps or 60),
        "checks": lambda: bench_checks(given.steps),
    }
    counts = {"steps": given.steps, "seeds": given.seeds, "threads": given.threads}
    try:
        expect.sizes(**{name: count for name, count in counts.items() if count is not None})
    except ValueError as error:
        parser.error(str(error))
    unknown = set(given.parts) - parts.keys()
    if unknown:
        parser.error(f"there is no part {sorted(unknown)}; choose among {', '.join(parts)}")
    for name in given.parts or parts:
        as_notebooks_do = name in ("explorers", "checks")
        torch.set_num_threads(1 if as_notebooks_do else given.threads)
        parts[name]()


if __name__ == "__main__":
    main()
