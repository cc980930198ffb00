"""Hostile files in the folder of a run: refused by an error that names the file, in bounded memory."""

import json
import struct

import numpy as np
import pytest
import xxhash

from rollcast.learner.checkpoints.manifest import FORMAT, MANIFEST_FILE, CheckpointInfo, verify, write_manifest
from rollcast.learner.replay.saving.array_file import ArrayFileWriter, read_chunks
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.train import TrainSettings
from rollcast.services.errors import ConfigurationError
from tests.buffers import make_buffer
from tests.played_rollouts import GOES_ON, TRUNCATES, World
from tests.unit.learner.replay.test_checkpoint import play_into

INFO = {"n_updates": 1, "env_steps": 2, "policy_version": 3, "mean_return": 4.0, "has_ended": False}


def arrays_of(header):
    encoded = json.dumps(header).encode()
    return struct.pack("<I", len(encoded)) + encoded


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b"\xff",
        b"{}",
        json.dumps({**INFO, "software_version": "1"}).encode(),
        json.dumps({**INFO, "software_version": "1", "files": {"a": 3}}).encode(),
        json.dumps({**INFO, "software_version": "1", "files": [], "more": 1}).encode(),
        json.dumps({**INFO, "software_version": "1", "mean_return": "much", "files": {}}).encode(),
        json.dumps(
            {**INFO, "software_version": 1, "files": {"../../etc/passwd": {"bytes": 1, "xxh3_128": ""}}}
        ).encode(),
    ],
)
def test_manifests_whose_digest_is_right(tmp_path, body):
    head = f"rollcast-checkpoint {FORMAT} {xxhash.xxh3_128_hexdigest(body)}\n".encode()
    (tmp_path / MANIFEST_FILE).write_bytes(head + body)
    with pytest.raises(ConfigurationError, match=f"{tmp_path} is damaged: manifest has wrong fields"):
        verify(tmp_path)


def test_a_manifest_names_no_file_outside(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (tmp_path / "secret").write_text("x")
    write_manifest(checkpoint, CheckpointInfo(**INFO, software_version="1"))
    files = {"../secret": {"bytes": 1, "xxh3_128": xxhash.xxh3_128_hexdigest(b"x")}}
    body = json.dumps({**INFO, "software_version": "1", "files": files}).encode()
    head = f"rollcast-checkpoint {FORMAT} {xxhash.xxh3_128_hexdigest(body)}\n".encode()
    (checkpoint / MANIFEST_FILE).write_bytes(head + body)
    with pytest.raises(ConfigurationError, match=r"it has the files \[\], and its manifest names \['\.\./secret'\]"):
        verify(checkpoint)


def spoil_values(directory, **changes):
    path = directory / "values.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def state_of(directory):
    return {name: array for piece in read_chunks(directory / "state.arrays") for name, array in piece.items()}


def spoil_arrays(directory, **changes):
    arrays = {**state_of(directory), **changes}
    (directory / "state.arrays").unlink()
    with ArrayFileWriter(directory / "state.arrays") as file:
        file.append(arrays)


def as_nan(directory, name):
    return state_of(directory)[name] * np.nan


@pytest.mark.parametrize(
    ("kind", "spoil", "match"),
    [
        ({}, lambda it: spoil_values(it, **{"store.head": []}), "head is \\[\\]"),
        ({}, lambda it: spoil_values(it, **{"store.head": 1 << 70}), "head is 1180591620717411303424"),
        ({}, lambda it: spoil_values(it, **{"store.tail": -1}), "tail is -1"),
        ({}, lambda it: spoil_values(it, **{"store.size": 3}), "size is 3"),
        ({}, lambda it: spoil_arrays(it, **{"store.flags": np.zeros(1, np.uint8)}), "flags is uint8"),
        ({}, lambda it: spoil_values(it, **{"limiter.inserts": None}), "inserts is None"),
        (
            {},
            lambda it: spoil_values(it, **{"sampler.generator": {"bit_generator": "x"}}),
            "its content cannot be read",
        ),
        ({}, lambda it: (it / "values.json").write_text("[" * 100_000), "RecursionError"),
        (
            {},
            lambda it: (it / "state.arrays").write_bytes(arrays_of({"a": ["<f4", [1 << 40]]})),
            "beyond the end of the file",
        ),
        ({}, lambda it: (it / "state.arrays").write_bytes(b""), "KeyError: .flags."),
        ({"sampler": "prioritized"}, lambda it: spoil_values(it, **{"sampler.largest": -1}), "largest is -1"),
        (
            {"sampler": "prioritized"},
            lambda it: spoil_arrays(it, **{"sampler.priorities": as_nan(it, "sampler.priorities")}),
            "priorities are from nan",
        ),
        (
            {"entry": "rollouts", "capacity": 8},
            lambda it: spoil_arrays(it, **{"store.slots.free": np.array([0, 99])}),
            "free has slots from 0 to 99",
        ),
        (
            {"entry": "rollouts", "capacity": 8},
            lambda it: spoil_arrays(it, **{"sampler.list": np.array([1, 1])}),
            "list has slots from 1 to 1",
        ),
        (
            {"entry": "rollouts", "capacity": 8},
            lambda it: spoil_arrays(it, **{"store.slots.generation": np.zeros((8, 1), np.int64)}),
            "generation is int64",
        ),
    ],
)
def test_replay_buffers_that_no_buffer_has_written(tmp_path, kind, spoil, match):
    buffer = make_buffer(**kind)
    play_into(buffer, World(n_steps=4, has_reset_rows=False), np.random.default_rng(3), 2)
    buffer.checkpoint.begin().write(tmp_path / "state", None)
    make_buffer(**kind).checkpoint.load(tmp_path / "state")
    spoil(tmp_path / "state")
    with pytest.raises(ConfigurationError, match=match):
        make_buffer(**kind).checkpoint.load(tmp_path / "state")


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 3000,
        "seed: 2001-13-45",
        "1: 2",
        "- 1",
        "!!python/object/apply:os.system [ls]",
        "seed: [1, 2]",
        "replay: 3",
        "hidden_sizes: {a: 1}",
        "n_actors: .nan",
        "seed: 1" + ":0" * 400 + ".5",
        "seed: !!bool x",
        "seed: !!int ''",
        "seed: !!timestamp x",
        "seed: 0x" + "f" * 4000,
        "a: &a [*a, *a]",
        "a: &a {b: 1}\nc: &c {<<: [*a, *a]}",
        "hidden_sizes: [" + "1, " * (1 << 16) + "]",
        "hidden_sizes: [" + "[[1], " * 30_000,
    ],
)
def test_settings_that_no_run_has_written(tmp_path, text):
    run = RunDirectory(tmp_path)
    run.settings_path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        TrainSettings.from_command_line("rollcast train", ["--resume", str(tmp_path)])


def test_settings_that_are_no_text(tmp_path):
    RunDirectory(tmp_path).settings_path.write_bytes(b"seed: \xff")
    with pytest.raises(ConfigurationError, match="expected the settings of a run"):
        RunDirectory(tmp_path).read_settings()


@pytest.mark.parametrize("level", ["[*a{0}, *a{0}, *a{0}]", "{{<<: [*a{0}, *a{0}, *a{0}]}}"])
def test_settings_of_which_a_kilobyte_is_more_than_any_memory(tmp_path, level):
    levels = [f"a{n + 1}: &a{n + 1} {level.format(n)}" for n in range(30)]
    RunDirectory(tmp_path).settings_path.write_text("\n".join(["a0: &a0 {x: 1}", *levels]))
    with pytest.raises(ConfigurationError, match="line 1 has the anchor or alias 'a0' instead of a plain value"):
        RunDirectory(tmp_path).read_settings()


@pytest.mark.parametrize("kwargs", [{"a": "x" * (1 << 17)}, {"a": 1 << 4000}, {"a": json.loads("[" * 40 + "]" * 40)}])
def test_settings_that_could_not_be_read_again_are_not_written(tmp_path, kwargs):
    with pytest.raises(ConfigurationError, match=r"could not be read again.*--env-kwargs"):
        RunDirectory(tmp_path).write_settings({"env_kwargs": kwargs})


def test_settings_that_come_twice_are_written_in_full(tmp_path):
    twice = {"a": [1, 2]}
    RunDirectory(tmp_path).write_settings({"b": twice, "c": twice})
    assert RunDirectory(tmp_path).read_settings() == {"b": twice, "c": twice}


def spoil_rows(directory, **changes):
    (path,) = directory.glob("rows-*")
    (piece,) = read_chunks(path)
    path.unlink()
    with ArrayFileWriter(path) as file:
        file.append({**piece, **{name: change(piece[name]) for name, change in changes.items()}})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"n_finals": lambda n: -n}, "n_finals is from -"),
        ({"n_finals": lambda n: n * 3}, "n_finals is from"),
        ({"n_finals": lambda n: n.astype(np.float64)}, "n_finals is float64"),
        ({"final_t": lambda t: t.astype(np.float64)}, "final_t is float64"),
        ({"final_t": lambda t: t[1:]}, "final_t is int64"),
        ({"final_t": lambda t: t + 9}, "final_t is from"),
        ({"final_t": lambda t: t - 9}, "final_t is from"),
        ({"final_t": lambda t: t * 0}, "final_t is from 0 to 0; .*ascending"),
        ({"final0": lambda values: values.astype(np.int32)}, "final0 is int32"),
        ({"final0": lambda values: values[:, None]}, "final0 is"),
        ({"final0": lambda values: values[:-1]}, "final0 is"),
    ],
)
def test_final_observations_that_no_buffer_has_kept(tmp_path, changes, match):
    kind = {"entry": "rollouts", "capacity": 8}
    buffer, world = make_buffer(**kind), World(n_steps=4, has_reset_rows=False)
    ends = np.full((4, world.n_envs), GOES_ON)
    ends[1:3] = TRUNCATES
    buffer.insert(world.play(ends)[0])
    buffer.checkpoint.begin().write(tmp_path / "state", None)
    make_buffer(**kind).checkpoint.load(tmp_path / "state")
    spoil_rows(tmp_path / "state", **changes)
    with pytest.raises(ConfigurationError, match=match):
        make_buffer(**kind).checkpoint.load(tmp_path / "state")


def test_records_that_are_none_go_with_those_that_come_after(tmp_path):
    run = RunDirectory(tmp_path)
    kept = b'{"env_steps": 3}\n'
    spoilt = (
        b"\0\0\0\n[]\n{}\n\xff\n" + b"[" * 100_000 + b'\n{"env_steps": "x"}\n{"env_steps": NaN}\n{"env_steps": 9}\n{"e'
    )
    run.metrics_path.write_bytes(spoilt[:4] + kept + spoilt[4:])
    run.cut_metrics(5)
    assert run.metrics_path.read_bytes() == kept
