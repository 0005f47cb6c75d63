"""04: what do places look like, how alike are they, and what do they change?"""

import functools

import torch
from torch.nn import functional as F

from helpers import plots
from helpers.checkpoint import load_checkpoint
from helpers.explorers.canvas import Bars, Canvas, Cells, Curve
from helpers.explorers.explorer import Explorer, Seen, choice, slider
from helpers.positional import sinusoidal_positions
from helpers.text import WordTokenizer, load_text

LONGEST, WIDEST = 64, 64


def look(T, n_embd, scheme, base):
    """See the places of a scheme, how alike they are by distance, and what order then changes."""
    words, tokens = story()
    tokens = tokens[:T, :n_embd]  # (T, n_embd)
    places = places_of(scheme, n_embd, base)[:T]  # (T, n_embd)
    alike = F.cosine_similarity(places[:, None], places[None], dim=-1)  # (T, T)
    alike = alike.fill_(float("nan")) if scheme == "none" else alike
    by_distance = [alike.diagonal(distance) for distance in range(T)]
    forwards = mix(tokens + places)
    backwards = mix(tokens.flip(0) + places).flip(0)  # row by row the same tokens again
    change = (backwards - forwards).square().mean(dim=-1).sqrt()  # (T,)
    xmax = next(end for end in (0.5, 1, 2, 4) if change.max() < end)

    near = "No two places differ"
    if scheme != "none" and T > 1:
        near = f"Two neighbours are alike by {plots.settled(by_distance[1].mean()):.2f}"
    least, largest = plots.settled([change.min(), change.max()])
    sentence = (
        f"Places: {scheme}, {T} of them with n_embd = {n_embd}. {near}. Read backwards, the "
        f"outputs of the tokens change by {least:.2f} to {largest:.2f}."
    )
    return Seen(
        sentence,
        {
            "places": {"matrix": places},
            "how alike": {
                "y": [pairs.mean() for pairs in by_distance],
                "least": [pairs.min() for pairs in by_distance],
                "largest": [pairs.max() for pairs in by_distance],
            },
            "read backwards": {"lengths": change, "xmax": xmax, "rows": words[:T]},
        },
    )


def mix(x):
    """Average vectors without a mask, by how alike they are.  (T, C) -> (T, C)"""
    return (x @ x.T / x.shape[-1]).softmax(dim=-1) @ x


def places_of(scheme, n_embd, base):
    """Return the vectors of all places, or zeros for none.  -> (LONGEST, n_embd)"""
    if scheme == "none":
        return torch.zeros(LONGEST, n_embd)
    if scheme == "learned":
        return learned()[:, :n_embd]
    return sinusoidal_positions(LONGEST, n_embd, base)


@functools.cache
def learned():
    """Return the places of the model that comes with the course, made as large as the waves."""
    model, _ = load_checkpoint()
    places = model.embed.posemb.weight.detach()[:LONGEST, :WIDEST]
    return places * (0.5 / places.square().mean()).sqrt()


@functools.cache
def story():
    """Return the first words of the stories, and a random vector for each word."""
    text = load_text("stories")
    tokenizer = WordTokenizer(text[:10000])
    words = tokenizer.split(text[:1000])[:LONGEST]
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(len(tokenizer), WIDEST, generator=generator)
    return words, vectors[tokenizer.encode("".join(words))]


def explore():
    """Choose how places are marked, and see what the marks look like and what they do."""
    controls = {
        "T": slider("T", 1, LONGEST, 16),
        "n_embd": slider("n_embd", 2, WIDEST, 16),  # with one, place 0 has no direction
        "scheme": choice("scheme", ["none", "learned", "sinusoidal"], "sinusoidal"),
        "base": choice("base", [10, 100, 1000, 10000, 100000], 10000),
    }
    panels = {
        "places": (Cells(signed=True, vmax=1.5, xlabel="channel", ylabel="place"), 2.6),
        "how alike": (Curve(ylim=(-1, 1), xlabel="distance", ylabel="cosine"), 2.6),
        "read backwards": (Bars(xlabel="change", ylabel="", margin=0.8), 1.5),
    }
    return Explorer(look, Canvas([(3.4, panels)]), controls)
