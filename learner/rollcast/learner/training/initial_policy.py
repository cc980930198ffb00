"""Starts a new run with the policy of another run."""

from pathlib import Path

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.errors import ConfigurationError, ProtocolMismatchError
from rollcast.services.policies.policies import PolicySpec, SavedPolicy
from rollcast.services.policies.saved import read_saved_policy
from rollcast.services.spaces.spaces import EnvironmentSpaces, described_spaces

_SPEC_OPTIONS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("network", "hidden_sizes", "activation", "recurrence", "recurrent_size"),
        *("normalize_observations", "observation_clip", "frame_stack"),
    )
}


def begin_with_policy(algorithm: Algorithm, source: Path) -> str:
    """Loads the weights of another run's policy into an algorithm, and the run's critics, if any.

    Optimisers, counters and schedules begin from zero.

    Args:
        algorithm: An algorithm that has made no update.
        source: A run's folder, for its last policy; or the file of a policy, which has no critics.

    Returns:
        A line for the terminal that names the loaded policy.

    Raises:
        ConfigurationError: The policy does not exist, or its spaces or its network differ from the algorithm's. The
            message names the differing leaf or option.
    """
    saved, checkpoint = _read(source)
    _check_spaces(saved.spaces, algorithm.policy.spaces, source)
    _check_spec(saved.spec, algorithm.policy.spec, source)
    try:
        has_critics = algorithm.begin_with(saved.state, checkpoint)
    except ProtocolMismatchError as error:
        raise ConfigurationError(f"--initial-policy: {source}: {error}") from error
    critics = "with its critics" if has_critics else "critics, if there are any, start from scratch"
    return (
        f"beginning with the policy of {source}, version {saved.policy_version} after {saved.env_steps:,} env steps; "
        f"{critics}; optimisers and schedules start from scratch"
    )


def _read(source: Path) -> tuple[SavedPolicy, Path | None]:
    """Reads the policy, and finds the checkpoint with its critics; None if there is no checkpoint."""
    if source.is_dir():
        run = RunDirectory.open(source)
        newest = CheckpointStore(run.checkpoints_path, keep=1).newest()
        return run.read_policy("last"), None if newest is None else newest[0]
    if not source.is_file():
        raise ConfigurationError(
            f"--initial-policy: {source} does not exist; expected a run's folder, or a policy file of a run; correct "
            "the "
            "path"
        )
    return read_saved_policy(source), None


def _check_spaces(saved: EnvironmentSpaces | None, own: EnvironmentSpaces, source: Path) -> None:
    """Compares spaces leaf by leaf. An old policy file has no spaces; loading its arrays shows whether it fits."""
    if saved is None:
        return
    expected, found = described_spaces(own), described_spaces(saved)
    for path in [*expected, *found]:
        mine, theirs = expected.get(path, "nothing"), found.get(path, "nothing")
        if mine != theirs:
            raise ConfigurationError(
                f"--initial-policy: the spaces differ at {path}: this run has {mine}, the policy of {source} {theirs}; "
                "expected the same; begin with a policy that was trained on the same spaces"
            )
    if list(expected) != list(found):
        raise ConfigurationError(
            f"--initial-policy: the policy of {source} has the leaves {list(found)}; expected them in the order "
            f"{list(expected)}, in which the network sees them; begin with a policy of this order"
        )


def _check_spec(saved: PolicySpec, own: PolicySpec, source: Path) -> None:
    for name, option in _SPEC_OPTIONS.items():
        if getattr(saved, name) != getattr(own, name):
            raise ConfigurationError(
                f"--initial-policy: the policy of {source} has {name} {getattr(saved, name)}; expected "
                f"{getattr(own, name)}, as in this run; set {option} to the policy's value"
            )
    if saved.head != own.head:
        raise ConfigurationError(
            f"--initial-policy: the outputs of the policy of {source} are {saved.head!r}; expected {own.head!r}, which "
            "this algorithm learns; begin with the policy of a run of such an algorithm"
        )
