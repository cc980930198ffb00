"""Connects the ranks of a run with torch.distributed: collective operations with deadlines."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, Store, Work, _abort_process_group

from rollcast.learner.ranks.device_watch import DeviceWatch
from rollcast.learner.ranks.rank_info import RankInfo
from rollcast.services.errors import ConfigurationError, MismatchError, RankLostError
from rollcast.services.version import software_version

# The interval between a rank's reports, and the silence after which it counts as gone.
_BEAT_S: Final = 0.25
_SILENCE_S: Final = 2.0
# After a request to stop, the silence after which no rank is waited for: a busy rank may be silent for some seconds.
_STOP_SILENCE_S: Final = 8.0
# The store usually answers within a millisecond. After this time without an answer, it counts as gone.
_ANSWER_S: Final = 5.0
# The time by which NCCL's own deadline follows that of `DeviceWatch`, which should act first.
_AFTER_WATCH_S: Final = 600.0
# NCCL's watchdog ends the process when an operation fails, unless this is 0: then `DeviceWatch` finds the lost rank.
# torchrun sets it to 1.
_WATCHDOG: Final = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
# After such an error, torch also makes every rank write its last operations. A process that ends would wait up to 8
# minutes for that. Restarted ranks would find the request in the store, and end.
_DUMPS: Final = "TORCH_NCCL_DUMP_ON_TIMEOUT"
# NCCL connects for each of its algorithms when it first needs it, and the host waits then, unless this is 0.
_CONNECTS_LATE: Final = "NCCL_RUNTIME_CONNECT"
# The time for which a rank with differing settings waits for the others to compare.
_COMPARED_S: Final = 5.0
# The largest number of characters in an ended rank's error.
_MAX_ERROR: Final = 300
# The largest number of characters in a rank's report.
_MAX_WORD: Final = 1000
# The largest number of characters of an unreadable text in an error.
_MAX_SHOWN: Final = 80
# Why an operation ended before its deadline.
_STOPPED: Final = "it was asked to stop, and waits for no silent rank"
_FAILED: Final = "an operation of all ranks has failed, and it waits for no silent rank"
# The interval between checks for an awaited text.
_LOOK_S: Final = 0.05

_CPU: Final = torch.device("cpu")

Answer = TypeVar("Answer")

Backend = Literal["auto", "gloo", "nccl"]


def choose_backend(name: Backend, device: torch.device) -> str:
    """Returns the backend for tensors on a device; `auto` means NCCL on CUDA and gloo on the CPU.

    Raises:
        ConfigurationError: The name is `nccl`, and the device is not CUDA or torch has no NCCL.
    """
    can_nccl = device.type == "cuda" and distributed.is_nccl_available()
    if name == "nccl" and not can_nccl:
        raise ConfigurationError(
            f"--ranks.backend: 'nccl' with the device {str(device)!r}; expected a CUDA device, and a torch with NCCL; "
            "use --ranks.backend gloo, or auto"
        )
    if name == "auto":
        return "nccl" if can_nccl else "gloo"
    return name


class _Word(NamedTuple):
    """The last report of a rank.

    Attributes:
        n_operations: The number of collective operations that it has begun.
        doing: Its present or last work.
        beat: The number of its reports.
        ended: The reason for its end; empty: it has not ended.
    """

    n_operations: int
    doing: str
    beat: int
    ended: str = ""


class Group:
    """The ranks of a run, and their collective operations. This base class is a single rank that waits for no other.

    Attributes:
        rank: The number of this rank, 0 to W - 1.
        n_ranks: W, the number of ranks.
    """

    rank = 0
    n_ranks = 1

    def sum(self, values: Tensor, what: str) -> None:
        """Replaces values, of any shape, by their sum over all ranks.

        Every rank calls this, `gather` and `broadcast` in the same order, from one thread at a time: the trainer's.

        Args:
            values: A tensor on the CPU, or on the device of the backend.
            what: The operation's name, for the error if another rank is missing.

        Raises:
            RankLostError: Another rank is gone, or has not called in time.
        """

    def gather(self, values: Tensor, what: str) -> Tensor:
        """Returns the values of every rank, `[W, ...]`; see `sum`."""
        del what
        return values.unsqueeze(0)

    def broadcast(self, values: Tensor, what: str) -> None:
        """Replaces values by rank 0's; see `sum`."""

    def note(self, key: str, text: str) -> None:
        """Stores a text for all ranks, in place of the previous text. Thread-safe.

        Do not trust stored texts: any process that reaches the store of the ranks can write them.

        Raises:
            RankLostError: The process that serves the store is gone, or has not answered in time.
        """

    def noted(self, key: str) -> str | None:
        """Returns a text that a rank has stored; None if no text is stored. Thread-safe; see `note`."""
        del key
        return None

    def tell(self, name: str, text: str) -> None:
        """Stores a text of this rank for the other ranks; see `note`."""
        self.note(f"{name}/{self.rank}", text)

    def told(self, name: str, rank: int, *, what: str, timeout_s: float | None = None) -> str:
        """Waits for a text from a rank, and returns it. Thread-safe.

        Args:
            name: See `tell`.
            rank: The rank that stores it.
            what: The object of the wait, for errors.
            timeout_s: The seconds to wait; None: the group's timeout.

        Raises:
            RankLostError: The text has not come in time, or the store is gone.
        """
        raise RankLostError(f"there is no rank {rank}: this learner is alone; expected no wait for {what} ({name})")

    def describe_by(self, describe: Callable[[], tuple[str, str]]) -> None:
        """Reports the work of this rank to the other ranks from now on.

        Args:
            describe: Returns what this rank does now, and when, as two texts. While this rank waits for another one,
                its reports omit the first. Any thread may call it.
        """

    def stop_by(self, is_stopping: Callable[[], bool]) -> None:
        """Ends waits for a silent rank or store after a request to stop, without waiting for their deadline.

        Args:
            is_stopping: Returns whether this rank was asked to stop.
        """


class RankGroup(Group):
    """The connection of this process to the other ranks of its run.

    If a rank is gone or late, the others end with a `RankLostError`. It names the lost rank and its last report.

    Args:
        place: The place of this process.
        timeout_s: The seconds that an operation may take, including waits for other ranks.

    Raises:
        RankLostError: Not all ranks have joined in time.
    """

    def __init__(self, place: RankInfo, *, timeout_s: float) -> None:
        self._place = place
        self.rank, self.n_ranks = place.rank, place.n_ranks
        self._timeout_s = timeout_s
        self._describe: Callable[[], tuple[str, str]] = lambda: ("starting", "before the first update")
        self._is_stopping: Callable[[], bool] = lambda: False
        # True: a thread of torch is still in an operation that this rank has given up.
        self._has_given_up = False
        self._store = self._connect()
        self._n_operations = 0
        # Of tensors on a device, if it has a backend of its own; those in main memory go through gloo.
        self._device_group: ProcessGroup | None = None
        self._watch: DeviceWatch | None = None
        self._abort_lock = threading.Lock()  # guards the flag: the trainer and the watch may abort at once
        self._is_aborted = False
        # True: an operation of all ranks has failed, so this rank ends.
        self._has_failed = False
        # The thing that an operation of all ranks waits for; empty: none runs.
        self._operating = ""
        self._ended = threading.Event()
        # The reason for this rank's end, for the others.
        self._farewell = ""
        # The reason for the loss of the store; empty: it is available.
        self._store_lost = ""
        # A separate connection, because a waiting call blocks others on its connection.
        self._beats = threading.Thread(target=self._beat, args=(self._connect(),), name="rollcast-ranks", daemon=True)
        self._beats.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """Leaves the group. Idempotent.

        Args:
            error: The error that ends this rank, for the messages of waiting ranks.
        """
        if error is not None and not self._farewell:
            self._farewell = _reason(error)
        self._ended.set()
        self._beats.join(_SILENCE_S)
        if self._watch is not None:
            self._watch.close()
        if error is not None:
            # An orderly end would wait for what the device has been asked for.
            try:
                _within(_ANSWER_S, self._abort_device)
            except TimeoutError:
                return
        # torch would wait for its thread
        if distributed.is_initialized() and not self._has_given_up:
            distributed.destroy_process_group()

    def compare(self, settings: Mapping[str, object]) -> None:
        """Checks that every rank has the same version of the software and the same settings.

        Args:
            settings: The settings that must be equal, by option, as JSON values.

        Raises:
            MismatchError: Settings differ; the message names the rank, the setting and both values.
        """
        own = {"the version of rollcast": software_version(), "the version of torch": torch.__version__, **settings}
        self.tell("settings", json.dumps(own, default=str))
        own = json.loads(json.dumps(own, default=str))
        what = "the settings of every rank"
        every = [read_object(self.told("settings", rank, what=what), rank, what) for rank in range(self.n_ranks)]
        self.tell("compared", "")
        for rank, theirs in enumerate(every):
            names = sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))
            if names:
                self._let_others_compare()
                differing = "; ".join(f"{name} is {theirs.get(name)!r} there, {own.get(name)!r} here" for name in names)
                raise MismatchError(
                    f"rank {rank} and rank {self.rank} of one run differ: {differing[:_MAX_WORD]}; expected the same "
                    "at all ranks; start them with the same command, and the same version of rollcast"
                )

    def _let_others_compare(self) -> None:
        """Waits until all ranks have all settings: if this process serves the store, the store ends with it."""
        if self._place.hosts_store:
            with contextlib.suppress(RankLostError):
                for rank in range(self.n_ranks):
                    self.told("compared", rank, what="every rank to compare settings", timeout_s=_COMPARED_S)

    def begin(self, backend: str, device: torch.device = _CPU) -> None:
        """Connects all ranks for collective operations.

        Args:
            backend: The backend for tensors on the device. Tensors in main memory always use gloo, so that agreements
                between ranks wait for no device.
            device: The device of this rank.

        Raises:
            RankLostError: Not all ranks have joined in time.
        """
        timeout = timedelta(seconds=self._timeout_s)
        with self._operation("the connection of all ranks"):
            _within(
                self._timeout_s + _ANSWER_S,
                lambda: distributed.init_process_group(
                    "gloo",
                    store=PrefixStore("group", self._store),
                    rank=self.rank,
                    world_size=self.n_ranks,
                    timeout=timeout,
                ),
            )
        if backend != "gloo":
            with self._operation("the connection of all devices"):
                os.environ[_WATCHDOG] = "0"
                os.environ.setdefault(_DUMPS, "0")
                os.environ.setdefault(_CONNECTS_LATE, "0")
                self._device_group = _within(
                    self._timeout_s + _ANSWER_S,
                    lambda: distributed.new_group(backend=backend, timeout=timeout + timedelta(seconds=_AFTER_WATCH_S)),
                )
                # NCCL connects in its first operation, in which the host waits for all ranks.
                first = torch.zeros(1, device=device)
                _within(self._timeout_s + _ANSWER_S, lambda: distributed.all_reduce(first, group=self._device_group))
            self._watch = DeviceWatch(
                self._abort_device, self._has_rank_ended, device=device, timeout_s=self._timeout_s
            )

    def sum(self, values: Tensor, what: str) -> None:
        """Sums values over all ranks; see `Group.sum`."""
        with self._operation(what):
            group = self._group_of(values)
            self._end(distributed.all_reduce(values, group=group, async_op=True), group, what)

    def gather(self, values: Tensor, what: str) -> Tensor:
        """Returns the values of every rank; see `Group.gather`."""
        # By a sum, in which all others have zeros: gloo has no gathering into one tensor.
        every = torch.zeros((self.n_ranks, *values.shape), dtype=values.dtype, device=values.device)
        every[self.rank] = values
        self.sum(every, what)
        return every

    def broadcast(self, values: Tensor, what: str) -> None:
        """Replaces values by rank 0's; see `Group.broadcast`."""
        with self._operation(what):
            group = self._group_of(values)
            self._end(distributed.broadcast(values, src=0, group=group, async_op=True), group, what)

    def note(self, key: str, text: str) -> None:
        """Stores a text for all ranks; see `Group.note`."""
        with self._store_errors(f"noting {key}"):
            self._ask(lambda: self._store.set(key, text))

    def noted(self, key: str) -> str | None:
        """Returns the text in the store; see `Group.noted`."""
        with self._store_errors(f"reading {key}"):
            return self._ask(lambda: self._read(key))

    def told(self, name: str, rank: int, *, what: str, timeout_s: float | None = None) -> str:
        """Waits for a text in the store; see `Group.told`."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        began = heard_at = time.monotonic()
        before: _Word | None = None
        while True:
            with self._store_errors(f"looking for rank {rank}"):
                # The report is read before the text, because a rank may store the text and then end.
                word, text = self._ask(lambda: (self._last_word(rank), self._read(f"{name}/{rank}")))
            if text is not None:
                return text
            now = time.monotonic()
            if word != before:
                before, heard_at = word, now
            # The end of a rank waits for the thread that writes a checkpoint.
            is_silent = now - heard_at > _STOP_SILENCE_S and (self._has_failed or self._is_stopping())
            if now - began > timeout_s or is_silent or (word is not None and word.ended):
                why = f": {_FAILED if self._has_failed else _STOPPED}" if is_silent else ""
                raise RankLostError(
                    f"rank {self.rank} of {self.n_ranks} waited {now - began:.1f} s for {what}, and rank {rank} has "
                    f"{_where(word)}; expected all ranks within {timeout_s:g} s; look at the log of "
                    f"rank {rank}, or raise --ranks.timeout-s{why}"
                )
            self._ended.wait(_LOOK_S)

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Returns the result of a call of the store; see `_within`."""
        return _within(self._timeout_s, call, is_stopping=self._is_stopping)

    def describe_by(self, describe: Callable[[], tuple[str, str]]) -> None:
        """Reports the work of this rank to the other ranks; see `Group.describe_by`."""
        self._describe = describe

    def stop_by(self, is_stopping: Callable[[], bool]) -> None:
        """Ends operations early after a request to stop; see `Group.stop_by`."""
        self._is_stopping = is_stopping

    def _group_of(self, values: Tensor) -> ProcessGroup | None:
        """Returns the group for a tensor; None: the group of main memory."""
        return None if values.device.type == "cpu" else self._device_group

    def _end(self, work: Work, group: ProcessGroup | None, what: str) -> None:
        """Waits for an operation. On a device, the device's stream waits, and the host continues."""
        if group is None:
            self._await(work)
        work.wait()
        if group is not None and self._watch is not None:
            self._watch.note(work, what)

    def _await(self, work: Work) -> None:
        """Waits until an operation in main memory has ended, well or not. Python handles signals every 2 s.

        Raises:
            TimeoutError: This rank was asked to stop, and another rank or the store is silent.
        """
        before: dict[int, _Word | None] = {}
        looked_at = 0.0
        while not work.is_completed():
            # The 2 s are over, or the operation has failed: `_end` waits again, and raises the failure.
            with contextlib.suppress(RuntimeError):
                work.wait(timedelta(seconds=_SILENCE_S))
            now = time.monotonic()
            if work.is_completed() or not self._is_stopping() or (before and now - looked_at < _STOP_SILENCE_S):
                continue
            words = _within(_ANSWER_S, self._words)
            if any(words[rank] == word for rank, word in before.items()):
                raise TimeoutError(_STOPPED)
            before, looked_at = words, now

    def _abort_device(self) -> None:
        """Ends all operations on the device. Thread-safe and idempotent."""
        with self._abort_lock:
            is_aborted, self._is_aborted = self._is_aborted, True
        if self._device_group is not None and not is_aborted:
            _abort_process_group(self._device_group)

    def _has_rank_ended(self) -> bool:
        """Returns whether another rank has announced its end, or the store is gone."""
        try:
            words = _within(_ANSWER_S, self._words)
        except (RuntimeError, TimeoutError):
            return True
        return any(word is not None and word.ended for word in words.values())

    def _connect(self) -> Store:
        place = self._place
        try:
            store: Store = _within(
                self._timeout_s + _ANSWER_S,
                lambda: distributed.TCPStore(  # type: ignore[attr-defined]  # exported, but not in its __all__
                    place.host,
                    place.port,
                    place.n_ranks,
                    is_master=place.hosts_store and not hasattr(self, "_store"),
                    timeout=timedelta(seconds=self._timeout_s),
                    wait_for_workers=False,
                ),
            )
        except (RuntimeError, OSError) as error:
            raise RankLostError(
                f"rank {place.rank} of {place.n_ranks} has found no store at {place.host}:{place.port} within "
                f"{self._timeout_s:g} s; expected rank 0 or torchrun to serve it; start all ranks, with the same "
                f"MASTER_ADDR and MASTER_PORT: {_first_line(error)}"
            ) from error
        return PrefixStore(f"rollcast/{place.attempt}", store)

    @contextlib.contextmanager
    def _operation(self, what: str) -> Iterator[None]:
        if self._store_lost:
            # Now, not when the next checkpoint needs it.
            raise RankLostError(self._without_store(f"before {what}", self._store_lost))
        if self._watch is not None and (aborted := self._watch.aborted) is not None:
            self._has_failed = True
            error = RuntimeError("its device waited, and not the call: the operation was aborted")
            raise RankLostError(self._lost(aborted.what, aborted.waited_s, error))
        self._operating = what
        self._n_operations += 1
        began = time.monotonic()
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            self._has_given_up, self._has_failed = isinstance(error, TimeoutError), True
            # A thread that waits for the device, such as the publisher's, must also end.
            self._abort_device()
            raise RankLostError(self._lost(what, time.monotonic() - began, error)) from error
        finally:
            self._operating = ""

    @contextlib.contextmanager
    def _store_errors(self, what: str) -> Iterator[None]:
        if self._store_lost:
            raise RankLostError(self._without_store(f"while {what}", self._store_lost))
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            # No further thread is left behind.
            self._store_lost = _first_line(error)
            raise RankLostError(self._without_store(f"while {what}", self._store_lost)) from error

    def _without_store(self, when: str, why: str) -> str:
        return (
            f"rank {self.rank} of {self.n_ranks} has lost the store of the ranks {when}; expected torchrun or rank 0 "
            f"to serve it until the end; look at its log: {why}"
        )

    def _lost(self, what: str, waited_s: float, error: Exception) -> str:
        """Describes the rank for which an operation has waited."""
        try:
            before = _within(_ANSWER_S, self._words)
            threading.Event().wait(_SILENCE_S)
            now = _within(_ANSWER_S, self._words)
        except TimeoutError as silence:
            self._store_lost = str(silence)
            return self._without_store(f"after {waited_s:.1f} s of {what}", self._store_lost)
        except RuntimeError:
            return self._without_store(f"after {waited_s:.1f} s of {what}", _first_line(error))
        found = []
        for rank, word in now.items():
            if word is None or word.ended:
                found.append(f"rank {rank} has {_where(word)}")
            elif word == before[rank]:
                found.append(
                    f"rank {rank} no longer answers; it last reported: {word.doing} (it reports "
                    f"{1 / _BEAT_S:.0f} times a second)"
                )
            elif word.n_operations < self._n_operations:
                found.append(f"rank {rank} has {_where(word)}")
        who = "; ".join(found) or "every rank still answers"
        return (
            f"rank {self.rank} of {self.n_ranks} waited {waited_s:.1f} s for {what}: {who}; expected every rank within "
            f"{self._timeout_s:g} s (--ranks.timeout-s); look at the log of that rank: {_first_line(error)}"
        )

    def _words(self) -> dict[int, _Word | None]:
        """Returns the last report of each other rank."""
        return {rank: self._last_word(rank) for rank in range(self.n_ranks) if rank != self.rank}

    def _last_word(self, rank: int) -> _Word | None:
        """Returns the last report of a rank; None: no readable report exists."""
        try:
            n_operations, doing, beat, ended = json.loads(self._read(f"beat/{rank}") or "")
            return _Word(int(n_operations), str(doing)[:_MAX_WORD], int(beat), str(ended)[:_MAX_WORD])
        except (ValueError, TypeError, OverflowError, RecursionError):
            # None, or not from a rank: any process that reaches the store can write there.
            return None

    def _read(self, key: str) -> str | None:
        return self._store.get(key).decode(errors="replace") if self._store.check([key]) else None

    def _beat(self, store: Store) -> None:
        """Reports the state of this rank to the others repeatedly, and at last the reason for its end."""
        beat, is_over = 0, False
        while not is_over:
            is_over, beat = self._ended.is_set(), beat + 1
            doing, when = self._describe()
            if self._operating:
                doing = f"waiting for {self._operating}"
            word = _Word(self._n_operations, f"{doing}, {when}", beat, self._farewell if is_over else "")
            try:
                store.set(f"beat/{self.rank}", json.dumps(word))
            except RuntimeError as error:
                self._store_lost = _first_line(error)
                return
            self._ended.wait(_BEAT_S)


def read_object(text: str, rank: int, what: str) -> dict[str, Any]:
    """Returns a JSON object that a rank has stored.

    Args:
        text: The text in the store.
        rank: The rank that stored it.
        what: Its purpose, for the error.

    Raises:
        RankLostError: The text is no JSON object: any process that reaches the store can write there.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RankLostError(
            f"the store of the ranks has {text[:_MAX_SHOWN]!r} from rank {rank} for {what}; expected a JSON object; "
            "look for another process that uses MASTER_PORT"
        )
    return value


def _within(timeout_s: float, call: Callable[[], Answer], *, is_stopping: Callable[[], bool] = lambda: False) -> Answer:
    """Returns the result of a call of the store.

    A thread makes the call and may be left behind: if the store's process is frozen, neither deadlines nor signals end
    torch's calls.

    Args:
        timeout_s: The seconds to wait.
        call: The call.
        is_stopping: Returns whether this rank was asked to stop. It then waits for at most `_STOP_SILENCE_S` in all.

    Raises:
        TimeoutError: There is no answer in time.
    """
    answer: Future[Answer] = Future()

    def make() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001  # the caller gets it
            answer.set_exception(error)

    threading.Thread(target=make, name="rollcast-ranks-store", daemon=True).start()
    began = time.monotonic()
    while True:
        waited_s = time.monotonic() - began
        most_s = min(timeout_s, _STOP_SILENCE_S) if is_stopping() else timeout_s
        if futures.wait([answer], min(_SILENCE_S, max(0.0, most_s - waited_s))).done:
            return answer.result()
        if waited_s >= most_s:
            raise TimeoutError(f"it has not answered for {most_s:g} s")


def _where(word: _Word | None) -> str:
    if word is None:
        return "never answered"
    if word.ended:
        return f"ended: {word.ended}; it last reported: {word.doing}"
    return f"not arrived; it reports: {word.doing}"


def _reason(error: BaseException) -> str:
    """Returns the reason for a rank's end, in one line."""
    if isinstance(error, RankLostError):
        return "it has lost another rank, too"
    line = f"{type(error).__name__}: {_first_line(error)}"
    return line if len(line) <= _MAX_ERROR else line[:_MAX_ERROR] + "..."


def _first_line(error: BaseException) -> str:
    line = (str(error).splitlines() or [repr(error)])[0]
    # Gloo goes on with advice, and a greeting.
    return line.partition(". This is typically caused by")[0]
