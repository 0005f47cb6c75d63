"""recall: the code of what was built earlier, as a notebook would show it."""

import ast
import importlib
import inspect

import pytest
import torch
from torch.nn import functional as F

from helpers import plots
from helpers.loop_mean import loop_mean
from helpers.qkv_head import Head, attention
from helpers.recall import recall

LAYER_MODULES = [
    "loop_mean",
    "tril_matmul",
    "softmax_mask",
    "positional",
    "qkv_head",
    "transformer",
]


def defined_in(name):
    """The functions and classes that a module defines, not those it imports."""
    module = importlib.import_module(f"helpers.{name}")
    found = [thing for thing in vars(module).values() if inspect.isroutine(thing)]
    found += [thing for thing in vars(module).values() if inspect.isclass(thing)]
    return [thing for thing in found if thing.__module__ == module.__name__]


BUILT = [thing for name in LAYER_MODULES for thing in defined_in(name)]


class Bare(ast.NodeTransformer):
    """Take docstrings, checks of input and functions that only check out of a syntax tree."""

    def bare(self, node):
        self.generic_visit(node)
        node.body = [
            part
            for part in node.body
            if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            and not (isinstance(part, ast.Expr) and ast.unparse(part).startswith("expect."))
        ]
        return node if node.body else None

    visit_FunctionDef = visit_ClassDef = bare


def test_every_layer_module_has_something_to_recall():
    assert {thing.__name__ for thing in BUILT} >= {
        "loop_mean",
        "mean_weights",
        "tril_mean",
        "causal_mask",
        "masked_softmax",
        "softmax_mean",
        "TokenAndPosition",
        "sinusoidal_positions",
        "attention",
        "Head",
        "TransformerConfig",
        "MultiHeadAttention",
        "FeedForward",
        "Block",
        "Transformer",
    }


@pytest.mark.parametrize("thing", BUILT, ids=lambda thing: thing.__name__)
def test_recalled_code_is_the_same_code_without_docstrings_and_checks(thing):
    code = recall(thing).code
    expected = ast.unparse(Bare().visit(ast.parse(inspect.getsource(thing))))
    assert ast.unparse(ast.parse(code)) == expected
    assert "expect." not in code
    assert '"""' not in code
    assert "\n\n\n" not in code


@pytest.mark.parametrize("thing", BUILT, ids=lambda thing: thing.__name__)
def test_recalled_code_names_its_file_and_opens_with_code(thing):
    first, *code = recall(thing).code.splitlines()
    assert first == f"# {thing.__module__.replace('.', '/')}.py"
    opening = next(number for number, line in enumerate(code) if line.startswith(("def", "class")))
    assert code[opening + 1].strip()


def test_shape_comments_stay():
    shown = repr(recall(attention))
    assert "# (B, T, hs) @ (B, hs, T) -> (B, T, T)" in shown
    assert shown.count("#") == 1 + inspect.getsource(attention).count("  # ")


def test_a_function_is_shown_whole():
    assert repr(recall(loop_mean)) == (
        "# helpers/loop_mean.py\n"
        "def loop_mean(x):\n"
        "    B, T, C = x.shape\n"
        "    out = torch.zeros_like(x)\n"
        "    for b in range(B):\n"
        "        for t in range(T):\n"
        "            xprev = x[b, : t + 1]  # (t + 1, C)\n"
        "            out[b, t] = torch.mean(xprev, 0)  # (t + 1, C) -> (C,)\n"
        "    return out"
    )


def test_a_notebook_shows_code_in_colour():
    shown = recall(Head)
    assert shown._repr_markdown_() == f"```python\n{shown!r}\n```"


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (torch.softmax, "softmax"),
        (F.cross_entropy, "cross_entropy"),
        (defined_in, "defined_in"),
        (len, "len"),
        (plots, "helpers.plots"),
        (Head(6, 3, 8), "Head"),
        ("Head", "'Head'"),
        (None, "None"),
    ],
)
def test_what_is_not_built_in_helpers_is_refused_by_name(thing, name):
    with pytest.raises(TypeError, match="not part of helpers") as caught:
        recall(thing)
    assert name in str(caught.value)
