"""Presents environments that dial in as gymnasium's `VectorEnv` or Stable-Baselines3's `VecEnv`."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rollcast.actor.dialling.batch_rule import BatchRule
from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.actor.environments.failures import EnvironmentLostError
from rollcast.actor.environments.structured import ActorId, Turn
from rollcast.actor.seeds import SEED_LIMIT
from rollcast.actor.vector.arrays import Buffer, EnvironmentArrays, Value
from rollcast.services.environments.dialled import Farewell
from rollcast.services.errors import ConfigurationError, InvalidSpaceError, NotReadyError, RefusedError, RollcastError
from rollcast.services.limits.limits import DEFAULT_LIMITS, Limits
from rollcast.services.security.security import PLAIN_SERVER, ServerSecurity
from rollcast.services.server.environments import EnvironmentServer
from rollcast.services.spaces.spaces import SubstepSpaces, unflatten_observation

if TYPE_CHECKING:
    from rollcast.actor.dialling.sb3_vec_env import Sb3VecEnv


_ENDED = Farewell(reason="training has ended", training_ended=True)


@dataclass(slots=True)
class _Place:
    """The state of an environment's place since the last actions.

    Attributes:
        is_ready: Whether it waits for an action.
        has_begun: Whether the vector has an observation of its current episode.
        has_ended: Whether the episode has ended.
        final_info: The final info of that episode.
    """

    is_ready: bool = False
    has_begun: bool = False
    has_ended: bool = False
    final_info: dict[str, Any] | None = None


class RemoteVecEnv(VectorEnv[Value, Value, NDArray[Any]]):
    """A `gymnasium.vector.VectorEnv` of remote environments that dial in.

    A game, a simulator or a robot dials in with a client of `clients/`. Your learner needs no change.

        env = RemoteVecEnv("localhost:50052", n_envs=8)    # waits for the first client
        model = stable_baselines3.PPO("MlpPolicy", env.for_sb3())
        model.learn(100_000)
        env.close()                                         # tells the clients that training has ended

    `step` waits for the slowest environment. Episodes are reset in the step in which they end: `infos["final_obs"]` and
    `infos["final_info"]` have the last observation, and the values that the client reports. Rewards are float32.

    A server cannot reset an environment in the middle of an episode, so `reset` disconnects clients that have acted.
    They reconnect at once, with new episodes and seeds.

    Only one thread may use the vector. Each environment has one agent.

    Args:
        address: "host:port" that clients dial over gRPC; port 0: any free port.
        n_envs: The number of environments of all clients together.
        websocket_address: "host:port" that clients dial over WebSockets; None: no WebSockets.
        on_leave: The reaction to an environment that leaves. "wait": truncate its episode, and wait for another
            environment or its return. "raise": raise `EnvironmentLostError`.
        step_timeout_s: Seconds that an environment may take for a step. A slower environment counts as having left.
        timeout_s: Seconds that all environments together may take to dial in, to return, or to step.
        security: TLS and tokens for clients.

    Attributes:
        address: The served address, with the real port.
        websocket_url: The URL for WebSockets; None: no WebSockets.

    Raises:
        ConfigurationError: An argument is invalid.
        InvalidSpaceError: The first client's environments have several agents.
        NotReadyError: No client dialled in within `timeout_s`.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  # gymnasium's own declaration

    def __init__(
        self,
        address: str,
        n_envs: int,
        *,
        websocket_address: str | None = None,
        on_leave: Literal["wait", "raise"] = "wait",
        step_timeout_s: float = math.inf,
        timeout_s: float = math.inf,
        security: ServerSecurity = PLAIN_SERVER,
    ) -> None:
        self.closed = True  # until it is served
        if n_envs < 1:
            raise ConfigurationError(f"n_envs is {n_envs}; expected at least 1; give the number of environments")
        if on_leave not in ("wait", "raise"):
            raise ConfigurationError(f"on_leave is {on_leave!r}; expected 'wait' or 'raise'; correct on_leave")
        self.num_envs = n_envs
        self._on_leave = on_leave
        self._timeout_s = timeout_s
        self._dialled = DialledEnvironments(address=address, stall_s=step_timeout_s)
        # each environment may have a client of its own
        limits = Limits(max_actors=max(n_envs, DEFAULT_LIMITS.max_actors))
        self._server = EnvironmentServer(
            address,
            self._dialled,
            websocket_address=websocket_address,
            security=security,
            limits=limits,
        )
        self._server.start()
        self.address = self._server.address
        self.websocket_url = self._server.websocket_url
        try:
            self._key, spaces = self._wait_for_spaces()
        except BaseException as error:
            self._end(error if isinstance(error, RollcastError) else _ENDED)
            raise
        self.closed = False
        self.single_observation_space, self.single_action_space = spaces.observation, spaces.action
        self.observation_space = batch_space(spaces.observation, n_envs)
        self.action_space = batch_space(spaces.action, n_envs)
        both = (spaces.observation, spaces.action)
        self._arrays = EnvironmentArrays(*both, n_envs, Buffer(bytearray(EnvironmentArrays.n_bytes(*both, n_envs))))
        self._places: list[_Place] = []
        self._seeds: list[int] = []
        self._has_acted = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Value, dict[str, Any]]:
        """Waits until all environments have dialled in, and begins an episode in each.

        Args:
            seed: A number: environment i gets `seed + i`. A sequence: one seed for each environment. None: random
                seeds; episodes that have just begun continue.
            options: Must be None, because options cannot reach remote environments.

        Returns:
            Observations, each leaf `[n, ...]`, and no infos.

        Raises:
            ConfigurationError: Options are given, or the number of seeds is not n.
            NotReadyError: Some environments did not dial in within `timeout_s`.
            RefusedError: The vector is closed.
        """
        self._check_open()
        if options:
            raise ConfigurationError(f"options are {options}; expected none; make the client choose them")
        if seed is not None or self._has_acted or not self._places:
            self._seeds = self._seeds_for(seed)
            self._dialled.agree(self.num_envs)
            self._dialled.begin(self._seeds)
            self._places = [_Place() for _ in range(self.num_envs)]
            self._has_acted = False
        self._wait_for_all()
        return self._arrays.observation.all(copy=True), {}

    def step(
        self, actions: Value
    ) -> tuple[Value, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Steps every environment once.

        Args:
            actions: Actions nested like the action space, each leaf `[n, ...]`.

        Returns:
            Observations, rewards (float32), terminated, truncated, infos.

        Raises:
            InvalidValueError: The actions do not fit the action space.
            EnvironmentLostError: An environment has left, and `on_leave` is "raise".
            NotReadyError: The environments did not step, or lost ones did not return, within `timeout_s`.
            RefusedError: The vector is closed, or `reset` was not called.
        """
        self._check_open()
        if not self._places:
            raise RefusedError("step was called before reset; expected reset first; call it")
        arrays = self._arrays
        arrays.action.put_all(actions)
        arrays.reward[:], arrays.terminated[:], arrays.truncated[:] = 0, False, False
        for place in self._places:
            place.is_ready, place.has_ended, place.final_info = False, False, None
        self._has_acted = True
        chosen = {index: [np.asarray(arrays.action.get(index))] for index in range(self.num_envs)}
        self._dialled.act(chosen, policy_version=-1)
        self._wait_for_all()
        infos: dict[str, Any] = {}
        for index, place in enumerate(self._places):
            if place.final_info is not None:
                final = {"final_obs": arrays.final_observation.get(index), "final_info": place.final_info}
                infos = self._add_info(infos, final, index)
        return (
            arrays.observation.all(copy=True),
            arrays.reward.copy(),
            arrays.terminated.copy(),
            arrays.truncated.copy(),
            infos,
        )

    def for_sb3(self) -> "Sb3VecEnv":
        """Returns this vector as Stable-Baselines3's `VecEnv`. Stable-Baselines3 must be installed.

        If you close either vector, both are closed.
        """
        from rollcast.actor.dialling.sb3_vec_env import Sb3VecEnv

        return Sb3VecEnv(self)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ANN401  # gymnasium's signature
        """Informs the clients that training has ended, and frees the addresses."""
        del kwargs
        self._end(_ENDED)

    def _end(self, reason: RollcastError | Farewell) -> None:
        self._dialled.end(reason)
        self._server.stop()

    def _check_open(self) -> None:
        if self.closed:
            raise RefusedError("the environments are closed; expected open environments; make a new RemoteVecEnv")

    def _wait_for_spaces(self) -> tuple[str, SubstepSpaces]:
        deadline = time.monotonic() + self._timeout_s
        spaces = self._dialled.wait_for_spaces(lambda: time.monotonic() < deadline)
        if spaces is None:
            raise NotReadyError(
                f"no client dialled in at {self.address} within {self._timeout_s:g} s; expected a client, which "
                "sends the spaces; start one, or raise timeout_s"
            )
        ((key, substep), *others) = spaces.items()
        if others or substep.n_agents > 1:
            found = {key: substep.n_agents for key, substep in spaces.items()}
            raise InvalidSpaceError(
                f"the first client has environments of several agents, by substep: {found}; expected one agent, as "
                "in every vector environment; train with `rollcast actor --serve-environments`"
            )
        return key, substep

    def _seeds_for(self, seed: int | Sequence[int | None] | None) -> list[int]:
        if seed is None or isinstance(seed, int | np.integer):
            super().reset(seed=None if seed is None else int(seed))  # its generator is then seeded, too
        if seed is None:
            return [int(drawn) for drawn in self.np_random.integers(SEED_LIMIT, size=self.num_envs)]
        if isinstance(seed, int | np.integer):
            return [int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ConfigurationError(f"seed has {len(seed)} seeds; expected {self.num_envs}, one for each environment")
        drawn = self.np_random.integers(SEED_LIMIT, size=self.num_envs)
        return [int(other if own is None else own) for own, other in zip(seed, drawn, strict=True)]

    def _wait_for_all(self) -> None:
        """Waits until every environment waits for an action."""
        deadline = time.monotonic() + self._timeout_s
        while not all(place.is_ready for place in self._places):
            self._dialled.hold([index for index, place in enumerate(self._places) if place.is_ready])
            self._dialled.wait(BatchRule(), until=deadline)
            for news in self._dialled.news():
                for turn in news.last_turns:
                    self._note_turn(news.place, turn)
                if news.has_left:
                    self._note_loss(news.place)
                for turn in news.turns:
                    self._note_turn(news.place, turn)
            if time.monotonic() >= deadline:
                n_ready = sum(place.is_ready for place in self._places)
                raise NotReadyError(
                    f"{n_ready} of {self.num_envs} environments were ready within {self._timeout_s:g} s, and "
                    f"{self._dialled.n_live} have dialled in at {self.address}; expected all; start more clients, or "
                    "raise timeout_s"
                )

    def _note_turn(self, index: int, turn: Turn) -> None:
        place, agent = self._places[index], ActorId(self._key)
        if not place.has_ended:
            self._arrays.reward[index] += turn.rewards.get(agent, 0.0)
        ended = turn.ended.get(agent)
        if ended is not None:
            self._arrays.final_observation.put(index, self._nested(ended.observation))
            self._note_end(index, {event.statistic.event: event.value for event in turn.events}, ended.truncated)
        if agent in turn.observations:
            self._arrays.observation.put(index, self._nested(turn.observations[agent]))
            place.is_ready = place.has_begun = True

    def _note_loss(self, index: int) -> None:
        """Truncates the episode of an environment that has left, at the last observation that it has sent."""
        place = self._places[index]
        if self._on_leave == "raise":
            raise EnvironmentLostError(
                "has left: its client ended, or its connection was lost; expected it to stay; start it again and call "
                "reset, or give on_leave='wait'",
                env_index=index,
                env_seed=self._seeds[index],
            )
        place.is_ready = False
        if self._has_acted and place.has_begun and not place.has_ended:
            self._arrays.final_observation.put(index, self._arrays.observation.get(index))
            self._note_end(index, {"has_left": True}, truncated=True)
        place.has_begun = False

    def _note_end(self, index: int, info: dict[str, Any], truncated: bool) -> None:
        place = self._places[index]
        place.has_ended, place.final_info, place.has_begun = True, info, False
        (self._arrays.truncated if truncated else self._arrays.terminated)[index] = True

    def _nested(self, observation: Any) -> Value:  # noqa: ANN401  # leaves by path
        return unflatten_observation(self.single_observation_space, observation)
