"""Text to ids and back, and batches of it."""

import hashlib
import os
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm.auto import tqdm

from helpers import expect

DATA = Path(__file__).resolve().parent.parent / "data"
SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/"
    "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt"
)
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def load_text(name):
    """Read a text: "stories", "tinyshakespeare", or a path to any text file in UTF-8.

    The stories come with the course. Tiny Shakespeare is fetched once, and kept in `data/`. Line
    ends become "\\n", whatever system wrote the file.
    Raises FileNotFoundError where there is no such file, ConnectionError where Tiny Shakespeare
    cannot be fetched, and ValueError where what came is not it, or a file is not in UTF-8.
    """
    bundled = {file.stem: file for file in DATA.glob("*.txt")}
    path = bundled.get(str(name), Path(name))
    if str(name) == "tinyshakespeare":
        path = fetch(SHAKESPEARE, SHAKESPEARE_SHA256, DATA / "tinyshakespeare.txt")
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors mark the start of a file
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not in UTF-8; save it in that encoding") from None
    except OSError:
        known = sorted({*bundled, "tinyshakespeare"})
        raise FileNotFoundError(
            f"there is no text {str(name)[:200]!r}; pass one of {known} or the path of a file"
        ) from None


def fetch(address, sha256, path):
    """Download a file once, whole or not at all, and check that it is the one; returns its path."""
    advice = f"download {address} yourself and save it as {path.parent.name}/{path.name}"
    if not path.is_file():
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                size = int(answer.headers.get("Content-Length", 0))
                content = bytearray()
                with tqdm(
                    desc=path.name, total=size, unit="B", unit_scale=True, leave=False
                ) as bar:
                    while chunk := answer.read(65536):
                        content += chunk
                        bar.update(len(chunk))
        except OSError as error:
            raise ConnectionError(f"{path.name} could not be fetched ({error}); {advice}") from None
        check(content, sha256, advice)
        unfinished = path.with_name(path.name + ".part")
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    check(path.read_bytes(), sha256, f"delete {path.parent.name}/{path.name}, or {advice}")
    return path


def check(content, sha256, advice):
    """Require the bytes that belong to a checksum, else raise ValueError."""
    given = hashlib.sha256(content).hexdigest()
    if given != sha256:
        raise ValueError(
            f"these {len(content)} bytes are not the right ones (SHA-256 {given[:12]}..., "
            f"not {sha256[:12]}...); {advice}"
        )


class CharTokenizer:
    """A vocabulary of the characters in a text, sorted, and the way between text and ids.

    Raises ValueError for an empty text.

    >>> letters = CharTokenizer("hello")
    >>> letters.vocabulary
    ['e', 'h', 'l', 'o']
    >>> letters.encode("hole")
    tensor([1, 3, 2, 0])
    >>> letters.decode([1, 3, 2, 0])
    'hole'
    """

    token = re.compile(r".", re.DOTALL)

    def __init__(self, text):
        self.learn(self.split(text))

    @classmethod
    def of(cls, vocabulary):
        """Make a tokenizer from the vocabulary of an earlier one."""
        tokenizer = cls.__new__(cls)
        tokenizer.learn(vocabulary)
        return tokenizer

    def learn(self, tokens):
        """Number the tokens in sorted order. Raises ValueError where there are none."""
        self.vocabulary = sorted(set(tokens))
        if not self.vocabulary:
            raise ValueError(
                "the text is empty, so there is no vocabulary; pass at least one character"
            )
        self.ids = {token: number for number, token in enumerate(self.vocabulary)}

    def __len__(self):
        return len(self.vocabulary)

    def split(self, text):
        """Cut a text into tokens; joined, they are the text again."""
        return self.token.findall(text)

    def encode(self, text):
        """Turn a text into ids, a tensor of shape (T,). Raises ValueError naming unknown tokens."""
        tokens = self.split(text)
        unknown = list(dict.fromkeys(token for token in tokens if token not in self.ids))
        if unknown:
            raise ValueError(
                f"the vocabulary lacks {unknown}, the first of them at token "
                f"{tokens.index(unknown[0])}; use others, or make a tokenizer from a text with them"
            )
        return torch.tensor([self.ids[token] for token in tokens], dtype=torch.long)

    def decode(self, ids):
        """Turn a list or a (T,) tensor of ids into text. Raises ValueError for unknown ids."""
        ids = torch.as_tensor(ids)
        if ids.dim() != 1:
            raise ValueError(
                f"ids have shape {tuple(ids.shape)}; pass one sequence, such as ids[0]"
            )
        ids = ids.tolist()
        outside = [number for number in ids if not 0 <= number < len(self)]
        if outside:
            raise ValueError(
                f"id {outside[0]} is outside the vocabulary; ids run from 0 to {len(self) - 1}"
            )
        return "".join(self.vocabulary[number] for number in ids)


class WordTokenizer(CharTokenizer):
    """The same with words and signs for tokens; a word keeps the space before it.

    >>> words = WordTokenizer("The cat sat, and the cat slept.")
    >>> words.vocabulary
    [' and', ' cat', ' sat', ' slept', ' the', ',', '.', 'The']
    >>> words.decode(words.encode("The cat slept."))
    'The cat slept.'
    """

    token = re.compile(r" ?\w+| ?[^\w\s]|\s")


@dataclass(frozen=True)
class Corpus:
    """A text as a model reads it: to learn from and held out, in ids, with its tokenizer.

    Shape:
        train, held_out  (N,)  ids

    `start` is the token that stands before each story, or None for plain text; where there is one,
    windows begin there, so that a window holds all that its tokens depend on.
    """

    tokenizer: CharTokenizer
    train: torch.Tensor
    held_out: torch.Tensor
    start: str | None = None

    def starts(self, ids, block_size):
        """Return the positions in ids where a window of block_size may begin, a tensor."""
        if self.start is None:
            return torch.arange(max(0, len(ids) - block_size))
        starts = (ids == self.tokenizer.ids[self.start]).nonzero().flatten()
        return starts[starts < len(ids) - block_size]


def load_corpus(name, kind=WordTokenizer):
    """Read a text and make it ready for training; `kind` is WordTokenizer or CharTokenizer.

    The stories have a held-out text of their own, drawn separately; of any other text the last
    tenth is held out. Raises as load_text does.
    """
    text = load_text(name)
    tokenizer = kind(text)
    ids = tokenizer.encode(text)
    if str(name) == "stories":
        return Corpus(tokenizer, ids, tokenizer.encode(load_text("stories_held_out")), "\n")
    cut = len(ids) * 9 // 10
    return Corpus(tokenizer, ids[:cut], ids[cut:])


def get_batch(ids, block_size, batch_size, generator=None, starts=None):
    """Draw windows of a text to read, and the same windows one token later to predict.

    Shape:
        ids     (N,)                      the whole text; N must be above block_size
        starts  (any,)                    where windows may begin (default: wherever one fits)
        x       (batch_size, block_size)  every window is as likely as any other
        y       (batch_size, block_size)  y[:, t] follows x[:, t] in the text

    Returns (x, y). Raises ValueError for a text too short for a single window.

    >>> x, y = get_batch(torch.arange(6), block_size=5, batch_size=1)
    >>> x, y
    (tensor([[0, 1, 2, 3, 4]]), tensor([[1, 2, 3, 4, 5]]))
    """
    expect.sizes(block_size=block_size, batch_size=batch_size)
    if starts is None:
        starts = torch.arange(max(0, len(ids) - block_size))
    if not len(starts):
        raise ValueError(
            f"the text has {len(ids)} tokens and no window of block_size = {block_size}; "
            f"pass at least {block_size + 1} tokens, or a smaller block_size"
        )
    drawn = torch.randint(len(starts), (batch_size,), generator=generator)
    window = starts[drawn][:, None] + torch.arange(block_size)  # (batch, 1) + (T,) -> (batch, T)
    return ids[window], ids[window + 1]
