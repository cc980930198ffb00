"""`rollcast record`: records rollouts in a file."""

import contextlib
import dataclasses
import json
import shlex
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import IO, Any

from gymnasium.spaces import Discrete, Space

from rollcast.actor.environments.device import device_of
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_saved_policy
from rollcast.actor.policies.random_acting import RandomPolicy
from rollcast.actor.policies.squashed_gaussian import finite_bounds
from rollcast.actor.seeds import derive_seed
from rollcast.actor.threads import limit_threads
from rollcast.actor.vector.make import WORKER_INFO_KEYS, environment_spaces, make_vector_env
from rollcast.actor.workers.make import make_worker
from rollcast.learner.commands.printing import print_line
from rollcast.learner.commands.signals import stop_on_signals
from rollcast.learner.playing.saved_play import played_environment
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.settings.record import RANDOM, RecordSettings
from rollcast.services.errors import InvalidSpaceError, RollcastError
from rollcast.services.policies.policies import PolicySpec, SavedPolicy
from rollcast.services.process.installation import typed_again
from rollcast.services.rollouts.recording import RolloutWriter
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.rollouts.rollouts import Rollout
from rollcast.services.settings.new_files import check_new_file, write_new_file
from rollcast.services.spaces.spaces import EnvironmentSpaces, describe_space
from rollcast.services.status.numbers import decimal

# Streams of seeds. Actors of a run use 0 and 1, so a recording with the same seed plays other episodes.
_ENVIRONMENT_SEEDS, _ACTION_SEEDS = 2, 3


@dataclasses.dataclass(slots=True)
class RecordingSummary:
    """The summary of a recording, for `--summary-json`."""

    rollouts: int = 0
    env_steps: int = 0
    episodes: int = 0
    mean_return: float | None = None
    n_bytes: int = 0
    path: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Player:
    """The policy and the environment of a recording."""

    env_factory: EnvironmentFactory
    name: str
    saved: SavedPolicy | None

    def make_policy(self, spaces: EnvironmentSpaces, seed: int, device: str | None) -> Policy:
        if self.saved is None:
            policy: Policy = RandomPolicy(spaces, seed=seed)
            policy.load(0, {})
            return policy
        network = self.saved.spec.network
        return make_saved_policy(self.saved, spaces, seed=seed, allowed_network=network, device=device)


def record(settings: RecordSettings, output: IO[str]) -> int:
    """Plays, writes the file, prints the summary, and returns the exit code: 0, or 130 after Ctrl-C.

    Ctrl-C and SIGTERM end the recording after the current step. The file keeps complete rollouts even after an error.

    Raises:
        ConfigurationError: If the file exists or cannot be made, or the policy cannot be read or does not fit the
            environment.
        RollcastError: If an environment failed, a rollout is not valid, or the disk is full. Earlier rollouts are kept.
    """
    check_new_file(settings.summary_json, "--summary-json", is_renamed=False)
    player = _player(settings)
    limit_threads(1)
    vector_env = make_vector_env(player.env_factory, settings.envs_per_actor, info_keys=WORKER_INFO_KEYS)
    with contextlib.closing(vector_env), stop_on_signals(lambda: None) as received:
        spaces = environment_spaces(vector_env)
        worker = make_worker(
            vector_env,
            player.make_policy(spaces, derive_seed(settings.seed, _ACTION_SEEDS), device_of(vector_env)),
            settings.n_rollout_steps,
            actor_id="record",
            incarnation=1,
            env_seed=derive_seed(settings.seed, _ENVIRONMENT_SEEDS),
            deterministic=settings.deterministic,
        )
        spec = PolicySpec() if player.saved is None else player.saved.spec
        header = RecordingHeader(
            spaces=spaces,
            n_rollout_steps=settings.n_rollout_steps,
            n_envs=settings.envs_per_actor,
            env_id=player.env_factory.env_id,
            played_by=player.name,
            state_size=spec.state_size,
            frame_stack=spec.frame_stack,
        )
        summary, failure = RecordingSummary(), None
        with RolloutWriter(settings.output, header, overwrite=settings.overwrite) as writer:
            try:
                _play(settings, lambda: worker.collect(lambda: bool(received)), writer, summary)
            except RollcastError as error:
                failure = error
    _report(settings, output, summary, player, spaces, "" if failure is None else type(failure).__name__, received)
    if failure is not None:
        raise failure
    return 130 if signal.SIGINT in received else 0


def _player(settings: RecordSettings) -> _Player:
    """Returns the player; reads the run, if given."""
    saved, name = None, RANDOM
    trained: Mapping[str, Any] = {}
    if settings.policy != RANDOM:
        run = RunDirectory.open(Path(settings.policy))
        trained = run.read_settings()
        saved = run.read_policy(settings.saved_policy)
        name = f"{settings.policy}, {settings.saved_policy}, version {saved.policy_version}"
    return _Player(env_factory=played_environment(settings, trained), name=name, saved=saved)


def _play(
    settings: RecordSettings,
    collect: Callable[[], Rollout | None],
    writer: RolloutWriter,
    summary: RecordingSummary,
) -> None:
    """Plays until enough is recorded, or until a signal."""
    returns: list[float] = []
    while not _is_enough(settings, summary):
        rollout = collect()
        if rollout is None:
            return
        writer.append(rollout)
        summary.path = str(settings.output)
        returns += (episode.episode_return for episode in rollout.episodes)
        summary.rollouts, summary.n_bytes = writer.n_rollouts, writer.n_bytes
        summary.env_steps += rollout.n_env_steps
        summary.episodes, summary.mean_return = len(returns), fmean(returns) if returns else None


def _is_enough(settings: RecordSettings, summary: RecordingSummary) -> bool:
    if settings.rollouts is not None:
        return summary.rollouts >= settings.rollouts
    return settings.steps is not None and summary.env_steps >= settings.steps


def _report(
    settings: RecordSettings,
    output: IO[str],
    summary: RecordingSummary,
    player: _Player,
    spaces: EnvironmentSpaces,
    failure: str,
    received: list[int],
) -> None:
    """Prints and writes the summary, and the reason if recording ended early."""
    cause = failure or (signal.Signals(received[0]).name if received else "")
    if cause and not _is_enough(settings, summary):
        wanted = f"{settings.steps:,} env steps" if settings.rollouts is None else f"{settings.rollouts:,} rollouts"
        kept = "complete rollouts are kept" if summary.rollouts else "no rollout was complete, none is kept"
        print_line(output, f"{'stopped':<15}by {cause}, before {wanted}: {kept}")
    if summary.rollouts:
        mean_return = "no episode has ended" if summary.mean_return is None else decimal(summary.mean_return)
        for name, value in (
            ("played by", player.name),
            ("rollouts", f"{summary.rollouts:,} of {settings.n_rollout_steps} steps, {settings.envs_per_actor} wide"),
            ("env steps", f"{summary.env_steps:,}"),
            ("episodes", f"{summary.episodes:,}"),
            ("mean return", mean_return),
            ("bytes", f"{summary.n_bytes:,}"),
            ("file", summary.path),
            ("learn from it", _training(settings, player.env_factory, spaces)),
        ):
            print_line(output, f"{name:<15}{value}")
    if settings.summary_json is not None:
        text = json.dumps(dataclasses.asdict(summary), indent=2)
        write_new_file(settings.summary_json, "--summary-json", text + "\n")


def _training(settings: RecordSettings, env_factory: EnvironmentFactory, spaces: EnvironmentSpaces) -> str:
    """Returns the command to train with the file, or that only the user's own algorithm supports the actions."""
    actions = [substep.action for substep in spaces.values()]
    if not (all(isinstance(action, Discrete) for action in actions) or all(map(_has_finite_bounds, actions))):
        described = ", ".join(dict.fromkeys(map(describe_space, actions)))
        return f"with your own algorithm: sac, dqn and r2d2 do not support the action space {described}"
    words = ["train", "--algorithm", "sac", "--env-id", env_factory.env_id]
    if env_factory.env_kwargs:
        words += ["--env-kwargs", json.dumps(dict(env_factory.env_kwargs))]
    if env_factory.agent_policies != "shared":
        words += ["--agent-policies", env_factory.agent_policies]
    if env_factory.atari:
        words.append("--atari")
    return f"{typed_again(env_factory.env_id)} {shlex.join([*words, '--initial-data', str(settings.output)])}"


def _has_finite_bounds(action: Space[Any]) -> bool:
    try:
        finite_bounds(action)
    except InvalidSpaceError:
        return False
    return True
