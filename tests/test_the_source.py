"""Habits that go wrong on another machine or another version stay out of the package."""

import ast
from pathlib import Path

import pytest

import helpers

ROOT = Path(helpers.__file__).resolve().parent
MAKERS = {f"torch.{name}" for name in ("arange", "ones", "zeros", "eye", "full", "rand", "randn")}


def bad_habits(code):
    """Name the calls in code that must not be there."""
    found = []
    for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func).split(".")[-1]
        named = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        mode = [*(ast.unparse(arg) for arg in call.args), named.get("mode", "")]
        binary = any("b" in text for text in mode if text[:1] in "'\"" and len(text) <= 5)
        if name == "load" and named.get("weights_only") == "False":
            found.append("load with weights_only=False")
        if name.lower() in ("softmax", "log_softmax", "logsoftmax") and "dim" not in named:
            found.append("softmax without dim")
        if name in ("read_text", "write_text") and "encoding" not in named:
            found.append(f"{name} without encoding")
        picture = ast.unparse(call.func) == "Image.open"
        if name in ("open", "fdopen") and "encoding" not in named and not binary and not picture:
            found.append("open without encoding")
    for method in (node for node in ast.walk(ast.parse(code)) if is_forward(node)):
        for call in (node for node in ast.walk(method) if isinstance(node, ast.Call)):
            given = {keyword.arg for keyword in call.keywords}
            if ast.unparse(call.func) in MAKERS and "device" not in given:
                found.append(f"{ast.unparse(call.func)} without device")
    return found


def is_forward(node):
    """Tell whether a node of the syntax tree is the forward method of a layer."""
    return isinstance(node, ast.FunctionDef) and node.name == "forward"


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_no_module_has_a_bad_habit(path):
    assert bad_habits(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("torch.load(path, weights_only=False)", ["load with weights_only=False"]),
        ("torch.load(path, weights_only=True)", []),
        ("scores.softmax()", ["softmax without dim"]),
        ("F.softmax(scores)", ["softmax without dim"]),
        ("nn.Softmax()", ["softmax without dim"]),
        ("scores.softmax(dim=-1)", []),
        ("masked_softmax(scores, mask)", []),
        ("path.read_text()", ["read_text without encoding"]),
        ("path.write_text(text)", ["write_text without encoding"]),
        ("path.write_text(text, encoding='utf-8')", []),
        ("def forward(self, x):\n    return torch.arange(3)", ["torch.arange without device"]),
        ("def forward(self, x):\n    return torch.arange(3, device=x.device)", []),
        ("def mask(T):\n    return torch.ones(T, T)", []),
        ("open(path)", ["open without encoding"]),
        ("open('ab.txt')", ["open without encoding"]),
        ("path.open('w')", ["open without encoding"]),
        ("open(path, 'rb')", []),
        ("open(path, mode='wb')", []),
        ("open(path, encoding='utf-8')", []),
        ("Image.open(path)", []),
    ],
)
def test_bad_habits_are_found(code, found):
    assert bad_habits(code) == found
