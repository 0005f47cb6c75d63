"""06: what does a trained model look at, and what does it expect next?"""

import difflib
import functools

import torch

from helpers import plots, probe
from helpers.checkpoint import CHECKPOINT, SNAPSHOTS, load_checkpoint, read_checkpoint
from helpers.explorers.canvas import Bars, Canvas, Cells
from helpers.explorers.explorer import Explorer, Seen, choice, field, slider
from helpers.sample import probabilities
from helpers.stories import START

PROMPT = (
    "One rainy night Ben heard a goat cry in the mill. He had only a yellow lamp, but he went to "
    "look. The"
)
LIKELY = 10  # next tokens that are shown


def look(prompt, layer, head, temperature, top_k, step):
    """See what every head looks at in a prompt, and which tokens are likely to follow it."""
    tokens, left_out, maps, logits = read(prompt, step)
    T, n_head = len(tokens), maps.shape[1]
    probs = probabilities(logits, temperature, None if top_k == "all" else top_k)[0]  # (V,)
    ids = logits[0].topk(LIKELY).indices
    likely = probs[ids]
    vocabulary = model_at(step)[1].vocabulary
    following = [vocabulary[number] for number in ids]

    weight, place = maps[layer, head, -1].max(dim=0)
    cut = f" (the {left_out} before them do not fit into the block)" if left_out else ""
    sentence = (
        f"After {step} steps of training, reading {T} token{'s' * (T > 1)}{cut}: layer {layer}, "
        f"head {head} gives {plots.settled(weight):.2f} of the last row's weight to token "
        f"{plots.at(tokens, place)}. At temperature {temperature:g}, the likeliest next token is "
        f"{plots.visible(following[0])!r}, with {plots.settled(likely[0]):.2f}."
    )
    panels = {}
    for number, matrix in enumerate(maps.flatten(0, 1)):  # (n_layer * n_head, T, T)
        seen = divmod(number, n_head) == (layer, head)
        panels[name_of(*divmod(number, n_head))] = {
            "matrix": matrix,
            "frame": (0, 0, T, T) if seen else None,
        }
    panels["one head"] = {
        "matrix": maps[layer, head],
        "rows": tokens,
        "columns": tokens,
        "title": f"{name_of(layer, head)}: rows look at columns",
    }
    panels["next token"] = {"lengths": likely, "rows": following, "xmax": 1}
    return Seen(sentence, panels)


def name_of(layer, head):
    """Name a head by its numbers."""
    return f"layer {layer}, head {head}"


@functools.lru_cache(maxsize=16)
def read(prompt, step):
    """Let the model, as it was at a step of its training, read a prompt.

    Returns its last T tokens, as many as fit into the block; how many were left out; the weights
    of every head, (n_layer, n_head, T, T); and the logits of the next token, (1, V).
    Raises ValueError for a word that the model does not know.
    """
    model, tokenizer = model_at(step)
    words = tokenizer.split(START + " ".join(prompt.split()))
    tokens = [as_read(word.strip(" "), tokenizer) for word in words]
    left_out = max(len(tokens) - model.config.block_size, 0)
    tokens = tokens[left_out:]
    idx = torch.tensor([[tokenizer.ids[token] for token in tokens]])  # (1, T)
    with torch.no_grad():
        logits = model(idx)[:, -1]  # (1, T, V) -> (1, V)
    return tokens, left_out, probe.attention_maps(model, idx), logits


def as_read(word, tokenizer):
    """Return the token of a word, with or without a space before it. Raises ValueError for none."""
    for token in [" " + word, word]:
        if token in tokenizer.ids:
            return token
    words = [token.strip() for token in tokenizer.vocabulary if token.strip()]
    small = {known.lower(): known for known in words}
    close = difflib.get_close_matches(word.lower(), small)
    known = [small[word] for word in close] or words[5::40]
    raise ValueError(
        f"The model does not know {word!r}: it has read {len(words)} words and signs and no "
        f"others. Try {', '.join(known)}."
    )


@functools.cache
def model_at(step):
    """Load the model as it was at a step of its training; returns (model, tokenizer)."""
    model, tokenizer = load_checkpoint()
    early = torch.load(SNAPSHOTS, weights_only=True)
    if step in early:
        model.load_state_dict(early[step])  # in half precision, becomes single
    return model, tokenizer


def explore():
    """Type a prompt, choose a head, and see what it looks at and what the model expects next."""
    config, trained = (read_checkpoint(CHECKPOINT)[part] for part in ["config", "trained"])
    n_layer, n_head, last = config["n_layer"], config["n_head"], trained["steps"]
    steps = [*torch.load(SNAPSHOTS, weights_only=True), last]
    controls = {
        "prompt": field("prompt", PROMPT),
        "layer": slider("layer", 0, n_layer - 1, 0),
        "head": slider("head", 0, n_head - 1, 0),
        "step": choice("step", steps, last),
        "temperature": slider("temperature", 0.0, 2.0, 1.0, step=0.1),
        "top_k": choice("top_k", [1, 2, 3, 5, 10, "all"], "all"),
    }
    heads = {
        name_of(layer, head): (Cells(ylabel="" if layer == head == 0 else None), 1.3)
        for layer in range(n_layer)
        for head in range(n_head)
    }
    words = {"ylabel": "", "margin": 0.95}
    large = {
        "one head": (Cells(**words, upright=True, below=0.8), 3.8),
        "next token": (Bars(**words, xlabel="probability"), 1.9),
    }
    return Explorer(look, Canvas([(1.3, heads), (3.8, large)]), controls)
