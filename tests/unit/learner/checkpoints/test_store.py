import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.learner.checkpoints import pace as pace_module
from rollcast.learner.checkpoints import store as store_module
from rollcast.learner.checkpoints.manifest import (
    CheckpointInfo,
    read_as_vouched_for,
    verify,
)
from rollcast.learner.checkpoints.pace import Pace
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.services.errors import ConfigurationError, InvalidInputError
from tests.processes import ROOT, environment


def info(n_updates: int, mean_return: float | None = None, *, has_ended: bool = False) -> CheckpointInfo:
    return CheckpointInfo(
        n_updates=n_updates,
        env_steps=10,
        policy_version=1,
        mean_return=mean_return,
        has_ended=has_ended,
        software_version="0",
    )


def write_files(directory: Path) -> None:
    (directory / "state.json").write_text('{"a": 1}')
    (directory / "part").mkdir()
    (directory / "part" / "large.bin").write_bytes(bytes(range(256)) * 8)


def write(store: CheckpointStore, of: CheckpointInfo, files: Callable[[Path], None] = write_files) -> Path:
    staged = store.stage(of.n_updates)
    files(staged)
    return store.commit(staged, of)


def make_store(path: Path, keep: int = 3) -> CheckpointStore:
    store = CheckpointStore(path, keep=keep)
    store.tidy()
    return store


def names(store: CheckpointStore) -> list[str]:
    return [path.name for path in store.all()]


def test_what_was_written_is_found(tmp_path):
    store = make_store(tmp_path)
    assert store.newest() is None
    path = write(store, info(7))
    write(store, info(900))
    newest = write(store, info(100_000_000, 3.5))
    assert names(store) == ["00000007", "00000900", "100000000"]
    assert store.newest() == (newest, info(100_000_000, 3.5))
    assert (path / "state.json").read_text() == '{"a": 1}'


def test_the_last_ones_are_kept_and_the_best(tmp_path):
    store = make_store(tmp_path, keep=2)
    for n_updates, mean_return in ((1, None), (2, 5.0), (3, 7.5), (4, 1.0), (5, 2.0), (6, 3.0)):
        write(store, info(n_updates, mean_return))
    assert names(store) == ["00000003", "00000005", "00000006"]
    assert {path.name for path in tmp_path.iterdir()} == set(names(store)), "nothing is left of the others"


@pytest.mark.parametrize("left", [".00000005.tmp", ".00000005.replaced", ".00000004.tmp"])
def test_folders_that_could_not_be_removed_before_are_replaced(tmp_path, left: str):
    store = make_store(tmp_path, keep=1)
    for n_updates in (4, 5):
        write(store, info(n_updates))
        # as a process without free descriptors leaves them
        (tmp_path / left).mkdir(exist_ok=True)
        (tmp_path / left / "file").touch()
    assert write(store, info(5, 1.0)) == tmp_path / "00000005"
    assert store.newest() == (tmp_path / "00000005", info(5, 1.0))
    assert names(store) == ["00000005"]


def test_what_fails_leaves_the_one_before(tmp_path, monkeypatch):
    store = make_store(tmp_path)
    write(store, info(5))
    monkeypatch.setattr(store_module, "sync", Mock(side_effect=OSError("no space left")))
    for n_updates in (5, 6):
        with pytest.raises(OSError, match="no space left"):
            write(store, info(n_updates))
    assert names(store) == ["00000005"]
    assert {path.name for path in tmp_path.iterdir()} == {"00000005"}


def test_a_file_that_is_linked_has_the_digest_it_had_and_is_not_read_again(tmp_path):
    store = make_store(tmp_path)
    first = write(store, info(1))
    staged, large = store.stage(2), first / "part" / "large.bin"
    write_files(staged)
    (staged / "part" / "large.bin").unlink()
    os.link(large, staged / "part" / "large.bin")
    content = large.read_bytes()
    large.write_bytes(content[::-1])  # both names
    second = store.commit(staged, info(2), previous=first)
    with pytest.raises(ConfigurationError, match=r"large\.bin has changed"):
        verify(second)
    large.write_bytes(content)
    assert verify(second) == info(2)
    shutil.rmtree(first)
    assert verify(second) == info(2), "it has a name of its own"


def test_what_was_being_replaced_is_put_back(tmp_path):
    path = write(make_store(tmp_path), info(5))
    path.rename(tmp_path / ".00000005.replaced")
    (tmp_path / ".00000005.tmp").mkdir()
    store = make_store(tmp_path)
    assert store.newest() == (path, info(5))
    assert {found.name for found in tmp_path.iterdir()} == {"00000005"}


def damage(checkpoint: Path, which: int, where: float, kind: str) -> Path:
    """Changes one file, or adds one; returns which."""
    if kind == "one too many":
        (checkpoint / "other").touch()
        return checkpoint / "other"
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    file = files[which % len(files)]
    content = bytearray(file.read_bytes())
    place = int(where * (len(content) - 1))
    if kind == "truncated":
        del content[place:]
    elif kind == "flipped":
        content[place] ^= 1 << (place % 8)
    elif kind == "longer":
        content.append(0)
    if kind == "missing":
        file.unlink()
    else:
        file.write_bytes(content)
    return file


@pytest.mark.slow
@settings(max_examples=50)
@given(
    which=st.integers(0, 2),
    where=st.floats(0, 1),
    kind=st.sampled_from(["truncated", "flipped", "longer", "missing", "one too many"]),
)
def test_a_damaged_one_is_never_loaded_and_the_one_before_is(tmp_path_factory, which: int, where: float, kind: str):
    folder = tmp_path_factory.mktemp("checkpoints")
    store = make_store(folder)
    before = write(store, info(1))
    damage(write(store, info(2)), which, where, kind)
    assert store.newest() == (before, info(1))
    file = damage(before, which, where, kind)
    with pytest.raises(
        ConfigurationError, match=r"none of the 2 checkpoints in .* can be loaded: .* begin another run"
    ):
        store.newest()
    with pytest.raises(ConfigurationError, match=rf"damaged: .*{file.name}|has the format"):
        verify(before)
    shutil.rmtree(folder)


def test_a_damaged_one_is_warned_of(tmp_path, caplog):
    store = make_store(tmp_path)
    write(store, info(1))
    damage(write(store, info(2)), 2, 0.5, "flipped")
    store.newest()
    assert "state.json has changed since it was written" in caplog.text
    (record,) = caplog.records
    assert record.levelname == "WARNING"


def test_another_format_is_told_from_damage(tmp_path):
    path = write(make_store(tmp_path), info(1))
    manifest = path / "manifest"
    manifest.write_text(manifest.read_text().replace("rollcast-checkpoint 2 ", "rollcast-checkpoint 3 "))
    with pytest.raises(ConfigurationError, match=r"has the format '3'; expected 2; resume it with the version"):
        verify(path)


# Forks a writer for each line that it reads: to import takes longer than to write.
_WRITERS = """
import os
import sys
from pathlib import Path
from tests.unit.learner.checkpoints.test_store import info, make_store, write
for _ in sys.stdin:
    if (pid := os.fork()) == 0:
        break
    os.waitpid(pid, 0)
    print("ended", flush=True)
else:
    sys.exit()
print(os.getpid(), flush=True)
store = make_store(Path(sys.argv[1]), keep=2)
first = store.newest()
n_updates = first[1].n_updates if first else 0
while True:
    # each twice: the second replaces the first
    for _ in range(2):
        write(store, info(n_updates, float(n_updates % 7)))
    n_updates += 1
    print(n_updates, flush=True)
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_always_leaves_one_that_loads(tmp_path):
    newest = 0
    with subprocess.Popen(
        [sys.executable, "-c", _WRITERS, str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writers:
        for kill in range(12):
            print(file=writers.stdin, flush=True)
            pid, _, written = (int(writers.stdout.readline()) for _ in range(3))
            # wherever in a write that is: the moments are spread over the few milliseconds that one takes
            time.sleep(kill * 0.0007)
            os.kill(pid, signal.SIGKILL)
            for line in iter(writers.stdout.readline, "ended\n"):
                written = int(line)
            found = CheckpointStore(tmp_path, keep=2).newest()
            assert found is not None
            assert found[1].n_updates >= written - 1 >= newest
            newest = written - 1


def test_turns_unexpected_errors_of_reading_into_damage(tmp_path: Path):
    with (
        pytest.raises(ConfigurationError, match="is damaged: its content cannot be read: KeyError"),
        read_as_vouched_for(tmp_path),
    ):
        raise KeyError("a")
    with pytest.raises(InvalidInputError), read_as_vouched_for(tmp_path):
        raise InvalidInputError("ours")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the time."""
    now = [0.0]
    monkeypatch.setattr(pace_module.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("worked_s", "rested_s"), [(0.01, 0.09), (5.0, 0.25)])
def test_it_rests_by_what_was_worked(clock, monkeypatch, worked_s, rested_s):
    rests: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda _event, seconds: rests.append(seconds))
    pace = Pace(0.1)
    for _ in range(2):
        clock[0] += worked_s
        pace.rest()
    assert rests == pytest.approx([rested_s, rested_s])


def test_whoever_is_in_a_hurry_ends_the_rest(clock):
    pace = Pace(1e-9)
    clock[0] += 1.0
    pace.end_rests()
    pace.rest()
