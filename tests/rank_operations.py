"""One rank that does what `test_group` asks for: `python -m tests.rank_operations WHAT`."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from rollcast.learner.ranks import group as group_module
from rollcast.learner.ranks.group import RankGroup
from rollcast.learner.ranks.rank_info import rank_info
from rollcast.learner.ranks.rounds import RankRounds, RankState
from rollcast.services.errors import ConfigurationError, RankLostError, RollcastError
from rollcast.services.process.interrupts import run_to_end

# Stands for NCCL, among torch's backends.
STAND_IN = "nccl_stand_in"


class StandInForNccl(distributed.ProcessGroup):
    """Behaves as NCCL does: it takes tensors of a device only, and returns before the device has done its work.

    The device waits until all ranks have called. It computes nothing. In the first operation, which connects the ranks,
    the host waits.

    Args:
        freezes: True: this process freezes when it is to connect.
    """

    def __init__(self, store: distributed.Store, rank: int, n_ranks: int, *, freezes: bool) -> None:
        super().__init__(rank, n_ranks)
        self._store, self._n_ranks = store, n_ranks
        self._n_operations = 0
        self._name = ""
        self._freezes = freezes
        self.is_aborted = False

    def getBackendName(self) -> str:  # noqa: N802  # torch asks for it
        return STAND_IN

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def allreduce(self, tensors: list[Tensor], options: object = None) -> distributed.Work:
        del options
        (tensor,) = tensors
        if tensor.device.type == "cpu":
            raise RuntimeError("No backend type associated with device type cpu")
        if self._freezes:
            # This thread, at once: of a signal for the process, another thread may hear first.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        self._n_operations += 1
        key = f"operation{self._n_operations}"
        self._store.add(key, 1)
        work = StandInWork(lambda: self.is_aborted or self._store.add(key, 0) == self._n_ranks)
        if self._n_operations == 1:
            work.synchronize_device()
        return work

    def abort(self) -> None:
        self.is_aborted = True


class StandInWork(distributed.Work):
    """Work that a device does once all ranks have called."""

    def __init__(self, is_done: Callable[[], bool]) -> None:
        super().__init__()
        self._is_done = is_done

    def is_completed(self) -> bool:
        return self._is_done()

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Has the stream wait; the host goes on."""
        del timeout
        return True

    def synchronize_device(self) -> None:
        """Has the host wait for the device, as a copy to main memory does: for ever, if need be."""
        forever = threading.Event()
        while not self._is_done():
            forever.wait(0.01)


def on_gpus(group: RankGroup, what: str, *, is_last: bool) -> None:
    """Does what ranks do whose device is not the CPU."""
    distributed.Backend.register_backend(
        STAND_IN,
        lambda store, rank, n, timeout: StandInForNccl(
            store, rank, n, freezes=is_last and what == "freeze before they are connected on gpus"
        ),
        devices=["cuda"],
    )
    on_device = torch.empty(3, device="meta")  # any that is not in main memory
    group.begin(STAND_IN, on_device.device)
    if what == "agree on gpus":
        agreed = RankRounds(group).agree(RankState(env_steps=1 + group.rank))
        print(agreed.env_steps, flush=True)  # noqa: T201 - for the test, which reads it
        return
    works: list[Any] = []
    reduce = distributed.all_reduce

    def kept(*args: Any, **kwargs: Any) -> Any:
        works.append(reduce(*args, **kwargs))
        return works[-1]

    distributed.all_reduce = kept
    group.sum(on_device, "the first gradient")
    works[-1].synchronize_device()
    group.describe_by(lambda: ("thinking", "after 7 updates"))
    if is_last:
        if what == "freeze on gpus":
            print("hangs", flush=True)  # noqa: T201 - for the test, which reads it
            os.kill(os.getpid(), signal.SIGSTOP)
        raise ConfigurationError("a wrong number; expected another; take it")
    group.sum(on_device, "the second gradient")
    works[-1].synchronize_device()
    group.sum(torch.zeros(1), "what comes after it")


# The calls of the store that the last rank repeats while rank 0 freezes. The text is larger than the buffers of the
# connection.
TEXTS: dict[str, Callable[[RankGroup], object]] = {
    "freeze while texts are stored": lambda group: group.note("much", "x" * (1 << 20)),
    "freeze while texts are read": lambda group: group.noted("nothing"),
    "freeze while texts are awaited": lambda group: group.told("nothing", 0, what="nothing", timeout_s=60.0),
}


# In the name of what ends by a signal, not by a deadline.
UNTIL_A_STOP = " until a stop"


def stop_at_a_signal(group: RankGroup) -> None:
    """Has a group be asked to stop by SIGTERM."""
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    group.stop_by(lambda: bool(stops))
    print("waits", flush=True)  # noqa: T201 - for the test, which reads it


def main(what: str) -> int:
    """Does it; returns 0, or 1 after an error of rollcast's own, which it prints."""
    place = rank_info(os.environ)
    assert place is not None
    is_last = place.rank == place.n_ranks - 1
    try:
        with RankGroup(place, timeout_s=600.0 if UNTIL_A_STOP in what else 4.0) as group:
            if is_last and what == "another version":
                group_module.software_version = lambda: "0.0.1"
            group.compare({"--batch-size": 8})
            if what == "freeze before they are connected" and place.rank == 0:
                group.told("compared", 1, what="rank 1 to need nothing but the connection")
                os.kill(os.getpid(), signal.SIGSTOP)
            if (text := what.removesuffix(UNTIL_A_STOP)) in TEXTS:
                if place.rank == 0:
                    group.told("compared", 1, what="rank 1 to need nothing but texts")
                    print("hangs", flush=True)  # noqa: T201 - for the test, which reads it
                    os.kill(os.getpid(), signal.SIGSTOP)
                stop_at_a_signal(group)
                while True:
                    TEXTS[text](group)
            if what.endswith("on gpus"):
                on_gpus(group, what, is_last=is_last)
                return 0
            group.begin("gloo")
            group.sum(torch.ones(1), "the first sum")
            if what == "freeze" and place.rank == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            group.describe_by(lambda: ("thinking", "after 7 updates"))
            if is_last and what.startswith("die"):
                os._exit(0)
            if what == "die while a text is awaited":
                with ThreadPoolExecutor(1) as threads:
                    text = threads.submit(group.told, "part", 1, what="a part of the checkpoint", timeout_s=600.0)
                    try:
                        group.sum(torch.ones(1), "the second sum")
                    except RankLostError:
                        text.result()
            if is_last and what == "raise":
                raise ConfigurationError("a wrong number; expected another; take it")
            if not is_last and UNTIL_A_STOP in what:
                stop_at_a_signal(group)
            if is_last and what.startswith("hang"):
                print("hangs", flush=True)  # noqa: T201 - for the test, which reads it
                os.kill(os.getpid(), signal.SIGSTOP)
            if is_last and what == "stay away":
                group.told("nothing", 0, what="what never comes", timeout_s=8.0)
            if what.endswith("of a text"):
                group.told("nothing", 1, what="what never comes", timeout_s=600.0)
            rows = group.gather(torch.tensor([float(place.rank), 5.0]), "the second sum")
            root = torch.full((2,), float(place.rank))
            group.broadcast(root, "what rank 0 has")
            print(rows.tolist(), root.tolist(), flush=True)  # noqa: T201 - for the test, which reads it
    except RollcastError as error:
        print(f"{type(error).__name__}: {error}", flush=True)  # noqa: T201 - for the test, which reads it
        return 1
    return 0


if __name__ == "__main__":
    # to take apart what the zygote has imported takes half a second of computing
    run_to_end(lambda: main(sys.argv[1]))
