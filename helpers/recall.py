"""Look: the code of something built earlier, without leaving the notebook."""

import ast
import inspect
import textwrap
from pathlib import Path


class Recalled:
    """Code that a notebook shows in colour, and a terminal as plain text."""

    def __init__(self, code):
        self.code = code

    def __repr__(self):
        return self.code

    def _repr_markdown_(self):
        return f"```python\n{self.code}\n```"


def recall(obj):
    """Show the code of something in `helpers`, without its docstring and its checks of input.

    Raises TypeError for anything else: what a notebook defines stands in that notebook.

    >>> from helpers.loop_mean import loop_mean
    >>> recall(loop_mean)
    # helpers/loop_mean.py
    def loop_mean(x):
        B, T, C = x.shape
        out = torch.zeros_like(x)
        for b in range(B):
            for t in range(T):
                xprev = x[b, : t + 1]  # (t + 1, C)
                out[b, t] = torch.mean(xprev, 0)  # (t + 1, C) -> (C,)
        return out
    """
    module = getattr(obj, "__module__", None) or ""
    if not (inspect.isfunction(obj) or inspect.isclass(obj)) or not module.startswith("helpers."):
        name = getattr(obj, "__name__", repr(obj))
        raise TypeError(
            f"{name} is not part of helpers; recall shows functions and classes imported from there"
        )
    lines = textwrap.dedent(inspect.getsource(obj)).splitlines()
    aside = set()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if is_docstring_owner(node):
            text = node.body[0]
            aside.update(range(text.lineno, text.end_lineno + 1))
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("expect."):
            aside.update(range(node.lineno, node.end_lineno + 1))
    kept = [line for number, line in enumerate(lines, 1) if number not in aside]
    if isinstance(obj, type) and kept[1:2] == [""]:
        del kept[1]  # the blank line that stood under the docstring
    return Recalled(
        "\n".join([f"# {Path(*module.split('.')).with_suffix('.py').as_posix()}", *kept])
    )


def is_docstring_owner(node):
    """Tell whether a node of the syntax tree opens with a docstring."""
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None
