"""04: markers for tokens and their places."""

import torch

from helpers.checks.marker import SIZES, Prediction, exercise

predict_parameters = Prediction(
    "predict_parameters",
    348,
    {
        300: "that is the table of tokens; the places have a table too",
        48: "that is the table of places; the tokens have a table too",
        58: "those are the rows of the two tables; each row holds n_embd numbers",
        2400: "that would be a row for every token in every place; there are two tables, added",
        400: "that is a number for every token in every place; count the rows of the two tables",
    },
)


def tokens_and_whole_table(generator, B, T, C):
    """Draw vectors of tokens, and a table of places that is at times longer than they are."""
    block_size = T + (B + T + C // 2) % 3
    return (
        torch.randn(B, T, C, generator=generator),
        torch.randn(block_size, C, generator=generator),
    )


@exercise(
    draw=tokens_and_whole_table,
    sizes=[SIZES[0], (2, 2, 2), *SIZES[1:], (3, 3, 4)],
    mistakes={
        "the table has a row for every place there can be; take one for each token": (
            lambda tok, pos: tok + pos
        ),
        "(T, 1, C) lines the places up with the batch; they belong to the positions": (
            lambda tok, pos: tok + pos[: tok.shape[1], None]
        ),
        "those are the last T rows; the first token stands in place 0": (
            lambda tok, pos: tok + pos[-tok.shape[1] :]
        ),
        "every token gets row 0; token t gets row t": lambda tok, pos: tok + pos[0],
        "one place too far: the first token stands in place 0": (
            lambda tok, pos: tok + pos[1 : tok.shape[1] + 1]
        ),
        "that multiplies; a place is added": lambda tok, pos: tok * pos[: tok.shape[1]],
    },
)
def add_places(tok, pos):
    return tok + pos[: tok.shape[1]]  # (B, T, C) + (T, C) -> (B, T, C)


WORDS = [" a", " ate", " bit", " dog", " fox", " had", " man", " saw", " the", " wind", ",", "."]


def tokens_and_vocabulary(generator, B, T, C):
    """Draw T tokens, and a vocabulary of C that lacks some of them."""
    known = sorted(torch.randperm(len(WORDS), generator=generator)[:C].tolist())
    drawn = torch.randint(len(WORDS), (T,), generator=generator).tolist()
    return [WORDS[n] for n in drawn], [WORDS[n] for n in known]


def numbered(unknown, first=1):
    """Make a wrong to_ids, by the id of an unknown token or that of the first known one."""
    return lambda tokens, vocabulary: torch.tensor(
        [vocabulary.index(t) + first if t in vocabulary else unknown(t, vocabulary) for t in tokens]
    )


@exercise(
    draw=tokens_and_vocabulary,
    mistakes={
        "index finds no token that is not in the list; ask first whether it is": numbered(
            lambda token, vocabulary: vocabulary.index(token)
        ),
        "0 stands for the unknown; the known ones begin at 1": numbered(lambda *_: 0, first=0),
        "the unknown tokens share the id 0, which is still free": numbered(
            lambda token, vocabulary: len(vocabulary) + 1
        ),
        "-1 is no row of a table; the unknown tokens share the id 0": numbered(lambda *_: -1),
        "the unknown tokens are gone; they need an id too": lambda tokens, vocabulary: torch.tensor(
            [vocabulary.index(t) + 1 for t in tokens if t in vocabulary]
        ),
        "that is where a token stands in the text; its id tells where in the vocabulary": (
            lambda tokens, vocabulary: torch.tensor(
                [n + 1 if t in vocabulary else 0 for n, t in enumerate(tokens)]
            )
        ),
    },
)
def to_ids(tokens, vocabulary):
    ids = {token: number for number, token in enumerate(vocabulary, start=1)}
    return torch.tensor([ids.get(token, 0) for token in tokens])  # (T,)


def places(generator, B, T, C):
    """Draw vectors of places, some longer than others."""
    lengths = 0.5 + 1.5 * torch.rand(T, 1, generator=generator)
    return (torch.randn(T, C, generator=generator) * lengths,)


def cosines_by(length):
    """Make a wrong cosines, which divides by something that is not the length."""
    return lambda places: (places / length(places)) @ (places / length(places)).T


@exercise(
    draw=places,
    sizes=[*SIZES[1:], SIZES[0]],  # a place alone says little
    not_allowed=["cosine_similarity"],
    mistakes={
        "the products are not divided by the lengths yet": lambda places: places @ places.T,
        "only one of the two is divided by its length": lambda places: (
            places / places.norm(dim=-1, keepdim=True) @ places.T
        ),
        "divided by squares; a length is the root of the sum of squares": cosines_by(
            lambda places: places.square().sum(dim=-1, keepdim=True)
        ),
        "those are the lengths of the channels; a place is a row": cosines_by(
            lambda places: places.norm(dim=0)
        ),
        "one length for the whole table; every place has its own": cosines_by(
            lambda places: places.norm()
        ),
        "that is the mean over the channels; divide by the two lengths": lambda places: (
            places @ places.T / places.shape[-1]
        ),
    },
)
def cosines(places):
    lengths = places.square().sum(dim=-1, keepdim=True).sqrt()  # (T, C) -> (T, 1)
    directions = places / lengths  # (T, C) / (T, 1) -> (T, C), of length 1
    return directions @ directions.T  # (T, C) @ (C, T) -> (T, T)


def waves(arrange=lambda sines, cosines: torch.cat([sines, cosines], dim=-1), sign=-1, first=0):
    """Make a wrong waves_in_halves, wrong in one of these."""

    def make(block_size, n_embd, base):
        pair = torch.arange(n_embd // 2)
        rate = base ** (sign * pair / (n_embd // 2))
        angle = torch.arange(first, first + block_size)[:, None] * rate
        return arrange(angle.sin(), angle.cos())

    return make


@exercise(
    draw=lambda generator, B, T, C: (T, C, [10000.0, 10.0, 100.0][(B + T) % 3]),
    sizes=[*SIZES[1:], SIZES[0]],
    not_allowed=["sinusoidal_positions"],
    mistakes={
        "sines and cosines alternate; here all the sines come first": waves(
            lambda sines, cosines: torch.stack([sines, cosines], dim=-1).flatten(1)
        ),
        "the cosines come first; begin with the sines": waves(
            lambda sines, cosines: torch.cat([cosines, sines], dim=-1)
        ),
        "the waves get faster from pair to pair; the exponent needs a minus": waves(sign=1),
        "the waves slow down too little: divide the pair by the number of pairs": waves(sign=-0.5),
        "the places start at 1; the first is place 0": waves(first=1),
        "the base is not used": lambda block_size, n_embd, base: waves()(
            block_size, n_embd, 10000.0
        ),
    },
)
def waves_in_halves(block_size, n_embd, base):
    place = torch.arange(block_size)[:, None]  # (block_size, 1)
    pairs = n_embd // 2
    rate = base ** (-torch.arange(pairs) / pairs)  # (pairs,)
    angle = place * rate  # (block_size, 1) * (pairs,) -> (block_size, pairs)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)  # -> (block_size, n_embd)


def windows(generator, B, T, C):
    """Draw a batch of windows, the place where each ends, and a table with places to spare."""
    return (
        torch.randn(B, T, C, generator=generator),
        torch.randn(2 * T + 4, C, generator=generator),
        T - 1 + torch.randint(4, (B,), generator=generator),
    )


def placed(place):
    """Make a wrong add_places_up_to, from the places place(ends, T) of each token."""
    return lambda tok, pos, ends: tok + pos[place(ends[:, None], tok.shape[1])]


@exercise(
    draw=windows,
    mistakes={
        "every window begins at place 0; ends is not used": placed(lambda ends, T: torch.arange(T)),
        "all windows end where the first one does": placed(
            lambda ends, T: ends[:1] - T + 1 + torch.arange(T)
        ),
        "one place too early: the last token of a window stands at its end": placed(
            lambda ends, T: ends - T + torch.arange(T)
        ),
        "that begins at the end; count so that the last token stands there": placed(
            lambda ends, T: ends + torch.arange(T)
        ),
        "the places run backwards": placed(lambda ends, T: ends - torch.arange(T)),
        "all tokens of a window get the row of its end": placed(lambda ends, T: ends),
    },
)
def add_places_up_to(tok, pos, ends):
    B, T, C = tok.shape
    starts = ends - T + 1  # (B,)
    place = starts[:, None] + torch.arange(T)  # (B, 1) + (T,) -> (B, T)
    return tok + pos[place]  # (B, T, C) + (B, T, C)
