"""Train the model that comes with the course, and keep it at a few moments of its training.

python -m helpers.maintain.pretrain writes data/stories_model.pt and data/stories_snapshots.pt.
"""

import argparse
import datetime

import torch

from helpers.checkpoint import CHECKPOINT, SNAPSHOTS, save_checkpoint
from helpers.text import load_corpus
from helpers.train import SIZES, train
from helpers.transformer import Transformer, TransformerConfig

MOMENTS = [0, 100, 300]  # steps


def main():
    parser = argparse.ArgumentParser(prog="python -m helpers.maintain.pretrain")
    parser.add_argument("--steps", type=int, default=1250, help="(%(default)s)")
    parser.add_argument(
        "--threads", type=int, default=1, help="1 gives the same bits (%(default)s)"
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    corpus = load_corpus("stories")
    model = Transformer(TransformerConfig(vocab_size=len(corpus.tokenizer), **SIZES))
    snapshots = {}

    def watch(history):
        step = history["step"][-1]
        print(f"step {step:5}: held-out text {history['held_out'][-1]:.3f}", flush=True)
        if step in MOMENTS:
            snapshots[step] = {name: w.half() for name, w in model.state_dict().items()}

    history = train(model, corpus, given.steps, watch=watch)
    trained = {
        "command": "python -m helpers.maintain.pretrain",
        "steps": given.steps,
        "held_out": history["held_out"][-1],
        "date": datetime.date.today().isoformat(),
    }
    save_checkpoint(CHECKPOINT, model, corpus.tokenizer, trained=trained)
    torch.save(snapshots, SNAPSHOTS)


if __name__ == "__main__":
    main()
