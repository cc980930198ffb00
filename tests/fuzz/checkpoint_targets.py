"""Decoders of checkpoints: their manifest, and what a manifest with the right digests vouches for."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import xxhash
from gymnasium import spaces

from rollcast.actor.statistics.epoch_aggregator import EpochStatsAggregator
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.checkpoints.manifest import FORMAT, MANIFEST_FILE, CheckpointInfo, verify, write_manifest
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.experience.experience import FreshExperience
from rollcast.learner.experience.progress import TrainingProgress
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.checkpointing import TrainingCheckpoints
from rollcast.learner.training.run_parts import make_algorithm
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces
from tests.buffers import make_buffer
from tests.contract.golden_messages import rollout_with_events
from tests.fuzz.file_mutators import Mutate, mutate_arrays, mutate_json, mutate_safetensors, pieces_mutator
from tests.fuzz.messages import join_pieces, split_pieces
from tests.fuzz.oracle import SMALL_CHANGE_BYTES, Target
from tests.played_rollouts import random_ends
from tests.unit.learner.replay.test_checkpoint import T, world_of

_SPACES: EnvironmentSpaces = {
    "0": SubstepSpaces(observation=spaces.Box(-1, 1, (4,), np.float32), action=spaces.Discrete(2))
}
_INFO = CheckpointInfo(
    n_updates=1, env_steps=2, policy_version=3, mean_return=4.0, has_ended=False, software_version="5"
)
_MUTATE: dict[str, Mutate] = {".json": mutate_json, ".arrays": mutate_arrays, ".safetensors": mutate_safetensors}


def manifest(folder: Path) -> Target:
    """The manifest itself, its digest mostly right."""
    (folder / "nested").mkdir()
    for name in ("a", "nested/b"):
        (folder / name).write_text(name)
    write_manifest(folder, _INFO)
    seed = (folder / MANIFEST_FILE).read_bytes()

    def decode(content: bytes) -> CheckpointInfo:
        (folder / MANIFEST_FILE).write_bytes(content)
        return verify(folder)

    def mutate(content: bytes, rng: Random) -> bytes:
        head, _, body = content.partition(b"\n")
        body = mutate_json(body, rng)
        if rng.random() < 0.95:
            head = f"rollcast-checkpoint {FORMAT} {xxhash.xxh3_128_hexdigest(body)}".encode()
        return head + b"\n" + body

    return Target(
        name="manifest",
        decode=decode,
        seeds=(seed,),
        mutate=mutate,
        limit_bytes=SMALL_CHANGE_BYTES + (2 << 20),  # files are read a mebibyte at a time
        bytes_per_byte=256,
    )


def training_state(folder: Path) -> Target:
    """All of a run without a replay buffer: networks, optimiser, counters, statistics, actors."""
    settings = TrainSettings.model_validate({"hidden_sizes": (4,), "actor_kind": "sequential", "device": "cpu"})
    return _checkpoint_target("training state", folder, settings)


def replay_ring(folder: Path) -> Target:
    """A replay buffer of transitions in a ring, as the default is."""
    return _buffer_target("replay ring", folder, {"sampler": "prioritized", "n_step": 2})


def replay_frames(folder: Path) -> Target:
    """A replay buffer in a ring of single frames, whose samples have stacks."""
    return _buffer_target("replay frames", folder, {"frame_stack": 3, "n_step": 2})


def replay_slots(folder: Path) -> Target:
    """A replay buffer of rollouts in slots, the lowest priority removed, draws counted."""
    kind = {"entry": "rollouts", "capacity": 8, "sampler": "prioritized", "max_times_sampled": 3}
    return _buffer_target("replay slots", folder, {**kind, "removal": "lowest_priority"})


def _checkpoint_target(name: str, folder: Path, settings: TrainSettings) -> Target:
    """Everything that a run of these settings goes on from."""
    store = CheckpointStore(folder / "checkpoints", keep=1)
    store.tidy()
    written = _training(store, settings)
    checkpoint = written.begin(best_return=1.0, statistics=_statistics(), has_ended=False)
    assert checkpoint is not None, "none was being written"
    directory = written.wait(checkpoint, 60.0)
    files = _files_of(directory)

    def decode(content: bytes) -> float:
        shutil.rmtree(directory)
        _write(directory, files, content)
        write_manifest(directory, _INFO)
        found = store.newest()
        assert found is not None
        return _training(store, settings).restore(found[0])

    return Target(
        name=name,
        decode=decode,
        seeds=(_joined(directory, files),),
        mutate=_files_mutator(files),
        limit_bytes=4 << 20,  # the networks and their optimiser, made anew for every message
        bytes_per_byte=256,
        max_length=1 << 15,
    )


def _buffer_target(name: str, folder: Path, kind: dict[str, object]) -> Target:
    """A replay buffer, and what is drawn from it and put in afterwards."""
    buffer, world, rng = make_buffer(**kind), world_of(kind), np.random.default_rng(3)
    seeds = []
    played = [world.play(random_ends(rng, T, world.n_envs))[0] for _ in range(9)]
    for number, rollouts in enumerate((played[:1], played[1:])):
        for rollout in rollouts:
            buffer.insert(rollout)
        buffer.update_priorities(buffer.sample(2).keys, [0.5, 2.0])
        buffer.checkpoint.begin().write(folder / str(number), None)
    directory = folder / "1"
    files = _files_of(directory)
    seeds.append(_joined(directory, files))

    def decode(content: bytes) -> None:
        shutil.rmtree(directory)
        _write(directory, files, content)
        loaded = make_buffer(**kind)
        loaded.checkpoint.load(directory)
        loaded.sample(2)
        loaded.insert(played[0])
        loaded.update_priorities(loaded.sample(2).keys, [0.5, 2.0])

    return Target(
        name=name,
        decode=decode,
        seeds=tuple(seeds),
        mutate=_files_mutator(files),
        limit_bytes=1 << 20,  # the buffer itself, made anew for every message
        bytes_per_byte=128,
        max_length=1 << 15,
    )


def _training(store: CheckpointStore, settings: TrainSettings) -> TrainingCheckpoints:
    """Makes what `training_run` makes, but for what runs."""
    algorithm = make_algorithm(settings, _SPACES, torch.device("cpu"))
    actors = RemoteDistributedActors(algorithm.policy, settings.n_rollout_steps, 1, serving=ServingOptions())
    return TrainingCheckpoints(store, algorithm, FreshExperience(actors), TrainingProgress())


def _statistics() -> list[dict[str, Any]]:
    aggregator = EpochStatsAggregator()
    rollout = rollout_with_events()
    aggregator.add_all(rollout.episodes, rollout.events)
    return aggregator.state()


def _files_of(directory: Path) -> Sequence[str]:
    """The names of its files but for the manifest, which is made anew."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return [str(path.relative_to(directory)) for path in paths if path.name != MANIFEST_FILE]


def _joined(directory: Path, files: Sequence[str]) -> bytes:
    return join_pieces((directory / name).read_bytes() for name in files)


def _write(directory: Path, files: Sequence[str], content: bytes) -> None:
    """Makes the directory; a file whose piece is missing is, too."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, piece in zip(files, split_pieces(content), strict=False):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(piece)


def _files_mutator(files: Sequence[str]) -> Mutate:
    kinds = [_MUTATE[Path(name).suffix] for name in files]
    return pieces_mutator(lambda place: kinds[place % len(kinds)])
