"""Defines the names of an ONNX model's inputs and outputs: rollcast's own names, or those of a game engine's player.

The names are from the players' sources. The plugin of Godot RL Agents (ONNXInference.cs, sync.gd) gives `obs` and
`state_ins` and takes `output` and `state_outs`. ML-Agents from 2.0 on (TensorNames.cs, SentisModelParamLoader.cs,
ApplierImpl.cs) gives `obs_<i>`, `action_masks` and `recurrent_in`. It takes `continuous_actions` or `discrete_actions`,
`recurrent_out`, and constants that describe the model.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
from gymnasium.spaces import Box, MultiBinary
from numpy.typing import NDArray

from rollcast.actor.exporting.graph import BATCH_AXIS, GraphBuilder, GraphTensor
from rollcast.actor.policies.action_masks import ACTION_MASK, action_mask_sizes
from rollcast.actor.policies.features import ImageLayout
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import BUILT_IN_NETWORKS, PolicySpec
from rollcast.services.spaces.leaf_schema import leaf_schema
from rollcast.services.spaces.spaces import Observation, SubstepSpaces, describe_space, space_leaves

PlayerName: TypeAlias = Literal["rollcast", "godot", "mlagents"]

_FLOAT32: Final = np.dtype(np.float32)
_INT64: Final = np.dtype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionNodes:
    """The actions of a graph.

    Attributes:
        parameters: float32 `[N, P]`, as `Policy.act` returns them.
        n_parameters: P.
        indices: int64 `[N, E]`, one index from 0 for each element of a Discrete, MultiDiscrete or MultiBinary space;
            None: the actions are those of a Box.
        values: `[N, D]` in the dtype of a Box, inside its bounds; None: the actions are indices.
    """

    parameters: str
    n_parameters: int
    indices: str | None = None
    values: str | None = None


class Player(ABC):
    """A program that runs the model, with the program's names of inputs and outputs.

    Args:
        substep: The spaces that the policy acts in.
        images: The leaves that the network takes as images, with the position of their channels.
    """

    state_in: ClassVar[str]
    state_out: ClassVar[str]
    # True: images are floats from 0 to 1, channels first; False: images are as the environment returns them.
    scales_images: ClassVar[bool] = False

    def __init__(self, substep: SubstepSpaces, images: Mapping[str, ImageLayout]) -> None:
        self._substep = substep
        self._images = images
        leaves = space_leaves(substep.observation)
        self._has_mask = ACTION_MASK in leaves
        # In the order of the space.
        self._seen = {path: leaf for path, leaf in leaves.items() if path != ACTION_MASK}

    @abstractmethod
    def check(self, spec: PolicySpec) -> None:
        """Checks that the program can play this policy.

        Raises:
            ConfigurationError: The program cannot play this policy.
        """

    @abstractmethod
    def observation_inputs(self) -> dict[str, GraphTensor]:
        """Returns the input for each leaf of the observation except the action mask, by path."""

    @property
    def other_inputs(self) -> tuple[GraphTensor, ...]:
        """The inputs that the program gives, and that the policy does not need."""
        return ()

    @abstractmethod
    def mask_input(self) -> GraphTensor | None:
        """Returns the input for the action mask, `[N, n]`, nonzero where an action is allowed; None: no mask."""

    def state_shape(self, n_state: int) -> tuple[int, ...]:
        """Returns the shape of a state of M numbers."""
        return (n_state,)

    @abstractmethod
    def add_outputs(self, graph: GraphBuilder, actions: ActionNodes, n_state: int) -> list[GraphTensor]:
        """Adds the outputs except the state, and returns them, the actions first."""

    @abstractmethod
    def feed(self, observation: Observation) -> dict[str, NDArray[Any]]:
        """Returns the program's inputs except the state, for observations `[N, ...]`."""

    @abstractmethod
    def as_output(self, action: NDArray[Any]) -> NDArray[Any]:
        """Returns the model's first output for the policy's actions, `[N, ...]` inside the space."""

    def _sizes(self) -> tuple[int, ...]:
        return action_mask_sizes(self._substep.action)

    def _rows(self, action: NDArray[Any]) -> NDArray[Any]:
        """Returns the values of a Box, float32 `[N, D]`, or indices from 0, int64 `[N, E]`."""
        rows = action.reshape(len(action), -1)
        if isinstance(self._substep.action, Box):
            return rows.astype(np.float32)
        indices: NDArray[np.int64] = rows.astype(np.int64) - np.ravel(getattr(self._substep.action, "start", 0))
        return indices


class OwnNames(Player):
    """rollcast's own names. Observations and actions have the shapes and dtypes of the environment's spaces."""

    state_in, state_out = "state_in", "state_out"

    def check(self, spec: PolicySpec) -> None:
        """Accepts every policy."""

    def observation_inputs(self) -> dict[str, GraphTensor]:
        """See `Player.observation_inputs`."""
        return {path: self._input(path) for path in self._seen}

    def mask_input(self) -> GraphTensor | None:
        """See `Player.mask_input`."""
        return self._input(ACTION_MASK) if self._has_mask else None

    def add_outputs(self, graph: GraphBuilder, actions: ActionNodes, n_state: int) -> list[GraphTensor]:
        """See `Player.add_outputs`."""
        space = self._substep.action
        chosen = actions.values
        if actions.indices is not None:
            start = np.ravel(getattr(space, "start", 0)).astype(np.int64)
            chosen = graph.add("Add", actions.indices, graph.constant(start))
        assert chosen is not None
        shape = tuple(space.shape or ())
        chosen = graph.reshape(graph.convert(chosen, np.dtype(space.dtype)), shape)
        graph.add("Identity", chosen, output="action")
        graph.add("Identity", actions.parameters, output="parameters")
        return [
            _tensor("action", np.dtype(space.dtype), shape, "the greedy action, for env.step"),
            _tensor("parameters", _FLOAT32, (actions.n_parameters,), "logits, values, or means and log stds"),
        ]

    def feed(self, observation: Observation) -> dict[str, NDArray[Any]]:
        """See `Player.feed`."""
        return {self._input(path).name: values for path, values in observation.items()}

    def as_output(self, action: NDArray[Any]) -> NDArray[Any]:
        """See `Player.as_output`."""
        return action

    def _input(self, path: str) -> GraphTensor:
        leaf = space_leaves(self._substep.observation)[path]
        schema = leaf_schema(leaf)
        name = f"observation/{path}" if path else "observation"
        return _tensor(name, schema.dtype, schema.shape, describe_space(leaf))


class _EnginePlayer(Player):
    """A player that gives floats, and takes floats and indices from 0."""

    program: ClassVar[str]

    def check(self, spec: PolicySpec) -> None:
        """Refuses policies that no engine's player can play; see `Player.check`."""
        if spec.network not in BUILT_IN_NETWORKS:
            raise self._refusal(f"the network {spec.network!r}", "a built-in network: yours may need other inputs")
        if isinstance(self._substep.action, MultiBinary):
            raise self._refusal(describe_space(self._substep.action), "Discrete, MultiDiscrete or Box actions")
        for path, leaf in self._seen.items():
            if not isinstance(leaf, Box):
                raise self._refusal(f"{describe_space(leaf)} at {path!r}", "observations of numbers, in a Box")

    def _refusal(self, what: str, expected: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.program} cannot play a policy with {what}; expected {expected}; export it with --names rollcast, "
            "and call onnxruntime yourself"
        )


class GodotPlayer(_EnginePlayer):
    """The plugin of Godot RL Agents. The plugin keeps no state, and does not support action masks."""

    program = "Godot RL Agents"
    state_in, state_out = "state_ins", "state_outs"

    def check(self, spec: PolicySpec) -> None:
        """See `Player.check`."""
        super().check(spec)
        if spec.state_size or spec.frame_stack > 1:
            raise self._refusal("a recurrent state or a frame stack", "neither, because the plugin keeps no state")
        if len(self._seen) > 1 or self._images or self._has_mask:
            leaves = list(space_leaves(self._substep.observation))
            raise self._refusal(f"the observations {leaves}", "a single vector, `obs`")
        space = self._substep.action
        if isinstance(space, Box) and not ((space.low >= -1).all() and (space.high <= 1).all()):
            raise self._refusal(describe_space(space), "a Box within [-1, 1], because the plugin clips all actions")

    @property
    def other_inputs(self) -> tuple[GraphTensor, ...]:
        """See `Player.other_inputs`."""
        return (_tensor(self.state_in, _FLOAT32, (), "not used"),)

    def observation_inputs(self) -> dict[str, GraphTensor]:
        """See `Player.observation_inputs`."""
        ((path, leaf),) = self._seen.items()
        return {path: _tensor("obs", _FLOAT32, (int(np.prod(leaf.shape or ())),), describe_space(leaf))}

    def mask_input(self) -> GraphTensor | None:
        """Returns None; see `Player.mask_input`."""
        return None

    def add_outputs(self, graph: GraphBuilder, actions: ActionNodes, n_state: int) -> list[GraphTensor]:
        """See `Player.add_outputs`."""
        chosen = actions.values
        if actions.indices is not None:
            # A 1 for the greedy action: the plugin looks for the largest number, and takes none that is below 0.
            sizes = self._sizes()
            columns = graph.split(actions.indices, [1] * len(sizes))
            chosen = graph.concat(
                [
                    graph.convert(graph.add("Equal", column, graph.constant(np.arange(n))), np.float32)
                    for column, n in zip(columns, sizes, strict=True)
                ]
            )
            width, meaning = sum(sizes), "1 for each key's greedy action, otherwise 0"
        else:
            width, meaning = int(np.prod(self._substep.action.shape or ())), "the greedy action"
        assert chosen is not None
        graph.add("Identity", graph.convert(chosen, np.float32), output="output")
        graph.add("Identity", self.state_in, output=self.state_out)
        return [
            _tensor("output", _FLOAT32, (width,), meaning),
            _tensor(self.state_out, _FLOAT32, (), f"{self.state_in}, unchanged"),
        ]

    def feed(self, observation: Observation) -> dict[str, NDArray[Any]]:
        """See `Player.feed`."""
        (values,) = observation.values()
        n = len(values)
        return {"obs": values.reshape(n, -1).astype(np.float32), self.state_in: np.ones(n, np.float32)}

    def as_output(self, action: NDArray[Any]) -> NDArray[Any]:
        """See `Player.as_output`."""
        rows = self._rows(action)
        if isinstance(self._substep.action, Box):
            return rows
        ones = [np.eye(n, dtype=np.float32)[rows[:, i]] for i, n in enumerate(self._sizes())]
        return np.concatenate(ones, axis=1)


class MlAgentsPlayer(_EnginePlayer):
    """Unity's ML-Agents."""

    program = "ML-Agents"
    state_in, state_out = "recurrent_in", "recurrent_out"
    scales_images = True
    # Of models since ML-Agents 2.0, whose inputs are obs_0, obs_1, ...
    _VERSION: ClassVar = 3

    def observation_inputs(self) -> dict[str, GraphTensor]:
        """See `Player.observation_inputs`."""
        inputs = {}
        for i, (path, leaf) in enumerate(self._seen.items()):
            shape = tuple(leaf.shape or (1,))
            if self._images.get(path) == "channel_last":
                shape = (shape[-1], *shape[:-1])
            inputs[path] = _tensor(f"obs_{i}", _FLOAT32, shape, describe_space(leaf))
        return inputs

    def mask_input(self) -> GraphTensor | None:
        """See `Player.mask_input`."""
        if isinstance(self._substep.action, Box):
            return None
        return _tensor("action_masks", _FLOAT32, (sum(self._sizes()),), "1 where an action is allowed")

    def state_shape(self, n_state: int) -> tuple[int, ...]:
        """See `Player.state_shape`."""
        return (1, n_state)

    def add_outputs(self, graph: GraphBuilder, actions: ActionNodes, n_state: int) -> list[GraphTensor]:
        """See `Player.add_outputs`."""
        kind, dtype = ("continuous", _FLOAT32) if actions.indices is None else ("discrete", _INT64)
        chosen = actions.indices if actions.values is None else graph.convert(actions.values, np.float32)
        assert chosen is not None
        sizes = [int(np.prod(self._substep.action.shape or ()))] if actions.indices is None else list(self._sizes())
        width = sizes[0] if actions.indices is None else len(sizes)
        outputs = []
        for name in (f"{kind}_actions", f"deterministic_{kind}_actions"):
            graph.add("Identity", chosen, output=name)
            outputs.append(_tensor(name, dtype, (width,), "the greedy action"))
        described = np.array(sizes if kind == "continuous" else [sizes], np.float32)
        for name, values, meaning in (
            (f"{kind}_action_output_shape", described, "the sizes of the actions"),
            ("version_number", np.array([self._VERSION], np.float32), "the format of the model"),
            ("memory_size", np.array([n_state], np.float32), "the size of the state"),
        ):
            graph.constant(values, name)
            outputs.append(GraphTensor(name=name, dtype=_FLOAT32, shape=values.shape, meaning=meaning))
        return outputs

    def feed(self, observation: Observation) -> dict[str, NDArray[Any]]:
        """See `Player.feed`."""
        given = {}
        for i, path in enumerate(self._seen):
            values = observation[path].astype(np.float32)
            if path in self._images:
                values = np.moveaxis(values, -1 if self._images[path] == "channel_last" else 1, 1) / np.float32(255.0)
            given[f"obs_{i}"] = values if values.ndim > 1 else values[:, None]
        if (mask := self.mask_input()) is not None:
            allowed = observation.get(ACTION_MASK)
            n = len(next(iter(given.values())))
            given[mask.name] = (
                np.ones((n, sum(self._sizes())), np.float32) if allowed is None else allowed.astype(np.float32)
            )
        return given

    def as_output(self, action: NDArray[Any]) -> NDArray[Any]:
        """See `Player.as_output`."""
        return self._rows(action)


PLAYERS: Final[Mapping[PlayerName, type[Player]]] = {
    "rollcast": OwnNames,
    "godot": GodotPlayer,
    "mlagents": MlAgentsPlayer,
}


def _tensor(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], meaning: str) -> GraphTensor:
    """Returns a tensor with a row for each observation."""
    return GraphTensor(name=name, dtype=dtype, shape=(BATCH_AXIS, *shape), meaning=meaning)
