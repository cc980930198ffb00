"""Messages of clients with environments, as a test wants them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rollcast.services.spaces.codec import environment_spaces_to_proto
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces
from rollcast.v1 import environment_pb2

RUNNING, TERMINATED, INTERRUPTED, REWARDED = (
    environment_pb2.AGENT_STATE_RUNNING,
    environment_pb2.AGENT_STATE_TERMINATED,
    environment_pb2.AGENT_STATE_INTERRUPTED,
    environment_pb2.AGENT_STATE_REWARDED,
)

FLAT: EnvironmentSpaces = {
    "0": SubstepSpaces(observation=spaces.Box(-1.0, 1.0, (2,), np.float32), action=spaces.Discrete(3))
}
# Two agents that walk, and one that shoots; its observation has two leaves.
TEAM: EnvironmentSpaces = {
    "walker": SubstepSpaces(
        observation=spaces.Box(-1.0, 1.0, (2,), np.float32), action=spaces.Box(-1.0, 1.0, (3,), np.float32), n_agents=2
    ),
    "gunner": SubstepSpaces(
        observation=spaces.Dict([("view", spaces.Box(0, 255, (2, 2), np.uint8)), ("ammo", spaces.Discrete(5))]),
        action=spaces.Discrete(2),
    ),
}

SEEN = (np.array([0.5, -0.5], np.float32).tobytes(),)
GUNNER_SEES = (np.arange(4, dtype=np.uint8).tobytes(), np.int64(3).tobytes())


def hello(
    client: str = "game", *, offered: EnvironmentSpaces = FLAT, n_envs: int = 1, **fields: Any
) -> environment_pb2.PlayRequest:
    """Returns a first message."""
    given = {"protocol": 1, "client": client, "n_envs": n_envs, "substeps": environment_spaces_to_proto(offered)}
    return environment_pb2.PlayRequest(hello=environment_pb2.Hello(**given | fields))


def agent(
    state: int = RUNNING,
    observation: Sequence[bytes] = SEEN,
    reward: float = 0.0,
    *,
    substep: int = 0,
    number: int = 0,
    **fields: Any,
) -> environment_pb2.AgentTurn:
    """Returns what happened to one agent."""
    return environment_pb2.AgentTurn(
        substep=substep,
        agent=number,
        state=state,  # type: ignore[arg-type]  # any number, also one that is none
        observation=() if state == REWARDED and observation is SEEN else observation,
        reward=reward,
        **fields,
    )


def turn(*agents: environment_pb2.AgentTurn, environment: int = 0, **values: float) -> environment_pb2.EnvironmentTurn:
    """Returns a turn of one environment; by default its one agent sees something."""
    return environment_pb2.EnvironmentTurn(
        environment=environment,
        agents=agents or (agent(),),
        episode_values=[environment_pb2.EpisodeValue(name=name, value=value) for name, value in values.items()],
    )


def turns(*of_environments: environment_pb2.EnvironmentTurn) -> environment_pb2.PlayRequest:
    """Returns a message with turns."""
    return environment_pb2.PlayRequest(turns=environment_pb2.Turns(turns=of_environments))
