"""Text to ids and back, and batches of it."""

import re
from pathlib import Path

import torch

from helpers import expect

DATA = Path(__file__).resolve().parent.parent / "data"


def load_text(name):
    """Read a text: "stories", which comes with the course, or a path to any text file in UTF-8.

    Line ends become "\\n", whatever system wrote the file.
    Raises FileNotFoundError where there is no such file, naming the texts there are.
    """
    bundled = {path.stem: path for path in DATA.glob("*.txt")}
    path = bundled.get(str(name), Path(name))
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no text {str(name)!r}; pass one of {sorted(bundled)} or a path"
        )
    return path.read_text(encoding="utf-8-sig")  # some editors mark the start of a file


class CharTokenizer:
    """A vocabulary of the characters in a text, sorted, and the way between text and ids.

    Raises ValueError for an empty text.

    >>> letters = CharTokenizer("hello")
    >>> letters.vocabulary
    ['e', 'h', 'l', 'o']
    >>> letters.encode("hole")
    [1, 3, 2, 0]
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
        """Turn a text into a list of ids. Raises ValueError naming unknown tokens."""
        tokens = self.split(text)
        unknown = [token for token in tokens if token not in self.ids]
        if unknown:
            raise ValueError(
                f"the vocabulary lacks {sorted(set(unknown))}, the first of them at token "
                f"{tokens.index(unknown[0])}; use others, or make a tokenizer from a text with them"
            )
        return [self.ids[token] for token in tokens]

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


def get_batch(ids, block_size, batch_size, generator=None):
    """Draw windows of a text to read, and the same windows one token later to predict.

    Shape:
        ids     (N,)                      the whole text; N must be above block_size
        x       (batch_size, block_size)  every window that fits is as likely as any other
        y       (batch_size, block_size)  y[:, t] follows x[:, t] in the text

    Returns (x, y). Raises ValueError for a text too short for a single window.

    >>> x, y = get_batch(torch.arange(6), block_size=5, batch_size=1)
    >>> x, y
    (tensor([[0, 1, 2, 3, 4]]), tensor([[1, 2, 3, 4, 5]]))
    """
    expect.sizes(block_size=block_size, batch_size=batch_size)
    if len(ids) <= block_size:
        raise ValueError(
            f"the text has {len(ids)} tokens, too few for block_size = {block_size}; "
            f"pass at least {block_size + 1} tokens, or a smaller block_size"
        )
    starts = torch.randint(len(ids) - block_size, (batch_size, 1), generator=generator)
    window = starts + torch.arange(block_size)  # (batch, 1) + (T,) -> (batch, T)
    return ids[window], ids[window + 1]
