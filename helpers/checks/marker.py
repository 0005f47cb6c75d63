"""Marking: tell a right answer from a nearly right one, and say what is likely wrong with it.

An answer is put to work on inputs of many sizes, and compared with a solution. Where it does on all
of them what a known wrong answer does, the hint of that mistake is given.
"""

import contextlib
import importlib
import inspect
import json
import linecache
import traceback
import warnings
from numbers import Real
from typing import NamedTuple

import torch
from IPython.utils.capture import capture_output
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

SIZES = [  # (B, T, C), from small to large
    *[(1, 1, 2), (1, 2, 2), (1, 2, 4), (2, 1, 4), (1, 3, 2), (2, 3, 4), (3, 2, 6), (3, 4, 2)],
    *[(2, 4, 6), (4, 5, 2), (2, 5, 8), (3, 6, 4), (2, 7, 4), (5, 6, 8), (3, 8, 2), (2, 9, 6)],
]
CLOSE = 5e-5  # numbers that differ by less are equal
SHOWN, WIDE = 24, 120  # an example shows tensors of at most so many numbers and letters
REPORT = "verdict: "  # before what a terminal reads
MARKED = {}  # what was marked in this kernel, {name: Verdict}


class Verdict(NamedTuple):
    """What a marker thinks of an answer: whether it solves the task, and what it says."""

    solved: bool
    text: str


class Raised(NamedTuple):
    """What went wrong in place of a result."""

    text: str


class Task:
    """What a reader is asked for, by name. Called with an answer, it prints what it thinks."""

    def __call__(self, answer):
        verdict = self.mark(answer)
        MARKED[self.name] = verdict
        print(verdict.text)


class Prediction(Task):
    """A number, a shape or a word that a reader predicts before computing it.

    `mistakes` is {wrong prediction: what to say about it}. A fraction may be rounded to two
    decimals.
    """

    def __init__(self, name, answer, mistakes):
        self.name, self.answer, self.mistakes = name, answer, mistakes

    def mark(self, guess):
        """Compare a guess with the answer; returns a Verdict."""
        if guess is None:
            return Verdict(False, "not yet: no guess")
        if isinstance(guess, str):
            return Verdict(False, "not yet: write it without quotes")
        guess = plain(guess)
        if agree(guess, self.answer):
            return Verdict(True, "right")
        for wrong, hint in self.mistakes.items():
            if agree(guess, wrong):
                return Verdict(False, f"not yet, not {guess}: {hint}")
        return Verdict(False, f"not yet, not {guess}")


class Exercise(Task):
    """A function or a class that a reader writes.

    `solution` is a right answer, and gives the exercise its name. `draw(generator, B, T, C)` makes
    the arguments of one case, with numbers of variance about 1. `mistakes` is {hint: wrong answer}.
    `not_allowed` names functions that are not to be called, since the task is to build them.
    `run(answer, *arguments)` puts an answer to work where it is not simply called. What an answer
    prints is shown for the smallest case alone.
    """

    def __init__(self, solution, *, draw, mistakes, not_allowed=(), run=None, sizes=SIZES):
        self.name, self.solution, self.draw, self.sizes = solution.__name__, solution, draw, sizes
        self.mistakes, self.not_allowed, self.run = mistakes, set(not_allowed), run

    def cases(self):
        """Draw the arguments of every case, from small to large, the same at every call."""
        for seed, sizes in enumerate(self.sizes):
            yield self.draw(torch.Generator().manual_seed(seed), *sizes)

    def results(self, answer):
        """Put an answer to work on one case after another; yields what it returns, or raised."""
        for seed, (arguments, untouched) in enumerate(zip(self.cases(), self.cases(), strict=True)):
            try:
                with quiet(prints=seed == 0), torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    result = self.run(answer, *arguments) if self.run else answer(*arguments)
                kept = all(map(equal, tensors_in(arguments), tensors_in(untouched)))
                result = result if kept else Raised("it changes its input; work on a copy")
            except (Exception, SystemExit) as error:
                result = Raised(what_was_raised(error, answer))
            yield result

    def mark(self, answer):
        """Compare an answer with the solution; returns a Verdict."""
        if isinstance(answer, Exercise) or not callable(answer):
            return Verdict(False, f"not yet: pass your own {self.name}, without calling it")
        try:
            with Watch() as watch:
                given = list(self.results(answer))
        except KeyboardInterrupt:
            return Verdict(False, "not yet: it was stopped; does every loop come to an end?")
        expected = self.results(self.solution)
        cases = zip(self.cases(), expected, given, strict=True)
        wrong = next((case for case in cases if not equal(*case[1:])), None)
        if wrong is None:
            if {"checks", "solution"} <= names_in(answer):
                return Verdict(False, "not yet: it asks the marker for the solution")
            named = {name for name in names_in(answer) if not is_torch(name)}
            borrowed = sorted(self.not_allowed & (watch.called | named))
            if borrowed:
                return Verdict(False, f"not yet: right, but {borrowed[0]} is what you are to build")
            return Verdict(True, "right")
        if all(result is None for result in given):
            return Verdict(False, "not yet: returns None")
        hints = [
            hint
            for hint, mistake in self.mistakes.items()
            if all(map(equal, self.results(mistake), given))
        ]
        reasons = [what_differs(*wrong[1:]), *hints[:1]]
        return Verdict(False, "\n".join([f"not yet: {': '.join(reasons)}", *self.example(*wrong)]))

    def example(self, arguments, expected, given):
        """Show one case: what went in, what should come out, and what did."""
        names = [*inspect.signature(self.run or self.solution).parameters][bool(self.run) :]
        lines = dict(zip(names, arguments, strict=False))
        lines |= {"expected": expected, "given": given}
        shown = {name: in_full(value) for name, value in lines.items()}
        width = max(map(len, shown))
        return [f"  {name:{width}} {text}" for name, text in shown.items() if text]


def exercise(**how):
    """Turn a solution, a function or a class, into the exercise that asks for it."""
    return lambda solution: Exercise(solution, **how)


@contextlib.contextmanager
def quiet(prints):
    """Keep back what an answer warns of, and unless it `prints`, what it prints or displays."""
    with contextlib.nullcontext() if prints else capture_output(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Watch(TorchFunctionMode):
    """Notes the names of the torch functions that are called."""

    def __init__(self):
        super().__init__()
        self.called = set()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.called.add(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


def names_in(answer):
    """List the names that the code of a function or class mentions."""
    if inspect.isclass(answer):
        return set().union(*map(names_in, vars(answer).values()))
    code = getattr(answer, "__code__", None)
    return set(code.co_names) if code else set()


def is_torch(name):
    """Tell whether torch has a function of this name; Watch sees its calls."""
    return any(hasattr(place, name) for place in (torch, torch.Tensor, nn.functional))


def plain(value):
    """Turn a tensor, a size or a list into a number or a tuple."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(value) if isinstance(value, list | torch.Size) else value


def agree(guess, answer):
    """Tell whether a guess is an answer, a fraction at two decimals."""
    if isinstance(answer, float) and isinstance(guess, Real):
        return abs(float(guess) - answer) < 0.0051
    return isinstance(guess, tuple) == isinstance(answer, tuple) and guess == answer


def equal(one, other):
    """Tell whether two results are the same: tensors and numbers up to rounding."""
    if isinstance(one, Raised) and isinstance(other, Raised):
        return one.text.split(":")[0] == other.text.split(":")[0]
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(equal, one, other))
    if is_numeric(one) and is_numeric(other):
        if (
            torch.is_tensor(one)
            and torch.is_tensor(other)
            and number_kind(one) != number_kind(other)
        ):
            return False
        one, other = as_doubles(one), as_doubles(other)
        return one.shape == other.shape and torch.allclose(
            one, other, atol=CLOSE, rtol=CLOSE / 10, equal_nan=True
        )
    return type(one) is type(other) and (one is other or one == other)


def is_numeric(value):
    return torch.is_tensor(value) or isinstance(value, Real)


def number_kind(tensor):
    """Tell truth values, whole numbers, which can be ids, and others apart."""
    whole = int if not tensor.is_floating_point() else float
    return bool if tensor.dtype == torch.bool else whole


def as_doubles(value):
    value = value if torch.is_tensor(value) else float(value)
    return torch.as_tensor(value).detach().cpu().double()


def tensors_in(arguments):
    """List the tensors among arguments, and in their lists and tuples."""
    return [leaf for leaf in tree_leaves(arguments) if torch.is_tensor(leaf)]


def what_was_raised(error, answer):
    """Say what an answer raised, and in which of its lines."""
    said = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
    parts = vars(answer).values() if inspect.isclass(answer) else [answer]
    files = {part.__code__.co_filename for part in parts if hasattr(part, "__code__")}
    lines = [
        (number, linecache.getline(frame.f_code.co_filename, number).strip())
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename in files
    ]
    return f"{said}, in line {lines[-1][0]}: {lines[-1][1]}" if lines else said


def what_differs(expected, given):
    """Say in a few words how a result differs from what it should be."""
    if isinstance(given, Raised):
        return given.text
    if isinstance(expected, tuple) and isinstance(given, tuple | list):
        pairs = enumerate(zip(expected, given, strict=False))
        wrong = next(((n, pair) for n, pair in pairs if not equal(*pair)), None)
        if len(expected) != len(given) or wrong is None:
            return f"it returns {len(given)} things, not {len(expected)}"
        place = ["first", "second", "third", "last"][wrong[0]]
        return f"the {place} thing that it returns is wrong: {what_differs(*wrong[1])}"
    if not is_numeric(given) or not is_numeric(expected):
        kind = "None" if given is None else f"a {type(given).__name__}"
        one = "a tensor" if torch.is_tensor(expected) else "a number"
        wanted = f"{len(expected)} things" if isinstance(expected, tuple) else one
        return f"it returns {kind}, not {wanted}"
    both = torch.is_tensor(expected) and torch.is_tensor(given)
    if both and number_kind(expected) != number_kind(given):
        return f"it holds {given.dtype}, not {expected.dtype}"
    truths = both and number_kind(expected) is bool
    expected, given = as_doubles(expected), as_doubles(given)
    if expected.shape != given.shape:
        return f"the shape is {tuple(given.shape)}, not {tuple(expected.shape)}"
    if given.isnan().any() and not expected.isnan().any():
        return "it holds nan"
    if not truths and expected.dim() >= 2 and expected.shape[-1] > 1 and (expected >= 0).all():
        sums, right = given.sum(dim=-1).flatten(), expected.sum(dim=-1).flatten()
        row = (sums - right).abs().argmax()
        if torch.allclose(right, torch.ones_like(right)) and abs(sums[row] - 1) > 0.005:
            return f"row {row % expected.shape[-2]} sums to {sums[row]:.2f}"
    if not expected.dim():
        return f"it is {given:.4g}, not {expected:.4g}"
    place = (given - expected).abs().flatten().argmax()
    index = ", ".join(str(n.item()) for n in torch.unravel_index(place, given.shape))
    here, there = (numbers.flatten()[place].item() for numbers in (given, expected))
    if truths:
        return f"at [{index}] it is {bool(here)}, not {bool(there)}"
    return f"at [{index}] it is {here:.4g}, not {there:.4g}"


def in_full(value):
    """Write a small tensor, or a number or text, in full; nothing for all else."""
    if torch.is_tensor(value):
        text = str(rounded(value.detach().tolist())) if value.numel() <= SHOWN else ""
        return text if 0 < len(text) <= WIDE else f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Raised) or callable(value):
        return ""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(in_full, value))}]"
    return repr(value)


def rounded(numbers):
    """Round nested lists of numbers to four digits."""
    if isinstance(numbers, list):
        return [rounded(number) for number in numbers]
    return float(f"{numbers:.4g}") if isinstance(numbers, float) else numbers


def tasks_of(module):
    """List the tasks of a module of markers, {name: Task}, in their order."""
    return {name: task for name, task in vars(module).items() if isinstance(task, Task)}


def report(stem, name, answers):
    """Mark one task of a notebook by its name among the answers; print REPORT and the verdict."""
    task = tasks_of(importlib.import_module(f"helpers.checks.{stem}"))[name]
    verdict = task.mark(answers[name]) if name in answers else Verdict(False, "")
    print("\n" + REPORT + json.dumps(verdict))  # on a line of its own, whatever was printed before
