"""processes: what several learn together is what one learns alone, also when one is lost."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import torch
from torch import distributed, nn

import helpers
from helpers import train
from helpers.checkpoint import load_checkpoint, read_checkpoint
from helpers.processes import ALONE, Processes, is_stop, started, unbroken
from helpers.text import get_batch, load_corpus
from helpers.transformer import Transformer, TransformerConfig

ROOT = Path(helpers.__file__).resolve().parents[1]
CORPUS = load_corpus("stories")
SIZES = {"block_size": 12, "n_embd": 16, "n_head": 2, "n_layer": 1}
OPTIONS = (
    "--block_size 12 --n_embd 16 --n_head 2 --n_layer 1 --batch_size 8 --eval_every 4 --device cpu"
)
TOGETHER = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
TOGETHER += ["--local-addr=127.0.0.1"]  # so that a computer need not know its own name
STEPS = 12

# the command, in a process that is killed in its 8th step; files are slow to write, so that
# torchrun's signal comes while the other one writes
LOST = """
import os, signal, time
import torch
from helpers import train

compute, write, steps = train.cross_entropy, torch.save, []

def lose(logits, targets):
    steps.extend([1] * torch.is_grad_enabled())
    if len(steps) == 8 and os.environ["RANK"] == os.environ["LOSE"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return compute(logits, targets)

def write_slowly(parts, path):
    time.sleep(1 if len(steps) == 8 else 0)
    write(parts, path)

train.cross_entropy, torch.save = lose, write_slowly
train.main()
"""

GRADIENTS = """
import psutil
import torch
from helpers.processes import started
from helpers.train import cross_entropy
from helpers.transformer import Transformer, TransformerConfig

torch.manual_seed(1)
config = TransformerConfig(vocab_size=7, block_size=5, n_embd=6, n_head=3, n_layer=2)
one, other = Transformer(config), Transformer(config)
other.load_state_dict(one.state_dict())
x, y = torch.randint(7, (4, 5)), torch.randint(7, (4, 5))
cross_entropy(one(x), y).backward()

def check(processes):
    joined = processes.join(other)
    joined.itself = [joined]  # so that only a search for cycles ends it
    loss = cross_entropy(joined(processes.rows(x)), processes.rows(y))
    loss.backward()
    mean, stop = processes.agree(loss)
    torch.testing.assert_close(mean, cross_entropy(one(x), y))
    assert processes.count == 2 and abs(loss - mean) > 1e-4 and not stop
    processes.told_to_stop = processes.rank == 1  # one is enough
    assert processes.agree(loss)[1]
    assert processes.first_decides(lambda: (processes.rank, "said")) == (0, "said")
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-7, rtol=1e-5)

with started(torch.device("cpu")) as processes:
    check(processes)
    threads = psutil.Process().num_threads()
# those that carried numbers are gone; where they outlive Python, it crashes now and then
assert psutil.Process().num_threads() < threads
"""

SPOILED = """
import psutil
import torch
from helpers import train
from helpers.processes import started
from tests.test_processes import CORPUS, a_model

try:
    with started(torch.device("cpu")) as processes:
        threads = psutil.Process().num_threads()
        train.train(a_model(), CORPUS, 9, batch_size=8, learning_rate=1e30, processes=processes)
except FloatingPointError as error:  # it keeps the frames that it came through
    assert psutil.Process().num_threads() < threads
    print("spoiled", flush=True)
"""

needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")


def a_model():
    torch.manual_seed(0)
    return Transformer(TransformerConfig(vocab_size=len(CORPUS.tokenizer), **SIZES))


def learn(steps=STEPS, model=None, **settings):
    """Train alone, as the command with OPTIONS does; returns (history, model)."""
    model = model or a_model()
    return train.train(model, CORPUS, steps, batch_size=8, eval_every=4, **settings), model


def run(*command, at_line=None, send=None, **variables):
    """Run a command and the processes that it starts; returns (exit status, stdout, stderr).

    The signal `send` goes to it once it prints a line that starts with `at_line`. Processes that
    it leaves behind are an error.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8"
        ) as process,
    ):
        lines, workers = [], []
        try:
            for line in process.stdout:
                lines.append(line)
                workers = psutil.Process(process.pid).children() or workers
                if at_line is not None and line.startswith(at_line):
                    process.send_signal(send)
            process.wait(timeout=60)
        finally:
            process.terminate()  # torchrun ends those that it started
        errors.seek(0)
        assert not [one for one in workers if one.is_running()]
        return process.returncode, "".join(lines), errors.read()


def run_together(tmp_path, script, *options, **variables):
    """Run a script in two processes; returns as run does."""
    path = tmp_path / "script.py"
    path.write_text(script, encoding="utf-8")
    return run(*TOGETHER, str(path), *options, **variables)


def same_run(history, other):
    assert history["step"] == other["step"]
    for name in ("loss", "train", "held_out"):
        torch.testing.assert_close(history[name], other[name], atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def alone():
    """What one process learns without a stop."""
    history, model = learn()
    assert history["held_out"][0] - history["held_out"][-1] > 0.1
    return history, model


def test_one_process_trains_by_the_plain_loop_to_the_last_bit(alone):
    history, trained = alone
    model, losses = a_model(), []
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    generator = torch.Generator().manual_seed(0)
    starts = CORPUS.starts(CORPUS.train, SIZES["block_size"])
    for step in range(1, STEPS + 1):
        x, y = get_batch(CORPUS.train, SIZES["block_size"], 8, generator, starts)
        loss = train.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = train.RATE * step / 50  # the rise is not over yet
        optimizer.step()
        losses.append(loss.item())
    assert losses == history["loss"]
    torch.testing.assert_close(model.state_dict(), trained.state_dict(), atol=0, rtol=0)


def test_a_process_alone_joins_nothing_and_changes_nothing():
    model, loss = nn.Linear(2, 3), torch.tensor(1.5)
    with started(torch.device("cpu")) as processes:
        assert processes is ALONE
        assert not distributed.is_initialized()
        assert processes.join(model) is model
        assert processes.agree(loss) == (loss, False)
        assert processes.first_then_others(lambda: 7) == processes.first_decides(lambda: 7) == 7


def test_the_rows_of_all_processes_are_the_batch_in_its_order():
    batch = torch.arange(30).reshape(6, 5)
    rows = [Processes(rank, 3).rows(batch) for rank in range(3)]
    assert [part.shape for part in rows] == [(2, 5)] * 3
    assert torch.equal(torch.cat(rows), batch)


def test_a_batch_that_does_not_split_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(ValueError, match=r"a batch of 8 does not split among 3 processes"):
        learn(processes=Processes(0, 3), out=tmp_path / "m.pt")
    assert not list(tmp_path.iterdir())


def test_noise_differs_between_processes_and_steps_and_comes_again():
    noise = []
    for rank, step in [(0, 1), (1, 1), (0, 2), (0, 1)]:
        Processes(rank, 2).seed_noise(5, step)
        noise.append(torch.rand(4))
    assert not torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[0], noise[2])
    assert torch.equal(noise[0], noise[3])


def test_the_first_process_has_its_turn_before_the_others(monkeypatch):
    for rank, order in [(0, ["make", "wait"]), (1, ["wait", "make"])]:
        seen = []
        monkeypatch.setattr(distributed, "barrier", lambda seen=seen: seen.append("wait"))
        Processes(rank, 2).first_then_others(lambda seen=seen: seen.append("make"))
        assert seen == order


def test_a_process_that_is_not_the_first_writes_and_prints_nothing(tmp_path, capsys):
    class Second(Processes):
        def rows(self, batch):
            return batch

    history, model = learn(processes=Second(rank=1), out=tmp_path / "m.pt", watch=pytest.fail)
    assert len(history["loss"]) == STEPS
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("presses", [0, 1, 2])
def test_what_is_unbroken_comes_to_its_end_before_a_handler_is_called(presses):
    calls = []

    def handler(number, frame):
        calls.append("handled")

    before = signal.signal(signal.SIGINT, handler)
    try:
        with unbroken():
            for _ in range(presses):
                signal.raise_signal(signal.SIGINT)
            calls.append("done")
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == ["done", *["handled"] * (presses > 0)]


def test_where_another_program_takes_the_signals_they_are_left_to_it(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", pytest.fail)
    with unbroken():
        pass


def test_told_to_stop_it_stops_at_the_next_step_and_saves(tmp_path, capsys):
    processes, out = Processes(), tmp_path / "m.pt"

    def watch(history):
        processes.told_to_stop = len(history["loss"]) == 4

    history, model = learn(processes=processes, out=out, watch=watch)
    assert len(history["loss"]) == len(read_checkpoint(out)["history"]["loss"]) == 4
    assert "stopped after 4 of 12 steps" in capsys.readouterr().out
    torch.testing.assert_close(load_checkpoint(out)[0].state_dict(), model.state_dict())


def test_the_state_is_saved_at_each_measurement_in_case_there_is_no_end(tmp_path):
    saved, out = [], tmp_path / "m.pt"

    def watch(history):
        saved.append(len(read_checkpoint(out)["history"]["loss"]) if out.exists() else None)

    learn(out=out, watch=watch)
    assert saved == [None, 4, 8, 12]


def test_only_a_lost_process_or_a_stop_counts_as_one():
    gone = "[../third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer"
    for error in (KeyboardInterrupt(), RuntimeError(gone), distributed.DistBackendError("NCCL")):
        assert is_stop(error)
    for error in (RuntimeError("shapes differ"), torch.OutOfMemoryError(), ValueError("gloo")):
        assert not is_stop(error)


def test_an_error_of_the_model_is_no_stop():
    def spoil(module, given, out):
        raise RuntimeError("spoiled")

    model = a_model()
    model.lm_head.register_forward_hook(spoil)
    with pytest.raises(RuntimeError, match="spoiled"):
        train.train(model, CORPUS, 2)


@pytest.mark.slow
def test_gradients_are_those_of_the_whole_batch(tmp_path):
    status, _, errors = run_together(tmp_path, GRADIENTS)
    assert status == 0, errors


@pytest.mark.slow
def test_an_error_keeps_no_connections(tmp_path):
    status, printed, errors = run_together(tmp_path, SPOILED)
    assert status == 0, errors
    assert printed.count("spoiled") == 2  # their lines may meet


@pytest.mark.slow
def test_two_processes_learn_what_one_learns_and_one_of_them_writes(tmp_path, alone):
    out = tmp_path / "m.pt"
    command = [*TOGETHER, "-m", "helpers.train", *OPTIONS.split(), "--steps", str(STEPS)]
    status, printed, errors = run(*command, "--out", str(out))
    assert status == 0, errors
    history, model = alone
    same_run(read_checkpoint(out)["history"], history)
    learned = load_checkpoint(out)[0].state_dict()
    torch.testing.assert_close(learned, model.state_dict(), atol=1e-3, rtol=0)
    assert re.findall(r"^step +(\d+):", printed, re.MULTILINE) == ["0", "4", "8", "12"]
    assert printed.count("saved to") == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.pt", "m_best.pt"]


@pytest.mark.slow
def test_where_the_first_process_cannot_begin_the_other_ends_in_one_line(tmp_path):
    command = [*TOGETHER, "-m", "helpers.train", *OPTIONS.split(), "--steps", str(STEPS)]
    status, _, errors = run(*command, "--out", str(tmp_path))
    assert status != 0
    assert re.search("^helpers.train: out = .* is a folder", errors, re.MULTILINE)
    assert re.search("^process 1: another process is gone$", errors, re.MULTILINE), errors


@needs_signals
@pytest.mark.slow
@pytest.mark.parametrize(("lost", "saved"), [(1, 7), (0, 4)])
def test_a_killed_process_ends_the_run_which_can_be_gone_on_with_alone(
    tmp_path, alone, lost, saved
):
    out = tmp_path / "m.pt"
    options = [*OPTIONS.split(), "--steps", str(STEPS), "--out", str(out)]
    status, printed, errors = run_together(tmp_path, LOST, *options, LOSE=str(lost))
    assert status != 0
    said = f"process {1 - lost}: the run was told to stop, or another process is gone; .* --resume"
    assert re.search(f"^{said}", errors, re.MULTILINE), errors
    assert ("stopped after 7 of 12 steps" in printed) == (lost == 1)
    assert len(read_checkpoint(out)["history"]["loss"]) == saved
    assert sorted(file.name for file in tmp_path.glob("m*")) == ["m.pt", "m_best.pt"]
    history, _ = learn(resume=out, model=train.new_model(a_model().config, seed=0))
    same_run(history, alone[0])


@pytest.mark.slow
def test_two_processes_go_on_with_what_one_began(tmp_path, alone):
    def watch(history):
        if len(history["loss"]) == 4:
            raise KeyboardInterrupt

    out = tmp_path / "m.pt"
    learn(out=out, watch=watch)
    command = [*TOGETHER, "-m", "helpers.train", *OPTIONS.split(), "--steps", str(STEPS)]
    status, _, errors = run(*command, "--resume", str(out), "--out", str(out))
    assert status == 0, errors
    same_run(read_checkpoint(out)["history"], alone[0])


@needs_signals
@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stop_from_the_terminal_saves_and_says_so(tmp_path, name):
    out = tmp_path / "m.pt"
    command = [*TOGETHER, "-m", "helpers.train", *OPTIONS.split(), "--steps", "100000"]
    number = getattr(signal, name)
    status, printed, errors = run(*command, "--out", str(out), at_line="step     4", send=number)
    assert status != 0
    (done,) = re.findall(r"^stopped after (\d+) of 100000 steps", printed, re.MULTILINE)
    assert 4 <= int(done) == len(read_checkpoint(out)["history"]["loss"])
    assert f"--resume {out}" in errors
