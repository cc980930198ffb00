"""Actors whose Dict observations have their members in another order than the learner's: names decide."""

import contextlib
import threading
from collections.abc import Iterator

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from rollcast.actor.acting.loop import act_until_stopped, make_offer
from rollcast.actor.connection.learner import LearnerConnection
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.supply import EnvironmentSupply
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from tests.processes import DEADLINE_S

# Of one shape, so that nothing but their names tells them apart.
NEAR, FAR = spaces.Box(0.0, 1.0, (2,), np.float32), spaces.Box(-100.0, 100.0, (2,), np.float32)
LEARNERS, ACTORS = [("near", NEAR), ("far", FAR)], [("far", FAR), ("near", NEAR)]
T, N_ENVS = 3, 2


class FarAndNear(gymnasium.Env):
    """Shows small numbers near and large ones far away; its Dict has the far ones first."""

    observation_space = spaces.Dict(ACTORS)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        return self._seen(), 1.0, False, False, {}

    def _seen(self):
        near = self.np_random.random(2).astype(np.float32)
        return {"far": 50.0 + near, "near": near}


@contextlib.contextmanager
def listening() -> Iterator[RemoteDistributedActors]:
    """Collects from whoever dials in, as a learner whose Dict has the near ones first."""
    torch.manual_seed(0)
    observation = spaces.Dict(LEARNERS)
    policy = TorchPolicy(
        {FLAT_SUBSTEP: SubstepSpaces(observation=observation, action=spaces.Discrete(2))}, PolicySpec(hidden_sizes=(8,))
    )
    actors = RemoteDistributedActors(
        policy,
        T,
        N_ENVS,
        envs_per_actor=N_ENVS,
        serving=ServingOptions(addresses=("127.0.0.1:0",), collect_timeout_s=DEADLINE_S),
    )
    with actors:
        yield actors


def test_network_gets_leaves_in_the_order_of_the_learner():
    """The actor's log-probabilities equal those of the learner's own network for the same observations."""
    stop = threading.Event()

    def play(actors: RemoteDistributedActors) -> None:
        with EnvironmentSupply(FarAndNear, N_ENVS) as environments:
            offer = make_offer(environments.spaces, environments.n_envs, actor_id="a", network="auto")
            with LearnerConnection(actors.addresses[0], offer, stop=stop) as connection:
                act_until_stopped(
                    environments, connection, network="auto", stop=stop, on_hang=lambda failure: stop.set()
                )

    with listening() as actors:
        playing = threading.Thread(target=play, args=(actors,))
        playing.start()
        try:
            batch, *_ = actors.collect_outputs("cpu")
        finally:
            stop.set()
            playing.join(DEADLINE_S)
    columns = batch.substeps[FLAT_SUBSTEP]
    assert list(columns.observation) == ["near", "far"]
    assert columns.observation["near"].max() <= 1.0 < 50.0 <= columns.observation["far"].min()
    steps = {path: leaf.flatten(0, 1) for path, leaf in columns.observation.items()}
    with torch.no_grad():
        log_prob = actors.policy(steps).log_softmax(-1).gather(-1, columns.action.flatten()[:, None])
    np.testing.assert_allclose(log_prob.flatten(), columns.log_prob.flatten(), atol=1e-5)
