"""Files of a run, its checkpoints and its log, that a disk has cut short or changed; and what lies in them."""

import json
import random
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rollcast.learner.durable.coverage import Coverage, OpenRollouts
from rollcast.learner.durable.recovery import RecoveredRollouts, take_inventory
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.learner.ranks.parts import part_of
from rollcast.learner.replay.checkpoint import BufferCheckpoint
from rollcast.learner.replay.columns.layout import make_layout
from rollcast.learner.replay.parts import make_store, plan_size
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.training.run_parts import make_algorithm
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, EnvironmentSpaces
from tests.chaos.bookkeeping import reward, seed_and_total

_READ_ENTRIES = 4096


def checkpoints(run_dir: Path) -> list[Path]:
    """Returns the checkpoints, oldest first."""
    return sorted((run_dir / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))


def segments(run_dir: Path) -> list[Path]:
    """Returns the files of the write-ahead log, oldest first."""
    return sorted((run_dir / "log").glob("*.log"))


def damage(paths: Iterable[Path], rng: random.Random, *, truncated: bool) -> Path:
    """Cuts one of some files short, or flips a bit of it; in this place alone, where others link to it.

    Returns:
        The file.
    """
    path = rng.choice(sorted(path for path in paths if path.is_file() and path.stat().st_size))
    content = bytearray(path.read_bytes())
    # behind what was written, a segment of the log is empty
    n_bytes = len(content.rstrip(b"\0")) or len(content)
    if truncated:
        del content[rng.randrange(n_bytes) :]
    else:
        content[rng.randrange(n_bytes)] ^= 1 << rng.randrange(8)
    path.unlink()
    path.write_bytes(content)
    return path


def rollouts_in_log(run_dir: Path, spaces: EnvironmentSpaces, rank: int = 0) -> list[RolloutSlice]:
    """Reads what a rank's log has and the newest checkpoint has not, oldest first."""
    settings = ServingSettings.model_validate(RunDirectory(run_dir).read_settings())
    policy = make_algorithm(settings, spaces, torch.device("cpu")).policy.spec
    header = RecordingHeader(
        spaces=spaces,
        n_rollout_steps=settings.n_rollout_steps,
        n_envs=settings.envs_per_actor,
        state_size=policy.state_size,
        frame_stack=policy.frame_stack,
    )
    state = json.loads((part_of(checkpoints(run_dir)[-1], rank) / "training.json").read_text())
    folder = RunDirectory(run_dir).log_path_of(rank)
    inventory = take_inventory(folder, header, Coverage.from_json(state["actors"]["log"]))
    recovered = RecoveredRollouts(folder, header, deque(inventory.found), OpenRollouts())
    pieces = iter(lambda: recovered.take(sys.maxsize), None)
    return [piece for piece in pieces if piece is not None]


def steps_in_buffer(run_dir: Path, spaces: EnvironmentSpaces) -> tuple[Mapping[int, NDArray[np.int64]], int]:
    """Reads the replay buffer of the newest checkpoint.

    Returns:
        By environments' seed, `[N]`, the numbers of the steps in the order in which they lie there; and how many have
        a reward that is not theirs.
    """
    settings = ServingSettings.model_validate(RunDirectory(run_dir).read_settings())
    layout = make_layout(RolloutShape(spaces, settings.n_rollout_steps), log_prob=settings.replay.keeps_log_prob)
    size = plan_size(settings.replay, layout, batch_size=settings.batch_size)
    store = make_store(settings.replay, layout, size, discount=1.0)
    checkpoint = BufferCheckpoint(threading.Condition(), store, {"store": store})
    checkpoint.load(checkpoints(run_dir)[-1] / "replay" / "substep0")
    entries, rng = store.entries(), np.random.default_rng()
    seeds, totals, n_wrong = [], [], 0
    for start in range(0, len(entries), _READ_ENTRIES):
        slots = entries[start : start + _READ_ENTRIES]
        sample = store.gather(slots, store.make_room(len(slots)), rng)
        columns = sample.substeps[FLAT_SUBSTEP]
        observed, action = np.asarray(columns.observation[""])[0], np.asarray(columns.action)[0]
        n_wrong += int(np.count_nonzero(reward(observed, action) != np.asarray(sample.reward)[0]))
        seed, total = seed_and_total(observed)
        seeds.append(seed)
        totals.append(total)
    seed, total = (np.concatenate([np.zeros(0, np.int64), *arrays]) for arrays in (seeds, totals))
    return {int(one): total[seed == one] for one in np.unique(seed)}, n_wrong
