"""A learner of an environment with two substeps, of which it knows no more than its first actor says."""

import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rollcast.actor.connection.learner import LearnerConnection
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.actors.with_buffer import BaseDistributedWorkersWithBuffer
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.serving.first_actor import spaces_of_first_actor
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.training.run_parts import actors_batch_size
from rollcast.learner.training.summary import TrainingSummary
from rollcast.learner.training.training_run import training_run
from rollcast.services.client.client import LearnerClient
from rollcast.services.client.replay import ReplayClient
from rollcast.services.errors import ConfigurationError, InvalidInputError, SpacesMismatchError
from rollcast.services.joining.join import JoinOffer
from rollcast.services.limits.limits import Limits
from rollcast.services.policies.policies import PolicySpec
from tests.processes import DEADLINE_S, free_port, wait_until
from tests.two_substeps import SPACES, TwoSubsteps

T, N_ENVS = 8, 4


class Learner(threading.Thread):
    """`rollcast learner --spaces-from first_actor`, in this process."""

    def __init__(self, settings: ServingSettings) -> None:
        super().__init__(name="learner")
        self.settings = settings
        self.said: list[str] = []
        self.summary: TrainingSummary | None = None

    def run(self) -> None:
        settings = self.settings
        spaces = spaces_of_first_actor(settings.address, limits=Limits(max_actors=4), timeout_s=DEADLINE_S)
        assert dict(spaces) == dict(SPACES)

        def make_actors(policy: TorchPolicy, serving: ServingOptions) -> RemoteDistributedActors:
            return RemoteDistributedActors(
                policy,
                settings.n_rollout_steps,
                actors_batch_size(settings, policy.spaces, settings.max_actors),
                serving=dataclasses.replace(serving, collect_timeout_s=DEADLINE_S),
            )

        with training_run(settings, spaces, make_actors, n_local_actors=0, announce=self.said.append) as run:
            self.summary = run.train()


def offer(**changes: object) -> JoinOffer:
    fields = {"actor_id": "a", "process_nonce": 1, "n_envs": N_ENVS, "network": "auto", "software_version": "test"}
    return JoinOffer(**({"spaces": SPACES} | fields | changes))


def play(address: str, until: Callable[[], bool]) -> int:
    """Plays as an actor does, a rollout of each substep in turn; returns how many steps the agents made."""
    n_steps = 0
    with LearnerConnection(address, offer(), connect_timeout_s=DEADLINE_S) as connection:
        agreement = connection.join()
        policy = make_policy(SPACES, agreement.policy, seed=agreement.agent_seed, slot=agreement.slot)
        world = TwoSubsteps(agreement.n_rollout_steps, N_ENVS)
        sequence = 1
        while not connection.ended and not until():
            if not connection.wait_for_credit(sequence, 0.2):
                continue
            version, state, _ = connection.take_policy()
            if version != policy.version:
                policy.load(version, state)
            rollout = world.play(policy)
            assert rollout.sequence == sequence
            connection.send(rollout)
            n_steps += rollout.n_env_steps
            sequence += 1
        assert connection.drain(DEADLINE_S) == 0 or connection.ended
    return n_steps


def check_acting(client: LearnerClient) -> None:
    for key, substep in SPACES.items():
        shown = np.eye(int(substep.action.n), dtype=np.float32)
        chosen, version = client.act({"": shown}, substep_key=key)
        assert chosen.shape == (len(shown),)
        assert version > 0
    with pytest.raises(InvalidInputError, match=r"substep_key is 'x'; expected one of \['scout', 'base'\]"):
        client.act({"": np.zeros((1, 2), np.float32)}, substep_key="x")


def check_joining(client: LearnerClient) -> None:
    with pytest.raises(SpacesMismatchError, match="the substeps"):
        client.join(offer(actor_id="b", spaces={"base": SPACES["base"]}))
    (info,) = client.actors()
    assert info.n_envs == N_ENVS
    assert info.env_steps > 0


def check_replay(address: str) -> None:
    with ReplayClient(address) as nobodys:
        for call in (nobodys.info, nobodys.reset, lambda: nobodys.update_priorities([0], [1.0])):
            with pytest.raises(InvalidInputError, match=r"substep_key is ''; expected one of \['scout', 'base'\]"):
                call()
        with pytest.raises(InvalidInputError, match="name one"):
            next(nobodys.samples(4))
    for key, substep in SPACES.items():
        with ReplayClient(address, substep_key=key) as replay:
            info = replay.info()
            assert info.spaces == {key: substep}
            assert info.size >= 64
            (batch,) = replay.samples(4, 1)
            assert batch.substeps[key].observation[""].shape == (1, 4, *substep.observation.shape)
            assert replay.update_priorities(batch.keys, np.ones(4)) < 4
    with ReplayClient(address, substep_key="scout") as scouts, ReplayClient(address, substep_key="base") as bases:
        # Rollouts of the actor may be inserted later.
        wait_until(lambda: scouts.reset() or scouts.info().size == 0, "an empty buffer")
        assert bases.info().size > 0


def test_learner_trains_with_a_remote_actor(tmp_path: Path):
    settings = ServingSettings(
        algorithm="dqn",
        address=f"127.0.0.1:{free_port()}",
        run_dir=tmp_path / "run",
        n_rollout_steps=T,
        hidden_sizes=(16,),
        torch_threads=1,
        log_interval_s=0.1,
        batch_size=32,
        replay={"capacity": 5000, "min_size": 64, "samples_per_insert": 8.0},
    )
    learner = Learner(settings)
    learner.start()
    with LearnerClient(settings.address) as client:
        try:
            n_steps = play(settings.address, lambda: not learner.is_alive() or client.status().updates >= 60)
            status = client.status()
            assert status.updates >= 60
            assert status.rejected_rollouts == status.duplicate_rollouts == 0
            assert 0 < status.env_steps <= n_steps, "what counts are the steps of agents"
            assert status.replay.capacity == 10_000
            assert status.replay.size >= 128
            check_acting(client)
            check_joining(client)
            check_replay(settings.address)
            (line,) = learner.said
            assert line.startswith("replay buffers: 'scout': 5,000 transitions")
            client.save_checkpoint()
        finally:
            client.stop()
            learner.join(DEADLINE_S)
    assert learner.summary is not None
    assert learner.summary.updates >= 60
    records = [json.loads(line) for line in (settings.run_dir / "metrics.jsonl").read_text().splitlines()]
    losses = {name for record in records for name in record if name.startswith("dqn/")}
    assert {name.split("/")[1] for name in losses} == set(SPACES)
    checkpoint = CheckpointStore(RunDirectory(settings.run_dir).checkpoints_path, keep=1).all()[-1]
    assert sorted(path.name for path in checkpoint.glob("substep*")) == ["substep0", "substep1"]


def test_workers_with_buffer_reject_several_substeps():
    with pytest.raises(ConfigurationError, match=r"has the substeps \['scout', 'base'\]; expected one"):
        BaseDistributedWorkersWithBuffer(
            None, TorchPolicy(SPACES, PolicySpec()), T, 1, 4, 1, None, 100, 10, True, None, 0
        )
