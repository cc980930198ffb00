"""Local processes beyond the conformance suite: seeds, staleness, death, failure."""

import gymnasium
import numpy as np
import pytest

from rollcast.actor.acting.local_process import LocalActorPlan
from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.local_processes import LocalProcesses
from rollcast.learner.actors.sequential import SequentialDistributedActors
from rollcast.learner.actors.subproc import SubprocDistributedActors
from rollcast.services.errors import (
    ActorFailedError,
    CollectTimeoutError,
    ConfigurationError,
    InvalidSpaceError,
    LimitExceededError,
)
from rollcast.services.limits.limits import Limits
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from rollcast.services.status.status import ActorState
from tests.actor_kinds import make_actors
from tests.integration.learner_fakes import serve
from tests.processes import ROOT, is_alive, script, wait_until

pytestmark = pytest.mark.slow


def first_actions(actors: SubprocDistributedActors | SequentialDistributedActors) -> np.ndarray:
    """Actions of the first rollout of each actor, by the actor's seed (observed by CountingEnv)."""
    with actors:
        batch, *_ = actors.collect_outputs("cpu")
        columns = batch.substeps[FLAT_SUBSTEP]
        order = np.argsort(columns.observation[""][0, :, 2].numpy())
        return columns.action.numpy()[:, order].copy()


def seeded(kind: str, agent_seeds: list[int]) -> SubprocDistributedActors | SequentialDistributedActors:
    actors = (
        make_actors(kind, n_rollout_steps=32, n_actors=1, batch_size=2, queue_out_of_sync_factor=0.1)
        if (kind != "sequential")
        else make_actors(kind, n_rollout_steps=32, n_actors=1, batch_size=2)
    )
    cls = type(actors)
    options = {} if kind == "sequential" else {"start_method": kind.removeprefix("subproc-")}
    policy = make_actors("sequential").policy
    for parameter in policy.parameters():
        parameter.data.zero_()
    return cls(
        actors.env_factory,
        policy,
        32,
        1,
        2,
        actor_env_seeds=[3],
        actor_agent_seeds=agent_seeds,
        envs_per_actor=2,
        **options,
    )


@pytest.mark.parametrize("kind", ["sequential", "subproc-forkserver", "subproc-spawn", "subproc-fork"])
def test_agent_seeds_decide_the_sampled_actions(kind: str):
    same, other = (first_actions(seeded("sequential", [seed])) for seed in (5, 6))
    np.testing.assert_array_equal(same, first_actions(seeded(kind, [5])), "the same under every start method")
    assert (same != other).any()


def test_rejects_factory_that_cannot_be_sent():
    template = make_actors("sequential")
    env_factory = lambda: template.env_factory()  # noqa: E731 - the point
    with pytest.raises(ConfigurationError, match="cannot be sent to a process"):
        SubprocDistributedActors(env_factory, template.policy, 4, 1, 4, start_method="spawn").start()


def test_rejects_rollouts_above_the_limit_at_the_start():
    actors = make_actors("subproc-forkserver", n_rollout_steps=32, limits=Limits(max_rollout_bytes=1000))
    with pytest.raises(LimitExceededError, match=r"32 steps of 2 environments has \d+ bytes; expected at most 1000"):
        actors.start()


def test_rejects_observations_above_the_limit_when_the_learner_makes_its_environment():
    class LargeEnv(gymnasium.Env[np.ndarray, int]):
        observation_space = gymnasium.spaces.Box(0, 255, (20 << 20,), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

    probe_spaces(LargeEnv)
    with pytest.raises(InvalidSpaceError, match=r"the spaces have 20971520 elements.*expected at most 8388608"):
        probe_spaces(LargeEnv, travel=True)


def test_actor_that_always_dies_fails_the_run_after_max_restarts():
    with (
        make_actors(
            "subproc-forkserver", "tests.environments:DyingEnv", n_actors=1, batch_size=4, max_restarts=1
        ) as actors,
        pytest.raises(ActorFailedError, match=r"local-0 failed.*signal 9"),
    ):
        for _ in range(1000):
            actors.collect_outputs("cpu")


# The words are all tested in unit/actor/environments/test_returned_values.py.
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("environments:NanEnv", r"rollout \d+: column 0/observation holds nan at \(t, b\) = .*, of environment \d+"),
        ("wrong_environments:make_exit", r"raised SystemExit in step\(\): sys.exit\(\) was called"),
    ],
)
def test_exception_in_an_actor_reaches_the_learner(env: str, message: str, caplog: pytest.LogCaptureFixture):
    with make_actors("subproc-forkserver", f"tests.{env}", n_actors=1, on_actor_failure="fail") as actors:
        with pytest.raises(ActorFailedError, match=f"(?s)local-0.*({message})"):
            for _ in range(50):
                actors.collect_outputs("cpu")
        wait_until(lambda: bool(actors.actor_infos[0].last_error), "the error in the list of actors")
        assert actors.actor_infos[0].state in (ActorState.FAILED, ActorState.LOST)
    assert caplog.text.count("Traceback (most recent call last)") == 1


def test_environment_in_actor_process_may_start_processes():
    with make_actors("subproc-forkserver", "tests.wrong_environments:ParentEnv", on_actor_failure="fail") as actors:
        assert actors.collect_outputs("cpu")[0].n_env_steps == 16


def test_hanging_environment_is_reported_and_its_actor_ends(caplog: pytest.LogCaptureFixture):
    options = {"n_actors": 1, "on_actor_failure": "fail", "step_timeout_s": 5.0}
    with make_actors("subproc-forkserver", "tests.environments:HangingEnv", **options) as actors:
        with pytest.raises(ActorFailedError, match=r"local-0.*StepTimeout.* at most 5;"):
            for _ in range(50):
                actors.collect_outputs("cpu")
        wait_until(lambda: "a step of the environments has taken" in actors.actor_infos[0].last_error, "its error")
    assert caplog.text.count("released.wait()") == 1


def test_an_actor_awaits_its_own_learner_without_advice_to_start_one(tmp_path, capfd):
    """The socket appears only once the actor has said that it waits; a process of `spawn` writes to this one's file."""
    said, address = "", f"unix:{tmp_path / 'socket'}"
    plan = LocalActorPlan(
        address=address,
        actor_id="local-0",
        env_factory=EnvironmentFactory("CartPole-v1"),
        n_envs=1,
        network="auto",
        log_level="INFO",
    )

    def waits() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "the learner that started this actor does not serve yet" in said

    actors = LocalProcesses([plan], start_method="spawn", max_restarts=0, on_exit=lambda *_: None)
    actors.start()
    try:
        wait_until(waits, "the actor to wait")
        with serve(address) as learner:
            wait_until(lambda: learner.sink.offers, "the actor to join")
    finally:
        actors.stop(0.0)
    assert "start one with" not in said + capfd.readouterr().err


def test_missing_actor_ends_collect_at_its_timeout():
    with (
        make_actors("remote", n_actors=0, collect_timeout_s=1.0) as actors,
        pytest.raises(CollectTimeoutError, match="no rollout for 1 s: the learner waits for an actor to join at"),
    ):
        actors.collect_outputs("cpu")


# Their actors import them again.
LEARNER_OF_PLAYING_ACTORS = """
import multiprocessing, os
if __name__ == "__main__":
    from tests.actor_kinds import make_actors
    actors = make_actors("subproc-forkserver", seed=1)
    actors.start()
    actors.collect_outputs("cpu")
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    os.kill(os.getpid(), 9)
"""
LEARNER_OF_HANGING_ACTORS = """
import functools, multiprocessing, os, sys, threading
from pathlib import Path
def hang(folder):
    (folder / f"hangs-{os.getpid()}").touch()
    threading.Event().wait()
if __name__ == "__main__":
    from rollcast.actor.acting.local_process import LocalActorPlan
    from rollcast.learner.actors.local_processes import LocalProcesses
    from tests.processes import wait_until
    folder = Path(sys.argv[1])
    (folder / "socket").mkdir()
    work = {"env_factory": functools.partial(hang, folder), "n_envs": 1, "network": "auto"}
    plans = [LocalActorPlan(address=f"unix:{folder}/socket/learner", actor_id=name, **work) for name in "ab"]
    LocalProcesses(plans, start_method="spawn", max_restarts=0, on_exit=print).start()
    wait_until(lambda: len(list(folder.glob("hangs-*"))) == 2, "both to hang")
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("learner", [LEARNER_OF_PLAYING_ACTORS, LEARNER_OF_HANGING_ACTORS], ids=["play", "hang"])
def test_actors_end_when_the_learner_is_killed(learner: str, tmp_path):
    program = tmp_path / "learner_that_dies.py"
    program.write_text(learner)
    done = script(program, tmp_path, cwd=ROOT)
    assert done.returncode == -9, done.stderr
    pids = done.stdout.split()
    assert len(pids) == 2
    wait_until(lambda: not any(is_alive(int(pid)) for pid in pids), f"actors {pids} to be gone")
    assert not (tmp_path / "socket").exists(), "the first removes it, and the second finds nothing"
