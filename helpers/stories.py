"""The grammar behind the bundled stories: how likely every next token is, and what decides it.

A plot is a story with slots. {hero} is filled with a word when it first comes and repeats that word
ever after; {hero.his} is a word that goes with it. Every word that is drawn can be read off the
story, so the probability of any token, given all before it, is known exactly.

`python -m helpers.stories` writes the stories that come with the course, the same bytes every time.
"""

import itertools
import math
import random
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn

from helpers import expect
from helpers.text import DATA

START = "\n"  # stands before every story, and so ends the one before

SHE = {"She": "She", "she": "she", "her": "her", "his": "her"}
HE = {"She": "He", "she": "he", "her": "him", "his": "his"}
SLOTS = {  # the words that can fill each slot, and what goes with them
    "hero": dict.fromkeys(["Lena", "Mara", "Nora"], SHE)
    | dict.fromkeys(["Ben", "Hugo", "Sami"], HE),
    "friend": dict.fromkeys(["Ines", "Vera", "Zoe"], SHE)
    | dict.fromkeys(["Leo", "Tom", "Yusuf"], HE),
    "weather": {
        "cloudy": {"wind": "clouds", "fell": "parted"},
        "foggy": {"wind": "fog", "fell": "lifted"},
        "rainy": {"wind": "rain", "fell": "stopped"},
        "snowy": {"wind": "snow", "fell": "melted"},
        "stormy": {"wind": "storm", "fell": "passed"},
        "windy": {"wind": "wind", "fell": "fell"},
    },
    "colour": dict.fromkeys(["black", "blue", "green", "red", "white", "yellow"]),
    "thing": dict.fromkeys(
        ["ball", "bell", "boat", "book", "drum", "flute", "hat", "kite", "lamp", "scarf"]
    ),
    "indoors": dict.fromkeys(["attic", "barn", "cellar", "mill", "stable", "tower"]),
    "outdoors": dict.fromkeys(["forest", "garden", "harbour", "meadow", "orchard", "village"]),
    "shelter": dict.fromkeys(["boathouse", "cave", "hut", "well"]),
    "pet": dict.fromkeys(["cat", "dog", "duck", "hen", "mouse"]),
    "animal": dict.fromkeys(["fox", "goat", "goose", "lamb", "pony"]),
    "number": dict.fromkeys(["three", "four", "five", "six", "seven"]),
    "food": dict.fromkeys(["apples", "berries", "buns", "cherries", "nuts", "pears", "plums"]),
}
LOST = [  # each turn of a plot, and how it may be told
    ["One {weather} morning {hero} lost {hero.his} {colour} {thing}."],
    [
        " {hero.She} looked in the {indoors}, but there was only a {pet}."
        " {hero.She} looked in the {outdoors}, but there was only a {animal}.",
        " {hero.She} asked a {pet}, but the {pet} had only seen the {indoors}."
        " {hero.She} asked a {animal}, but the {animal} had only seen the {outdoors}.",
    ],
    [" Then {hero.she} met {friend}, who had found a {colour} {thing} in the {shelter}."],
    [
        " {hero} gave {friend} {number} {food} for the {thing}. When the {weather.wind}"
        " {weather.fell}, {friend.she} ate the {number} {food} in the {shelter}.",
        " {hero} was glad and baked a cake. When the {weather.wind} {weather.fell},"
        " they ate it in the {shelter}, and the {pet} and the {animal} came too.",
    ],
]
SWAPPED = [
    ["One {weather} morning {hero} had {number} {food} and {friend} had a {colour} {thing}."],
    [
        " {hero} liked the {thing} and {friend} liked the {food}.",
        " {hero} wanted the {colour} {thing}, but {friend} wanted all {number} {food}.",
    ],
    [" So {hero} gave {friend} {number} {food}, and {friend} gave {hero} {friend.his} {thing}."],
    [
        " When the {weather.wind} {weather.fell}, {hero} took the {colour} {thing}"
        " to the {outdoors}, and {friend} ate {number} {food} with a {pet}.",
        " When the {weather.wind} {weather.fell}, {hero} gave the {colour} {thing} back"
        " for one of the {food}, since {friend} missed it so.",
    ],
]
HEARD = [
    ["One {weather} night {hero} heard a {animal} cry in the {indoors}."],
    [
        " {hero.She} took {hero.his} {colour} {thing} and went to look.",
        " {hero.She} had only a {colour} {thing}, but {hero.she} went to look.",
    ],
    [
        " The {animal} in the {indoors} was cold,"
        " so {hero} gave it the {thing} and {number} {food}.",
        " The {animal} was afraid of the {indoors},"
        " so {hero.she} gave it {number} {food} and the {thing}.",
    ],
    [
        " When the {weather.wind} {weather.fell}, the {animal} had eaten all {number} {food},"
        " and it brought the {colour} {thing} back to {hero}."
    ],
]


@dataclass(frozen=True)
class Place:
    """One token of a plot: a fixed word, a slot, or (its `part`) a word that goes with a slot."""

    space: str
    word: str
    slot: str = ""
    part: str = ""

    def options(self, filled):
        """List the tokens that may stand here; each is as likely as the others."""
        if not self.slot:
            return [self.space + self.word]
        words = SLOTS[self.slot]
        if self.slot not in filled:
            return [self.space + word for word in words]
        word = filled[self.slot]
        return [self.space + (words[word][self.part] if self.part else word)]

    def fill(self, filled, token):
        """Return what is filled once this token stands here."""
        return {self.slot: token.strip()} | filled if self.slot else filled

    def mean_length(self):
        """Return how many characters a token here has on average."""
        words = SLOTS.get(self.slot, {self.word: None})
        shown = [parts[self.part] if self.part else word for word, parts in words.items()]
        return len(self.space) + sum(map(len, shown)) / len(shown)


def lay_out(plot):
    """Turn the text of a plot into its places, one for each token of a story, START last."""
    pattern = r"( ?)(?:\{(\w+)(?:\.(\w+))?\}|(\w+|[^\w\s]))"
    places = [
        Place(space, word, slot, part) for space, slot, part, word in re.findall(pattern, plot)
    ]
    return [*places, Place("", START)]


PLOTS = [
    lay_out("".join(turns)) for plot in (LOST, SWAPPED, HEARD) for turns in itertools.product(*plot)
]


def write(rng):
    """Write a story with the random numbers of `rng`, a random.Random.

    Returns its tokens, START last, since that is how a reader learns that it is over.
    """
    tokens, filled = [], {}
    for place in draw(PLOTS, rng):
        tokens.append(draw(place.options(filled), rng))
        filled = place.fill(filled, tokens[-1])
    return tokens


def draw(choices, rng):
    """Draw one of some choices, the same one for the same rng in every version of Python."""
    return choices[int(rng.random() * len(choices))]


class Reading(NamedTuple):
    """A plot that a story may turn out to have."""

    probability: float  # of this plot and of the words that filled its slots
    plot: list
    filled: dict


def follow(tokens):
    """Read a story token by token; yield the readings left before each token and after the last.

    Raises ValueError at a token that no story has there.
    """
    readings = [Reading(1 / len(PLOTS), plot, {}) for plot in PLOTS]
    yield readings
    for position, token in enumerate(tokens):
        readings = [
            Reading(probability / len(options), plot, plot[position].fill(filled, token))
            for probability, plot, filled in readings
            if position < len(plot) and token in (options := plot[position].options(filled))
        ]
        if not readings:
            told = "".join(tokens[:position])
            raise ValueError(f"no story has {token!r} (token {position}) after {told!r}")
        yield readings


def what_may_come(readings, position):
    """Add up over the readings how likely each token is at a position: {token: probability}."""
    probs = defaultdict(float)
    for probability, plot, filled in readings:
        options = plot[position].options(filled) if position < len(plot) else []
        for token in options:
            probs[token] += probability / len(options)
    total = sum(probs.values())
    return {token: share / total for token, share in probs.items()}


def next_token_probs(prefix):
    """Say how likely each token is to come next, given all tokens of a story so far.

    `prefix` is a list of tokens as WordTokenizer cuts them, without the START before the story.
    Returns {token: probability}, which sums to 1, or {} where the story is over.
    Raises ValueError for what no story begins with.

    >>> round(next_token_probs(["One"])[" windy"], 4)
    0.1667
    """
    *_, readings = follow(prefix)
    return what_may_come(readings, len(prefix))


def surprises(tokens):
    """Return minus the logarithm of the probability of each token of a story, in nats.

    Raises ValueError for what is no story.
    """
    *before, _ = follow(tokens)
    steps = zip(before, tokens, strict=True)
    return [-math.log(what_may_come(left, n)[token]) for n, (left, token) in enumerate(steps)]


def deciders(tokens):
    """Return for each token of a story the earlier positions that decide it: those of its slot.

    A token that is drawn, and a fixed word of the plot, have none.
    """
    *_, readings = follow(tokens)
    plot = readings[0].plot
    filled_at = defaultdict(list)
    found = []
    for position, place in enumerate(plot[: len(tokens)]):
        found.append(list(filled_at[place.slot]) if place.slot else [])
        if place.slot and not place.part:
            filled_at[place.slot].append(position)
    return found


def is_story(tokens):
    """Tell whether tokens, START last, are a whole story."""
    try:
        *_, readings = follow(tokens)
    except ValueError:
        return False
    return tokens[-1:] == [START] and any(len(plot) == len(tokens) for _, plot, _ in readings)


class Entropy(NamedTuple):
    """What a story leaves open however well one knows the grammar, in nats."""

    per_story: float
    per_token: float
    per_character: float


def entropy():
    """Return the exact entropy of the grammar.

    Every story of a plot has the same number of tokens and the same probability, since all choices
    are equally likely and all words that can fill a slot are one token.
    """
    nats = tokens = characters = 0.0
    for plot in PLOTS:
        filled = {}
        nats += math.log(len(PLOTS)) / len(PLOTS)
        for place in plot:
            options = place.options(filled)
            filled = place.fill(filled, options[0])
            nats += math.log(len(options)) / len(PLOTS)
            characters += place.mean_length() / len(PLOTS)
        tokens += len(plot) / len(PLOTS)
    return Entropy(nats, nats / tokens, nats / characters)


class Oracle(nn.Module):
    """The best model there can be of these stories: its logits are the logarithms of what is true.

    Shape:
        idx     (B, T)                  each row begins with START
        return  (B, T, len(tokenizer))  row t has seen tokens 0 to t; -inf for what cannot come

    Raises ValueError for a row that begins elsewhere or holds what is no story.
    """

    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer

    def forward(self, idx):
        expect.token_ids(idx, len(self.tokenizer))
        if (idx[:, 0] != self.tokenizer.ids[START]).any():
            raise ValueError("a row does not begin with START; pass windows from corpus.starts")
        shape = (*idx.shape, len(self.tokenizer))
        logits = torch.full(shape, float("-inf"), device=idx.device)
        for row, ids in enumerate(idx.tolist()):
            tokens = [self.tokenizer.vocabulary[number] for number in ids]
            starts = [t for t, token in enumerate(tokens) if token == START]
            for start, end in pairwise([*starts, len(tokens)]):
                for n, readings in enumerate(follow(tokens[start + 1 : end])):
                    for token, share in what_may_come(readings, n).items():
                        logits[row, start + n, self.tokenizer.ids[token]] = math.log(share)
        return logits


def make(count, rng, without=frozenset()):
    """Write some stories, one to a line, leaving out those in `without`; returns their text."""
    stories = ("".join(write(rng)) for _ in itertools.count())
    return "".join(itertools.islice((story for story in stories if story not in without), count))


def main():
    held_out = make(400, random.Random(1))
    train = make(3600, random.Random(0), without=set(held_out.splitlines(keepends=True)))
    for name, text in [("stories", train), ("stories_held_out", held_out)]:
        (DATA / f"{name}.txt").write_text(text, encoding="utf-8", newline="\n")
    nats = entropy()
    print(f"{nats.per_token:.4f} nats per token, {nats.per_character:.4f} per character")


if __name__ == "__main__":
    main()
