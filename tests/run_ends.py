"""Starts runs in each role, and reads what each place that tells of a run says last."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import psutil
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from rollcast.learner.checkpoints.listing import describe_run
from rollcast.learner.checkpoints.manifest import read_info
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError, NotReadyError
from rollcast.services.history.history import HistoryEvent
from rollcast.services.status.status import LearnerStatus, Phase
from tests.chaos.disk import SmallDisk
from tests.processes import DEADLINE_S, descendants, free_port, free_ports, is_alive, running, status_of, wait_until
from tests.zygote import ForkedProcess

Role = Literal["sequential", "train", "learner", "serving", "ranks"]

# Short episodes and small updates: a run goes through all that it does in a second.
_QUICK: Final = (
    *("--env-id", "CartPole-v1"),
    *("--hidden-sizes", "[8]", "--batch-size", 4, "--n-rollout-steps", 16, "--log-interval-s", 0.1),
    *("--track", "trackio", "--track-project", "ends"),
)
_TWO_ENVIRONMENTS: Final = ("--envs-per-actor", 2)
_UPDATES: Final = "train/updates"


class Moment(NamedTuple):
    """A moment of training, by what was learnt until then; None: the place does not tell."""

    env_steps: int
    updates: int | None = None


@dataclasses.dataclass
class Watcher:
    """A watcher of a learner, as a page is, until the learner is gone.

    Attributes:
        last: The last status; None if there was none.
        events: All events.
    """

    last: LearnerStatus | None = None
    events: list[HistoryEvent] = dataclasses.field(default_factory=list)

    def watch(self, address: str) -> None:
        """Returns when the learner is gone."""
        wait_until(lambda: status_of(address).software_version, "the learner to serve")
        with LearnerClient(address) as client, contextlib.suppress(LearnerUnreachableError, NotReadyError):
            for update in client.watch_history(3600.0):
                self.last = update.status
                self.events += update.events


@dataclasses.dataclass
class Run:
    """A run, under way or ended.

    Attributes:
        folder: The run's folder, on a disk of its own.
        disk: That disk.
        outside: A folder on another disk, with the summary and the tracker's base.
        temporary: The learners' folder for temporary files.
        learners: Its learners.
        addresses: Where they serve; none: this kind of run serves nothing.
        said: What each has printed.
        watchers: One for each address.
        children: The processes below the learners, while it trains.
        files: The names of their temporary files then.
    """

    folder: RunDirectory
    disk: SmallDisk
    outside: Path
    temporary: Path
    learners: list[ForkedProcess] = dataclasses.field(default_factory=list)
    addresses: Sequence[str] = ()
    said: list[str] = dataclasses.field(default_factory=list)
    watchers: list[Watcher] = dataclasses.field(default_factory=list)
    children: list[psutil.Process] = dataclasses.field(default_factory=list)
    files: list[str] = dataclasses.field(default_factory=list)

    def wait_for_records(self, n: int = 3) -> None:
        """Waits until it trains, has written a few records, and its tracker has begun."""
        wait_until(lambda: len(self._lines()) >= n and (self.folder.path / "trackio.run").is_file(), f"{n} records")
        self._note_children()

    def wait_for_words(self, text: str) -> None:
        """Waits until each learner that prints has printed a text."""
        wait_until(lambda: text in self.said[0], text)
        self._note_children()

    def signal(self, number: signal.Signals) -> None:
        """Signals every process of a command, as a terminal does; SIGTERM goes to the first alone, as engines do."""
        for learner in self.learners:
            (os.kill if number == signal.SIGTERM else os.killpg)(learner.pid, number)

    def exit_codes(self) -> list[int]:
        """Waits until the learners have ended and everything that they have said is read."""
        codes = [learner.wait(DEADLINE_S) for learner in self.learners]
        for reader in self._readers:
            reader.join(DEADLINE_S)
        wait_until(lambda: not any(map(is_alive, self.children)), f"{self.children} to be gone")
        return codes

    def temporary_files(self) -> list[str]:
        """Returns the names of what the learners have in their temporary folder."""
        # torch keeps one for whoever comes next
        return [path.name for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]

    def last(self) -> dict[str, Moment | None]:
        """Returns the last moment of the run that each place tells of, by its name; None: it tells none."""
        records = [record for line in self._lines() if _UPDATES in (record := json.loads(line))]
        checkpoints = CheckpointStore(self.folder.checkpoints_path, keep=1).all()
        info = read_info(checkpoints[-1]) if checkpoints else None
        policy = self.folder.read_policy("last") if self.folder.policy_path("last").exists() else None
        summary = self.outside / "summary.json"
        summed_up = json.loads(summary.read_text()) if summary.is_file() else None
        # A tracker's thread prints to the same pipe, a line in two writes: our lines may begin behind its words.
        printed = re.search(r"env steps +(\S+) in .*\n+updates {2,}(\S+)$", self.said[0], re.MULTILINE)
        shown = re.findall(r"\d{4}-\d\d-\d\d [\d:]{8}  .* (\S+) steps ", self.said[0])
        told = {
            "records": Moment(records[-1]["env_steps"], int(records[-1][_UPDATES])),
            "tensorboard": self._of_tensorboard(),
            "tracker": self._of_tracker(),
            "checkpoint": info and Moment(info.env_steps, info.n_updates),
            # the first version was cast before the first update
            "policy": policy and Moment(policy.env_steps, policy.policy_version - 1),
            "summary": summed_up and Moment(summed_up["env_steps"], summed_up["updates"]),
            "printed": printed and Moment(*(int(number.replace(",", "")) for number in printed.groups())),
            "console": Moment(int(shown[-1].replace(",", ""))),
            "ls": Moment(describe_run(self.folder).env_steps),
        }
        for rank, watcher in enumerate(self.watchers):
            now = watcher.last
            told[f"history of rank {rank}" if rank else "history"] = now and Moment(now.env_steps, now.updates)
        return told

    def reasons(self) -> list[list[str]]:
        """Returns what the history of each learner says of the end."""
        return [[event.text for event in watcher.events if "training has" in event.text] for watcher in self.watchers]

    def phases(self) -> list[Phase | None]:
        """Returns the last phase in the history of each learner."""
        return [watcher.last and watcher.last.phase for watcher in self.watchers]

    def begin(self) -> None:
        """Reads along with the learners."""
        self.said = [""] * len(self.learners)
        self.watchers = [Watcher() for _ in self.addresses]
        self._readers = [threading.Thread(target=self._read, args=(i,), daemon=True) for i in range(len(self.learners))]
        for watcher, address in zip(self.watchers, self.addresses, strict=True):
            self._readers.append(threading.Thread(target=watcher.watch, args=(address,), daemon=True))
        for reader in self._readers:
            reader.start()

    def _note_children(self) -> None:
        self.children = [child for learner in self.learners if learner.poll() is None for child in descendants(learner)]
        self.files = self.temporary_files()

    def _read(self, rank: int) -> None:
        while line := self.learners[rank].stdout.readline():
            self.said[rank] += line

    def _lines(self) -> list[str]:
        path = self.folder.metrics_path
        return path.read_text().splitlines(keepends=True) if path.is_file() else []

    def _of_tensorboard(self) -> Moment | None:
        found = None
        for path in sorted(self.folder.tensorboard_path.iterdir()):
            for event in LegacyEventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    if value.tag == _UPDATES:
                        found = Moment(event.step, int(value.simple_value))
        return found

    def _of_tracker(self) -> Moment | None:
        with contextlib.closing(sqlite3.connect(self.outside / "ends.db")) as base:
            rows = base.execute("select step, metrics from metrics order by id").fetchall()
        found = [Moment(step, int(values[_UPDATES])) for step, text in rows if _UPDATES in (values := json.loads(text))]
        return found[-1] if found else None


@contextlib.contextmanager
def started(role: Role, folder: Path, arguments: Mapping[str, object]) -> Iterator[Run]:
    """Starts a run, and kills what is left of it.

    Args:
        role: sequential, train: `rollcast train` with actors of this kind; learner: `rollcast learner` and two actors;
            serving: likewise, with `--when-finished serve`; ranks: two learners and an actor each.
        folder: An empty folder.
        arguments: Options of the learner, and of the actors what is theirs of them.
    """
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(SmallDisk(folder / "disk", 64 << 20))
        outside = folder / "outside"
        outside.mkdir()
        # short: names of sockets have 107 characters
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rc-")))
        run = Run(RunDirectory(disk.path / "run"), disk, outside, temporary)
        quick = _QUICK if "--algorithm" in arguments else (*_QUICK, "--ppo.n-epochs", 1)
        given = [*quick, *(word for option in arguments.items() for word in option)]
        given += ["--run-dir", run.folder.path, "--summary-json", outside / "summary.json"]
        variables = {"TRACKIO_DIR": str(outside), "HOME": str(folder), "TMPDIR": str(temporary)}
        if role == "sequential":
            processes = [(("train", *given, "--actor-kind", "sequential", "--envs-per-actor", 4), {})]
        elif role == "train":
            run.addresses = [f"127.0.0.1:{free_port()}"]
            own = ("--address", *run.addresses, *_TWO_ENVIRONMENTS, "--max-restarts", 0)
            processes = [(("train", *given, *own), {})]
        else:
            n, first = (2 if role == "ranks" else 1), free_ports(2)
            run.addresses = [f"127.0.0.1:{first + rank}" for rank in range(n)]
            own = ("--address", run.addresses[0], *_TWO_ENVIRONMENTS, "--collect-timeout-s", 20)
            own += ("--when-finished", "serve") if role == "serving" else ()
            place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
            place["MASTER_PORT"] = str(free_port())
            places = [place | {"RANK": str(rank)} for rank in range(n)] if n > 1 else [{}]
            processes = [(("learner", *given, *own), of_rank) for of_rank in places]
        for command, place in processes:
            run.learners.append(stack.enter_context(running("learner", *command, **variables, **place)))
        run.begin()
        if role not in ("sequential", "train"):
            wait_until(lambda: all(watcher.last for watcher in run.watchers), "the watchers, before it can end")
            theirs = [
                word for option in arguments.items() if option[0] in ("--env-id", "--env-kwargs") for word in option
            ]
            roles = ["evaluate"] if "--eval-interval-steps" in arguments else []
            for of_actor in (*[_TWO_ENVIRONMENTS] * 2, *(("--role", name) for name in roles)):
                at = ("--learner-address", run.addresses[0])
                stack.enter_context(running("actor", *theirs, *at, *of_actor))
        yield run
