"""Runs one case: trains, resumes, and checks what was computed with what shape."""

import contextlib
import io
import json
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load_file
from torch import Tensor

from rollcast.learner.batch import Batch
from rollcast.learner.training.run_parts import ALGORITHMS
from rollcast.services.spaces.spaces import space_leaves
from rollcast.tools.cli import main
from tests.matrix import axes
from tests.matrix.axes import Case
from tests.matrix.rules import reasons

_BAD_SETTINGS: Final = 2
_LIMITED: Final = "replay.samples_per_insert of your own"


class CaseFailedError(Exception):
    """A case neither trained nor was refused as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a case.

    Attributes:
        refusal: The line with which it was refused; "": it trained.
    """

    refusal: str
    seconds: float


def command(case: Case) -> str:
    """Returns the command line that a user types for the first part of a case."""
    return shlex.join(["rollcast", "train", *axes.arguments(case), "--total-steps", str(axes.total_steps(case))])


def judge(case: Case, folder: Path) -> Outcome:
    """Runs a case, and compares what became of it with what the rules say; see `run`.

    Raises:
        CaseFailedError: As of `run`, or it was refused for no reason, or for another, or should have been refused.
    """
    outcome, expected = run(case, folder), reasons(case)
    said = " or ".join(repr(rule.says) for rule in expected)
    if outcome.refusal:
        _require(bool(expected), f"it was refused, and there is no such rule: {outcome.refusal}")
        is_told = any(rule.says in outcome.refusal for rule in expected)
        _require(is_told, f"it was refused, but not for {said}: {outcome.refusal}")
    else:
        _require(not expected, f"it was not refused for {said}")
    return outcome


def run(case: Case, folder: Path) -> Outcome:
    """Trains, and resumes.

    Args:
        folder: A new folder for the run.

    Raises:
        CaseFailedError: What is wrong.
    """
    began = time.monotonic()
    run_dir, summary = folder / "run", folder / "summary.json"
    steps = axes.total_steps(case)
    given = ["train", *axes.arguments(case), "--run-dir", str(run_dir), "--summary-json", str(summary)]
    code, said = _run([*given, "--total-steps", str(steps)], case)
    if code and not run_dir.exists():
        return Outcome(refusal=_refusal(said), seconds=time.monotonic() - began)
    _check_ended(code, said, "the run")
    # A wide limiter, or none, lets actors play to the end of either run before the learner has begun.
    is_wide = case.get("replay.error_buffer") is not None or case.get(_LIMITED) is False
    n_updates = _n_updates(summary)
    _require(n_updates >= 2 or is_wide, f"the run made {n_updates} updates in {steps} steps; expected 2 at least")
    before = _shapes(run_dir)
    code, said = _run(["train", "--resume", str(run_dir), "--total-steps", str(2 * steps)], case)
    if case["deterministic"] and case["actor_kind"] == "subprocess":
        expected = "--resume with --deterministic, and actors in other processes"
        _require(code == _BAD_SETTINGS and expected in said, f"the resumed run ended with {code}: {said}")
        return Outcome(refusal="", seconds=time.monotonic() - began)
    _check_ended(code, said, "the resumed run")
    more = _n_updates(summary) - n_updates
    _require(more >= 2 or is_wide, f"the resumed run made {more} updates in {steps} steps; expected 2 at least")
    _require(n_updates + more > 0, "neither run made an update")
    after = _shapes(run_dir)
    changed = sorted(before.items() - after.items())
    # Updates of all substeps count together: one may have had none before, and its optimiser no state.
    is_first = "optimizer.state" if axes.n_substeps(case) > 1 else "nothing"
    new = sorted(name for name in after.keys() - before.keys() if is_first not in name)
    _require(not changed and not new, f"arrays changed their shapes, or are new: {changed}, {new}")
    return Outcome(refusal="", seconds=time.monotonic() - began)


def _run(words: Sequence[str], case: Case) -> tuple[int, str]:
    """Runs a command in this process; returns its exit code, and what it wrote to stderr."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        with _checked_batches(case):
            code = main(words)
    return code, said.getvalue()


def _refusal(said: str) -> str:
    lines = said.splitlines()
    is_ours = len(lines) == 1 and lines[0].startswith("rollcast train: ")
    _require(is_ours, f"it was refused in {len(lines)} lines; expected one of rollcast's: {said}")
    return lines[0]


def _check_ended(code: int, said: str, what: str) -> None:
    _require(code == 0, f"{what} ended with {code}: {said}")
    _require("Traceback" not in said, f"{what} wrote a traceback: {said}")


def _n_updates(summary: Path) -> int:
    return int(json.loads(summary.read_text(encoding="utf-8"))["updates"])


def _shapes(run_dir: Path) -> dict[str, tuple[Any, ...]]:
    """Returns dtype and shape of every array of the newest checkpoint, but for the replay buffer's, which grow.

    Raises:
        CaseFailedError: An array has numbers that are not finite.
    """
    newest = sorted((run_dir / "checkpoints").iterdir())[-1]
    files = {path.relative_to(newest).as_posix(): path for path in newest.rglob("*.safetensors")}
    files["policy"] = run_dir / "policy_last.safetensors"
    shapes = {}
    for name, path in files.items():
        if name.startswith("replay"):
            continue
        for key, array in load_file(path).items():
            _require(bool(np.isfinite(array).all()), f"{key} in {path.name} is not finite")
            shapes[f"{name}: {key}"] = (str(array.dtype), array.shape)
    return shapes


@contextlib.contextmanager
def _checked_batches(case: Case) -> Iterator[None]:
    """Lets the built-in algorithms check each of their batches."""
    before = dict(ALGORITHMS)
    for name, kind in before.items():

        def update(self: Any, batch: Batch, *, progress: float, kind: type[Any] = kind) -> Any:
            (key,) = batch.substeps
            check_batch(batch, case, self.policy.spaces[key], self.policy.spec)
            return kind.update(self, batch, progress=progress)

        ALGORITHMS[name] = type(kind.__name__, (kind,), {"update": update, "__module__": kind.__module__})
    try:
        yield
    finally:
        ALGORITHMS.update(before)


def check_batch(batch: Batch, case: Case, spaces: Any, spec: Any) -> None:
    """Compares the shapes and dtypes of a batch with what `Batch` and `BatchColumns` say.

    Raises:
        CaseFailedError: One is another.
    """
    (columns,) = batch.substeps.values()
    n, stack, state_size = axes.batch_size(case), int(case["frame_stack"] or 1), spec.state_size
    from_buffer = axes.replays(case)
    is_transition = from_buffer and case["replay.entry"] == "transitions"
    rows = 1 if is_transition else axes.N_STEPS
    leaves = {path: (leaf.dtype, leaf.shape) for path, leaf in space_leaves(spaces.observation).items()}

    def stacked(path: str) -> tuple[int, ...]:
        return (stack,) if is_transition and stack > 1 and path != "action_mask" else ()

    def expect(name: str, tensor: Tensor | np.ndarray, dtype: Any, shape: tuple[int, ...]) -> None:
        found = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        _require(found == (str(dtype), shape), f"{name} of the batch is {found}; expected {dtype} {shape}")

    def expect_leaves(name: str, found: Any, *lead: int) -> None:
        _require(found.keys() == leaves.keys(), f"{name} has {list(found)}; expected {list(leaves)}")
        for path, (dtype, shape) in leaves.items():
            expect(f"{name} {path!r}", found[path], dtype, (*lead, *stacked(path), *shape))

    n_finals = len(batch.final_index)
    expect_leaves("observation", columns.observation, rows, n)
    expect_leaves("last_observation", columns.last_observation, n)
    expect_leaves("final_observation", columns.final_observation, n_finals)
    expect("action", columns.action, spaces.action.dtype, (rows, n, *spaces.action.shape))
    expect("log_prob", columns.log_prob, "float32", (rows, n))
    for name in ("reward", "terminated", "truncated", "valid"):
        expect(name, getattr(batch, name), "float32" if name == "reward" else "bool", (rows, n))
    expect("final_index", batch.final_index, "int64", (n_finals, 2))
    expect("policy_version", batch.policy_version, "int64", (n,))
    if state_size and not is_transition:
        _require(columns.initial_state is not None, "the batch has no initial_state")
        expect("initial_state", columns.initial_state, "float32", (n, state_size))
    else:
        _require(columns.initial_state is None, "the batch has an initial_state")
    if stack > 1 and not is_transition:
        _require(columns.previous_observation is not None, "the batch has no previous_observation")
        expect_leaves("previous_observation", columns.previous_observation, n, stack - 1)
    else:
        _require(columns.previous_observation is None, "the batch has a previous_observation")
    _require((batch.keys is None) is not from_buffer, f"the keys of the batch are {batch.keys}")
    if from_buffer:
        for name in ("weights", "discount"):
            expect(name, getattr(batch, name), "float32", (n,))
    _require(batch.burn_in == int(case.get("replay.burn_in") or 0), f"burn_in of the batch is {batch.burn_in}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CaseFailedError(otherwise)
