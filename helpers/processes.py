"""Several processes that train one model together, started by torchrun."""

import gc
import importlib
import os
import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed, nn

from helpers import expect

CARRIERS = {"cpu": "gloo", "cuda": "nccl"}  # what brings numbers from process to process
STOPS = ("SIGINT", "SIGTERM", "SIGHUP")  # Ctrl-C, torchrun when a process is lost, a closed window


@dataclass
class Processes:
    """This process, number `rank` of the `count` that train together.

    Each holds the whole model, draws the whole batch and computes with its own rows of it; what
    they found is averaged. Only the one that is `first` prints and writes.
    """

    rank: int = 0
    count: int = 1
    told_to_stop: bool = False

    @property
    def first(self):
        return self.rank == 0

    def join(self, model):
        """Return a model whose backward pass averages the gradients over all processes.

        They are averaged for as long as the returned model is kept. Do not keep it longer than the
        processes are joined: it would keep their connections, and so may end this one in a crash.
        """
        if self.count == 1:
            return model
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)

    def rows(self, batch):
        """Take this process's rows of a batch.  (B, ...) -> (B / count, ...)"""
        return batch.chunk(self.count)[self.rank]

    def agree(self, loss):
        """Average a loss over all processes, and tell whether any was told to stop.  -> (), bool"""
        both = torch.stack([loss.detach(), loss.new_tensor(self.told_to_stop)])  # (2,)
        if self.count > 1:
            distributed.all_reduce(both)
        return both[0] / self.count, bool(both[1])

    def seed_noise(self, *numbers):
        """Let dropout differ between processes, and come again for the same numbers."""
        torch.manual_seed(hash((*numbers, self.rank)))

    def first_decides(self, make):
        """Return, in every process, what make() returns in the first."""
        made = [make() if self.first else None]
        if self.count > 1:
            distributed.broadcast_object_list(made)
        return made[0]

    def first_then_others(self, make):
        """Return make(), called by the first process and then, once it is done, by the others."""
        if not self.first:
            distributed.barrier()
        made = make()
        if self.first and self.count > 1:
            distributed.barrier()
        return made


ALONE = Processes()


@contextmanager
def started(device):
    """Join the processes that torchrun started, and give this one among them.

    A process that torchrun did not start is alone. Among several, each with a device of this kind,
    a signal to stop any waits for the end of a step and stops all; with gloo, one that is lost ends
    all with exit status 1.
    Raises ValueError for a kind of device that cannot be shared, or too few of it.
    """
    if not launched():
        yield ALONE
        return
    expect.device_for_each(device, int(os.environ["LOCAL_WORLD_SIZE"]))
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    processes = Processes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

    def stop(number, frame):
        processes.told_to_stop = True

    importlib.import_module("torch.distributed.nn")  # later, its defaults would keep the group
    distributed.init_process_group(CARRIERS[device.type])
    for name in STOPS:
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), stop)
    try:
        yield processes
    except RuntimeError as error:
        if not is_stop(error):
            raise
        sys.exit(f"\nprocess {processes.rank}: another process is gone")
    finally:
        gc.collect()  # models that were joined hold the group
        distributed.destroy_process_group()  # and so it ends its threads, before Python ends


@contextmanager
def unbroken():
    """Let what is inside come to its end before Ctrl-C stops anything, in the main thread."""
    handler, came = signal.getsignal(signal.SIGINT), []
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield  # no signal comes here, or it is not Python that takes it
        return
    signal.signal(signal.SIGINT, lambda *given: came.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        signal.raise_signal(signal.SIGINT)


def launched():
    """Tell whether torchrun started this process."""
    return distributed.is_available() and distributed.is_torchelastic_launched()


def is_stop(error):
    """Tell whether an error says that the run was stopped, or that another process is gone."""
    lost = isinstance(error, distributed.DistError) or "gloo" in str(error)  # gloo has no class
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, RuntimeError) and lost)
