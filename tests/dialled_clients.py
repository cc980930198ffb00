"""Clients with environments, as a sink sees them, without a server: a test says what they do."""

from collections.abc import Sequence

import numpy as np

from rollcast.services.environments.dialled import (
    AgentState,
    AgentTurn,
    DialledTurn,
    EnvironmentActions,
    EnvironmentSink,
    Farewell,
    Hello,
)
from rollcast.services.errors import RollcastError
from rollcast.services.spaces.spaces import EnvironmentSpaces, Observation
from tests.play_messages import FLAT

SEEN: Observation = {"": np.array([0.5, -0.5], np.float32)}


class FakeClient:
    """A client that notes what it is told.

    Attributes:
        seeds: The seeds of its welcome; None: it is not welcome yet.
        answers: The actions that it has got.
        end_reason: Why it was ended; None: it was not.
    """

    def __init__(
        self, sink: EnvironmentSink, name: str = "game", *, n_envs: int = 1, spaces: EnvironmentSpaces = FLAT
    ) -> None:
        self.name = name
        self.seeds: list[int] | None = None
        self.answers: list[EnvironmentActions] = []
        self.versions: list[int] = []
        self.end_reason: RollcastError | Farewell | None = None
        self._sink = sink
        sink.open(Hello(client=name, spaces=spaces, n_envs=n_envs), self)

    def welcome(self, seeds: Sequence[int]) -> None:
        """Notes the seeds."""
        self.seeds = list(seeds)

    def answer(self, actions: Sequence[EnvironmentActions], *, policy_version: int, progress: float) -> None:
        """Notes the actions."""
        del progress
        self.answers += actions
        self.versions += [policy_version] * len(actions)

    def end(self, reason: RollcastError | Farewell) -> None:
        """Notes the reason, and leaves, as the server has it leave."""
        self.end_reason = self.end_reason or reason
        self._sink.leave(self, "ended")

    def leave(self) -> None:
        """Breaks off."""
        self._sink.leave(self, "its connection was lost")

    def turn(
        self,
        state: AgentState = AgentState.RUNNING,
        reward: float = 0.0,
        *,
        environment: int = 0,
        observation: Observation = SEEN,
    ) -> None:
        """Sends a turn of a flat environment."""
        agent = AgentTurn("0", 0, state, observation, reward)
        self._sink.take(self, [DialledTurn(environment, (agent,))])
