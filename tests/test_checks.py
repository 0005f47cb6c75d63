"""Every marker tells right from nearly right: solutions pass, mistakes get their own hint."""

import ast
import copy
import importlib
import json
import re
import shutil
import subprocess
import sys
from fractions import Fraction

import nbformat
import numpy as np
import pytest
import torch
from test_nbval_catches import course, nbval, run, without_training

from helpers import checks
from helpers.checks import marker
from helpers.checks.__main__ import mark_notebook
from helpers.checks.marker import MARKED, SIZES, Exercise, Prediction, equal, tasks_of
from helpers.maintain.refresh import NOTEBOOKS

__all__ = ["course"]

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
MODULES = {path.stem: importlib.import_module(f"helpers.checks.{path.stem[3:]}") for path in PATHS}
TASKS = [(stem, task) for stem, module in MODULES.items() for task in tasks_of(module).values()]
MISTAKES = [(task, *mistake) for _, task in TASKS for mistake in task.mistakes.items()]


def name_of(case):
    return f"{case.name}" if hasattr(case, "name") else case if isinstance(case, str) else "wrong"


each_task = pytest.mark.parametrize(("stem", "task"), TASKS, ids=name_of)
each_exercise = pytest.mark.parametrize(
    ("stem", "task"), [case for case in TASKS if isinstance(case[1], Exercise)], ids=name_of
)


def cells_of(stem):
    return nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4).cells


def namespace(stem):
    """What a reader has imported by the time of the exercises, and what the notebook built."""
    names = dict(vars(importlib.import_module(f"helpers.{stem[3:]}")))
    exec("import torch", names)
    for cell in cells_of(stem):
        if cell.cell_type == "code":
            imports = [
                node
                for node in ast.parse(cell.source).body
                if isinstance(node, ast.Import | ast.ImportFrom)
            ]
            exec(ast.unparse(ast.Module(imports, [])), names)
    return names


def place_of(stem, task):
    """Find the marker cell of a task; returns (cells, its number)."""
    cells = cells_of(stem)
    call = f"checks.{stem[3:]}.{task.name}({task.name})"
    (place,) = [number for number, cell in enumerate(cells) if cell.source == call]
    return cells, place


def solution_of(stem, task):
    """The folded solution of a task, as a reader finds it."""
    cells, place = place_of(stem, task)
    (code,) = re.findall(
        r"<summary>Solution</summary>\n\n```python\n(.*?)\n```\n\n</details>",
        cells[place + 1].source,
        re.DOTALL,
    )
    return code


def answer_in(code, stem, task):
    names = namespace(stem)
    exec(code, names)
    return names[task.name]


def test_there_are_about_forty_exercises_and_200_wrong_answers():
    print(f"{len(TASKS)} exercises, {len(MISTAKES)} wrong answers")
    assert 35 <= len(TASKS) <= 48
    assert len(MISTAKES) >= 200
    for stem, module in MODULES.items():
        tasks = tasks_of(module)
        assert 4 <= len(tasks) <= 8, stem
        assert any(isinstance(task, Prediction) for task in tasks.values()), stem
        assert all(task.name == name for name, task in tasks.items()), stem
        assert all(len(task.mistakes) >= 3 for task in tasks.values()), stem


@each_task
def test_an_exercise_has_a_level_a_time_two_hints_and_a_solution(stem, task):
    cells, place = place_of(stem, task)
    asked, below = cells[place - 2].source, cells[place + 1].source
    assert re.match(r"### \d+\. .+\n\n\*[A-Z][\w ]+, \d+ minutes?\.\*", asked), asked
    folded = re.findall(r"<details><summary>(.*?)</summary>\n\n.*?\n\n</details>", below, re.DOTALL)
    assert folded == ["Hint 1", "Hint 2", "Solution"]


@pytest.mark.stored
@each_task
def test_the_stub_is_not_yet_solved_and_says_so_in_a_line(stem, task, capsys):
    cells, place = place_of(stem, task)
    task(answer_in(cells[place - 1].source, stem, task))
    said = capsys.readouterr().out
    assert said.startswith("not yet")
    assert MARKED.pop(task.name).solved is False
    (output,) = cells[place].outputs
    assert output.text == said


@each_task
def test_the_folded_solution_is_right(stem, task):
    assert task.mark(answer_in(solution_of(stem, task), stem, task)) == (True, "right")


@pytest.mark.parametrize(("task", "one", "other"), MISTAKES, ids=name_of)
def test_a_wrong_answer_is_rejected_with_its_own_hint(task, one, other):
    wrong, hint = (other, one) if isinstance(task, Exercise) else (one, other)
    verdict = task.mark(wrong)
    hints = task.mistakes if isinstance(task, Exercise) else task.mistakes.values()
    assert not verdict.solved
    assert [known for known in hints if known in verdict.text] == [hint]


@each_exercise
def test_answers_of_every_odd_kind_are_refused_in_words(stem, task):
    def raises(*arguments):
        raise RuntimeError("a mistake\nof the reader")

    odd = [None, 3, "text", torch.zeros(2), raises, lambda: 1, lambda *x: "text", lambda *x: [x]]
    odd += [
        lambda *x: torch.zeros(7, 9),
        lambda *x: (1, 2, 3),
        lambda *x: 0.0,
        type("Empty", (), {}),
    ]
    for answer in odd:
        verdict = task.mark(answer)
        assert not verdict.solved
        assert verdict.text.startswith("not yet")
        assert "Traceback" not in verdict.text
    assert len(verdict.text) < 2000


@each_exercise
def test_a_stored_constant_is_refused(stem, task):
    if task.run:
        return
    for arguments in list(task.cases())[::7]:
        kept = task.solution(*arguments)
        assert not task.mark(lambda *x, kept=kept: kept).solved


@each_exercise
def test_marking_leaves_random_numbers_and_answers_as_they_were(stem, task):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert task.mark(task.solution).solved
    assert task.mark(task.solution).solved
    assert torch.equal(torch.get_rng_state(), before)


SWAPS = {"tril": "triu", "max": "min", "amax": "amin", "argmax": "argmin", "mean": "sum"}
SWAPS |= {"exp": "square", "log": "square", "zeros_like": "ones_like", "zeros": "ones"}
SWAPS |= {other: one for one, other in SWAPS.items() if other != "square"}
DROPPED = {
    "sqrt",
    "masked_fill",
    "transpose",
    "permute",
    "flip",
    "contiguous",
    "square",
    "exp",
    "log",
}
OPERATORS = [
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.FloorDiv, ast.Mult),
    (ast.MatMult, ast.Mult),
]
COMPARED = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.LtE, ast.GtE)]


def changes(node):
    """Every small change of a piece of code: one token more, less or other."""
    if isinstance(node, ast.Name | ast.Attribute):
        part = "id" if isinstance(node, ast.Name) else "attr"
        if getattr(node, part) in SWAPS:
            yield changed(node, part, SWAPS[getattr(node, part)])
        if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
            yield node.value
    if isinstance(node, ast.BinOp | ast.AugAssign):
        for one, other in [*OPERATORS, *(pair[::-1] for pair in OPERATORS)]:
            if isinstance(node.op, one):
                yield changed(node, "op", other())
        if isinstance(node.op, ast.Pow):
            yield node.left
    if isinstance(node, ast.Compare):
        for one, other in [*COMPARED, *(pair[::-1] for pair in COMPARED)]:
            if isinstance(node.ops[0], one):
                yield changed(node, "ops", [other()])
    if isinstance(node, ast.UnaryOp):
        yield node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int:
        for value in {node.value - 1, node.value + 1, 0, 1, -1, -2} - {node.value}:
            yield changed(node, "value", value)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield changed(node, "value", not node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in DROPPED and not isinstance(node.func.value, ast.Name):
            yield node.func.value
        if node.func.attr in DROPPED - {"exp", "log"} and isinstance(node.func.value, ast.Name):
            yield node.args[0] if node.func.value.id in ("torch", "F", "math") else node.func.value
    if isinstance(node, ast.BoolOp | ast.BinOp) and isinstance(
        getattr(node, "op", None), ast.BitAnd | ast.BitOr
    ):
        yield from (node.left, node.right)


def changed(node, part, value):
    other = copy.copy(node)
    setattr(other, part, value)
    return other


class Replace(ast.NodeTransformer):
    def __init__(self, old, new):
        self.old, self.new = old, new

    def visit(self, node):
        return self.new if node is self.old else super().generic_visit(node)


def mutants(code):
    """Write the code once for every small change of one of its parts."""
    places = range(len(list(ast.walk(ast.parse(code)))))
    for place in places:
        for number in range(len(list(changes([*ast.walk(ast.parse(code))][place])))):
            tree = ast.parse(code)
            node = [*ast.walk(tree)][place]
            new = list(changes(node))[number]
            mutant = ast.unparse(ast.fix_missing_locations(Replace(node, new).visit(tree)))
            if mutant != ast.unparse(ast.parse(code)):
                yield mutant


def many_cases(task):
    """Draw 200 inputs, most of them of sizes that the marker does not use."""
    sizes = list(task.sizes)
    if task.sizes is SIZES:
        sizes += [(B, T, C) for B in (1, 2, 4) for T in (1, 2, 3, 6, 11) for C in (2, 4, 6)]
    for number in range(200):
        yield (
            number,
            task.draw(torch.Generator().manual_seed(1000 + number), *sizes[number % len(sizes)]),
        )


def outcomes(task, answer):
    wider = copy.copy(task)
    wider.cases = lambda: (arguments for _, arguments in many_cases(task))
    return list(wider.results(answer))


@pytest.mark.slow
@each_exercise
def test_no_small_change_of_a_solution_passes_unless_it_changes_nothing(stem, task):
    code = solution_of(stem, task)
    right = outcomes(task, task.solution)
    checked = 0
    for mutant in dict.fromkeys(mutants(code)):
        answer = answer_in(mutant, stem, task)
        if task.mark(answer).solved:
            assert all(map(equal, outcomes(task, answer), right)), mutant
        checked += 1
    print(f"{task.name}: {checked} mutants")
    assert checked >= 3


@pytest.mark.parametrize("name", ["running_max"])
def test_what_is_to_be_built_must_not_be_called(name):
    (task,) = [task for _, task in TASKS if task.name == name]
    verdict = task.mark(lambda x: torch.cummax(x, dim=1).values)
    assert verdict == (False, "not yet: right, but cummax is what you are to build")
    verdict = task.mark(lambda x: getattr(torch, "cum" + "max")(x, dim=1).values)
    assert verdict == (False, "not yet: right, but cummax is what you are to build")


def test_one_thing_where_three_are_asked_for_is_told_so():
    task = checks.fast_heads.attend_next
    verdict = task.mark(lambda *arguments: task.solution(*arguments)[0])
    assert verdict.text.startswith("not yet: it returns a Tensor, not 3 things")


def test_what_was_raised_is_said_with_its_line():
    (task,) = [task for _, task in TASKS if task.name == "mean_before"]
    code = "def mean_before(x):\n    out = x.mean(dim=1)\n    return out + missing"
    assert task.mark(answer_in(code, "01_loop_mean", task)).text.startswith(
        "not yet: NameError: name 'missing' is not defined, in line 3"
    )


def test_an_answer_that_changes_its_input_is_told_so():
    (task,) = [task for _, task in TASKS if task.name == "mean_before"]

    def in_place(x):
        out = task.solution(x)
        x.zero_()
        return out

    assert "it changes its input" in task.mark(in_place).text


def test_what_an_answer_prints_is_shown_for_the_smallest_case(capsys):
    (task,) = [task for _, task in TASKS if task.name == "mean_before"]
    task.mark(lambda x: print(len(x), "busy") or task.solution(x))
    assert capsys.readouterr().out == f"{task.sizes[0][0]} busy\n"


def test_progress_lists_what_was_marked(capsys, monkeypatch):
    monkeypatch.setattr(marker, "MARKED", {})
    monkeypatch.setattr(checks, "MARKED", marker.MARKED)
    checks.loop_mean.predict_calls(15)
    checks.loop_mean.mean_before(lambda x: None)
    capsys.readouterr()
    checks.progress()
    assert capsys.readouterr().out.splitlines() == [
        "1 of 2 solved",
        "  solved   predict_calls",
        "  not yet  mean_before",
    ]


@pytest.mark.parametrize("guess", [15, 15.0, torch.tensor(15), np.int64(15), Fraction(15)])
def test_a_prediction_is_compared_by_its_value(guess):
    assert checks.loop_mean.predict_calls.mark(guess) == (True, "right")


def test_a_prediction_in_quotes_is_told_so():
    assert checks.loop_mean.predict_calls.mark("15").text == "not yet: write it without quotes"


def test_whole_numbers_are_not_taken_for_fractions():
    task = checks.positional.to_ids
    verdict = task.mark(lambda *arguments: task.solution(*arguments).float())
    assert verdict.text.startswith("not yet: it holds torch.float32, not torch.int64")


@pytest.mark.parametrize("kind", ["long", "float", "char"])
def test_a_mask_holds_truth_values(kind):
    task = checks.fast_heads.chunk_mask
    verdict = task.mark(lambda *arguments: getattr(task.solution(*arguments), kind)())
    assert re.match(r"not yet: it holds torch\.\w+, not torch\.bool", verdict.text)
    verdict = task.mark(lambda *arguments: ~task.solution(*arguments))
    assert re.match(r"not yet: at \[0, 0\] it is True, not False", verdict.text)


def test_an_input_within_a_tuple_must_not_be_changed_either():
    def merge(part1, part2):
        merged = checks.fast_heads.merge.solution(part1, part2)
        part1[0].add_(1)
        return merged

    assert "it changes its input" in checks.fast_heads.merge.mark(merge).text


def test_a_number_of_any_kind_is_a_number():
    task = checks.fast_heads.cache_bytes
    assert task.mark(lambda *given: np.int64(task.solution(*given))).solved
    assert "not yet: it is 1.268e+30, not " in task.mark(lambda config, B, T: 2**100).text
    assert "returns a str, not a number" in task.mark(lambda config, B, T: "256").text
    assert "SystemExit" in task.mark(lambda config, B, T: sys.exit()).text


def test_a_helper_of_the_reader_may_have_the_name_of_a_torch_function():
    task = checks.softmax_mask.softmax_by_hand
    code = (
        "def softmax(x):\n    return solution(x)\n\ndef softmax_by_hand(x):\n    return softmax(x)"
    )
    names = {"solution": task.solution}
    exec(code, names)
    assert task.mark(names["softmax_by_hand"]).solved


def test_an_answer_that_is_interrupted_is_told_so():
    def endless(x):
        raise KeyboardInterrupt

    assert "come to an end" in checks.loop_mean.mean_before.mark(endless).text


@pytest.mark.stored
@pytest.mark.parametrize("stem", MODULES)
def test_stored_progress_lists_the_exercises_of_the_notebook(stem):
    (cell,) = [cell for cell in cells_of(stem) if cell.source == "checks.progress()"]
    listed = [line.split()[-1] for line in cell.outputs[0].text.splitlines()[1:]]
    assert listed == list(tasks_of(MODULES[stem]))


def fill_in(path, stem, tasks):
    """Write the folded solutions of some tasks into a notebook."""
    notebook = nbformat.read(path, as_version=4)
    for task in tasks:
        _, place = place_of(stem, task)
        notebook.cells[place - 1].source = solution_of(stem, task)
    nbformat.write(notebook, path)


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "helpers.checks", *arguments],
        cwd=NOTEBOOKS.parent,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    return done.returncode, done.stdout, done.stderr


def handed_in(path, changes):
    """Write a copy of notebook 01 with these answers, {task: code}, and others solved."""
    shutil.copy(NOTEBOOKS / "01_loop_mean.ipynb", path)
    stem, tasks = "01_loop_mean", list(tasks_of(checks.loop_mean).values())
    fill_in(path, stem, tasks)
    notebook = nbformat.read(path, as_version=4)
    for task in tasks:
        if task.name in changes:
            _, place = place_of(stem, task)
            notebook.cells[place - 1].source = changes[task.name]
    nbformat.write(notebook, path)
    return [task.name for task in tasks]


@pytest.mark.slow
def test_a_filled_in_notebook_is_marked_from_a_terminal(tmp_path):
    path = tmp_path / "handed_in.ipynb"
    noisy = """def mean_before(x):
    import sys, warnings
    print("busy", file=sys.stderr)
    warnings.warn("busy")
    display(x)
    out = torch.zeros_like(x)
    for t in range(1, x.shape[1]):
        out[:, t] = x[:, :t].mean(dim=1)
    return out"""
    changed = {
        "predict_calls": "predict_calls = 15.0\nchecks.loop_mean.predict_calls = print",
        "mean_before": noisy,
        "window_mean": "def window_mean(x, window)\n    return x",
        "running_max": "def running_max(x):\n    while True:\n        pass",
        "recent_mean": "",
        "who_looks_at_whom": "def who_looks_at_whom(layer, T):\n    "
        "return checks.loop_mean.who_looks_at_whom.solution(layer, T)",
    }
    names = handed_in(path, changed)
    code, said, _ = command("--notebook", str(path), "--json")
    marked = json.loads(said)
    assert code == 0
    assert [task["name"] for task in marked["tasks"]] == names
    assert [task["name"] for task in marked["tasks"] if task["solved"]] == names[:2]
    assert (marked["solved"], marked["of"]) == (2, len(names))
    said = {task["name"]: task["said"] for task in marked["tasks"]}
    assert said["window_mean"].startswith("not yet: its cell fails with SyntaxError: expected ':'")
    assert "does every loop come to an end?" in said["running_max"]
    assert said["recent_mean"] == "not yet: there is no recent_mean"
    assert said["who_looks_at_whom"] == "not yet: it asks the marker for the solution"


@pytest.mark.slow
def test_a_notebook_that_stops_its_kernel_is_named_with_the_cell(tmp_path):
    path = tmp_path / "handed_in.ipynb"
    handed_in(path, {"mean_before": "import os\nos._exit(1)"})
    code, table, said = command("--notebook", str(path))
    assert code == 1
    assert "handed_in.ipynb stopped its kernel, in the cell that begins with 'import os'" in said
    handed_in(path, {})
    code, table, said = command("--notebook", str(path))
    assert code == 0
    assert table.splitlines()[-1] == "6 of 6 solved"
    assert said == ""


def test_a_file_that_is_no_notebook_is_refused(tmp_path):
    for name, content in [("none.ipynb", None), ("text.ipynb", "hello"), ("other.ipynb", "{}")]:
        path = tmp_path / name
        if content is not None:
            path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=name):
            mark_notebook(path)


@pytest.mark.slow
@pytest.mark.parametrize("stem", MODULES)
def test_a_reader_who_solves_runs_and_saves_keeps_green_outputs(course, stem):
    path = course / "notebooks" / f"{stem}.ipynb"
    tasks = list(tasks_of(MODULES[stem]).values())
    fill_in(path, stem, tasks)
    solved = run(path, without_training(path))
    nbformat.write(solved, path)
    said = [
        cell.outputs[0].text for cell in solved.cells if re.match(r"checks\.\w+\.", cell.source)
    ]
    assert said == ["right\n"] * len(tasks)
    passed, printed = nbval(course, [stem])
    assert passed, printed
