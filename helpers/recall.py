"""Look: the code of something built earlier, without leaving the notebook."""

import ast
import inspect
import textwrap


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
    kept = without(lines, aside(ast.parse("\n".join(lines)).body[0]))
    return Recalled("\n".join([f"# {module.replace('.', '/')}.py", *kept]))


def aside(definition):
    """Yield the parts of a definition that are not the idea: docstrings, checks, empty methods."""
    for node in definition.body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        check = isinstance(node, ast.Expr) and ast.unparse(node).startswith("expect.")
        inner = list(aside(node)) if isinstance(node, ast.FunctionDef) else []
        if text or check or (inner and len(inner) == len(node.body)):
            yield node
        else:
            yield from inner


def without(lines, nodes):
    """Cut nodes of the syntax tree out of lines of code, with the blank lines that they leave."""
    cut = {n for node in nodes for n in range(node.lineno - 1, node.end_lineno)}
    kept = [line for n, line in enumerate(lines) if n not in cut]
    return [
        line
        for n, line in enumerate(kept)
        if line or (n + 1 < len(kept) and kept[n - 1] and not kept[n - 1].startswith("class "))
    ]
