"""Builds the ONNX model of a policy: raw observations in, greedy actions out.

The graph contains all steps between: the scaling of images, one-hot encodings, normalisation, frame stacks, the
recurrence, action masks, and the bounds of a Box. One state tensor holds the recurrent state, the inputs of the
previous K - 1 frames, and a flag. The flag is 1 if there are previous frames. All numbers of the state are 0 at the
beginning of an episode.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from gymnasium.spaces import Box, MultiBinary
from numpy.typing import NDArray

from rollcast.actor.environments.executed_actions import ExecutedActions
from rollcast.actor.exporting.graph import BATCH_AXIS, GraphBuilder, GraphTensor
from rollcast.actor.exporting.network import NetworkNodes, own_network
from rollcast.actor.exporting.players import PLAYERS, ActionNodes, Player, PlayerName
from rollcast.actor.policies.action_masks import ACTION_MASK, FORBIDDEN, action_mask_sizes
from rollcast.actor.policies.features import FeatureLayout, feature_layout
from rollcast.actor.policies.frame_stacks import stacked_space
from rollcast.actor.policies.heads import head_distribution
from rollcast.actor.policies.observation_moments import NORMALIZATION, normalized_leaves, scale_of
from rollcast.actor.policies.squashed_gaussian import finite_bounds
from rollcast.services.errors import ConfigurationError
from rollcast.services.policies.policies import BUILT_IN_NETWORKS, SavedPolicy
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces, describe_space, space_leaves

_FLOAT32: Final = np.dtype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyModel:
    """A policy as an ONNX model.

    Attributes:
        proto: The model.
        player: The program that runs the model, and that defines the names of the inputs and outputs.
        inputs: The model's inputs.
        outputs: The model's outputs; the first output has the actions.
        state_size: M, the size of the model's state; 0: no state.
    """

    proto: onnx.ModelProto
    player: Player
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    state_size: int


def build_model(saved: SavedPolicy, spaces: EnvironmentSpaces, substep_key: str, names: PlayerName) -> PolicyModel:
    """Builds the model of a policy.

    Args:
        saved: The policy. A user's own network is imported.
        spaces: The policy's spaces, by substep key.
        substep_key: The substep that the model acts in.
        names: The player that defines the names of the inputs and outputs.

    Raises:
        ConfigurationError: ONNX or the player cannot express this policy.
        InvalidSpaceError: A space of an unsupported kind.
    """
    spec, substep = saved.spec, spaces[substep_key]
    is_own = spec.network not in BUILT_IN_NETWORKS
    seen = stacked_space(substep.observation, spec.frame_stack)
    layout = feature_layout(seen, "mlp" if is_own else spec.network)
    player = PLAYERS[names](substep, layout.images)
    player.check(spec)

    graph = GraphBuilder()
    observation, mask = player.observation_inputs(), player.mask_input()
    inputs = [*observation.values(), *([] if mask is None else [mask]), *player.other_inputs]
    frames = _Frames(graph, saved, substep_key, substep, layout, scales_images=player.scales_images)
    read = frames.values if is_own else frames.features
    taken = {path: read(path, tensor.name) for path, tensor in observation.items()}
    memory = _Memory(graph, spec.state_size, spec.frame_stack, {path: size for path, (_, size) in taken.items()})
    state_shape = player.state_shape(memory.n_numbers)
    if memory.n_numbers:
        inputs.append(_state(player.state_in, state_shape, "the state; 0 at the beginning of an episode"))
        memory.read(player.state_in)
    stacks = memory.push({path: frame for path, (frame, _) in taken.items()})
    state = memory.recurrent
    if is_own:
        leaves = {path: frames.stacked(path, stack) for path, stack in stacks.items()}
        if mask is not None:
            leaves[ACTION_MASK] = mask.name
        computed = graph.embed(
            own_network(saved, spaces, substep_key, seen),
            {f"leaf_{i}": leaves[path] for i, path in enumerate(space_leaves(seen))},
        )
    else:
        network = NetworkNodes(graph, saved, substep_key, layout, space_leaves(seen))
        computed, state = network.outputs(stacks, state)

    actions = _actions(graph, saved, substep_key, substep, computed, None if mask is None else mask.name)
    outputs = player.add_outputs(graph, actions, memory.n_numbers)
    if memory.n_numbers:
        graph.add("Identity", graph.reshape(memory.after(state), state_shape), output=player.state_out)
        outputs.append(_state(player.state_out, state_shape, "the state for the next observations"))
    described = {"policy_version": saved.policy_version, "env_steps": saved.env_steps, "names": names}
    return PolicyModel(
        proto=graph.model(inputs, outputs, {f"rollcast.{name}": str(value) for name, value in described.items()}),
        player=player,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        state_size=memory.n_numbers,
    )


def _state(name: str, shape: tuple[int, ...], meaning: str) -> GraphTensor:
    return GraphTensor(name=name, dtype=_FLOAT32, shape=(BATCH_AXIS, *shape), meaning=meaning)


class _Frames:
    """Turns the inputs for one frame into the network's inputs, float32 `[N, F]` for each leaf.

    Args:
        graph: The graph.
        saved: The policy.
        substep_key: The substep.
        substep: Its spaces.
        layout: The layout of its observations, as stacks of frames.
        scales_images: See `Player.scales_images`.
    """

    def __init__(
        self,
        graph: GraphBuilder,
        saved: SavedPolicy,
        substep_key: str,
        substep: SubstepSpaces,
        layout: FeatureLayout,
        *,
        scales_images: bool,
    ) -> None:
        self._graph = graph
        self._spec = saved.spec
        self._leaves = space_leaves(substep.observation)
        self._layout = layout
        self._vectors = {leaf.path: leaf for leaf in layout.vectors}
        self._scales_images = scales_images
        # The mean and the scale of each leaf that is normalised.
        self._moments: dict[str, tuple[NDArray[np.float64], NDArray[np.float32]]] = {}
        start = 0
        for path, shape in normalized_leaves(substep.observation).items() if saved.spec.normalize_observations else ():
            numbers = slice(start, start := start + math.prod(shape))
            mean, variance = (
                saved.state[f"{NORMALIZATION}.{substep_key}.{name}"][numbers] for name in ("mean", "variance")
            )
            self._moments[path] = mean.astype(np.float64), scale_of(variance)

    def values(self, path: str, x: str) -> tuple[str, int]:
        """Returns the numbers of a leaf, normalised if the policy normalises them, and F."""
        graph, leaf = self._graph, self._leaves[path]
        flat = graph.add("Flatten", x, axis=1)
        size = math.prod(leaf.shape or ())
        if path not in self._moments:
            return graph.convert(flat, np.float32), size
        mean, scale = self._moments[path]
        dtype = np.result_type(leaf.dtype or _FLOAT32, _FLOAT32)
        centred = graph.add("Sub", graph.convert(flat, dtype), graph.constant(mean.astype(dtype)))
        scaled = graph.add("Mul", graph.convert(centred, np.float32), graph.constant(scale))
        bounds = [graph.constant(np.array(sign * self._spec.observation_clip, np.float32)) for sign in (-1, 1)]
        return graph.add("Clip", scaled, *bounds), size

    def features(self, path: str, x: str) -> tuple[str, int]:
        """Returns the features of a leaf, or the pixels of an image from 0 to 1, channels first; and F."""
        graph, leaf = self._graph, self._leaves[path]
        if path in self._layout.images:
            return self._pixels(path, x), math.prod(leaf.shape or ())
        vector, n_frames = self._vectors[path], self._spec.frame_stack
        size = vector.size // n_frames
        if vector.one_hot_offsets is None:
            values, _ = self.values(path, x)
            scale = np.array(vector.scale, np.float32)
            return values if vector.scale == 1.0 else graph.add("Mul", values, graph.constant(scale)), size
        offsets = vector.one_hot_offsets[: len(vector.one_hot_offsets) // n_frames]
        columns = graph.add("Add", graph.convert(graph.add("Flatten", x, axis=1), np.int64), graph.constant(offsets))
        depth, off_and_on = graph.constant(np.array(size, np.int64)), graph.constant(np.array([0, 1], np.float32))
        ones = graph.add("OneHot", columns, depth, off_and_on, axis=-1)
        return graph.add("ReduceSum", ones, graph.constant(np.array([1], np.int64)), keepdims=0), size

    def stacked(self, path: str, stack: str) -> str:
        """Converts a stack of `values` to the shape and the dtype that a user's own network takes."""
        leaf, n_frames = self._leaves[path], self._spec.frame_stack
        shape = tuple(leaf.shape or ()) if n_frames == 1 else (n_frames, *(leaf.shape or ()))
        return self._graph.convert(
            self._graph.reshape(stack, shape), _FLOAT32 if path in self._moments else np.dtype(leaf.dtype)
        )

    def _pixels(self, path: str, x: str) -> str:
        graph, leaf = self._graph, self._leaves[path]
        if len(leaf.shape or ()) == 2 and self._layout.images[path] == "channel_last":
            raise ConfigurationError(
                f"{self._spec.frame_stack} frames of {describe_space(leaf)} at {path!r} are more than the width of an "
                "image, so the frames would count as rows; expected fewer; serve the policy instead of exporting it"
            )
        if self._scales_images:
            return graph.add("Flatten", x, axis=1)
        if len(leaf.shape or ()) == 3 and self._layout.images[path] == "channel_last":
            x = graph.add("Transpose", x, perm=[0, 3, 1, 2])
        pixels = graph.convert(graph.add("Flatten", x, axis=1), np.float32)
        return graph.add("Mul", pixels, graph.constant(np.array(1.0 / 255.0, np.float32)))


class _Memory:
    """The state of a policy, which it carries from one observation to the next.

    Args:
        graph: The graph.
        recurrent_size: S, the size of the recurrent state.
        frame_stack: K.
        frame_sizes: F, the size of the inputs for one frame of each leaf, by path.

    Attributes:
        n_numbers: M, its size.
        recurrent: float32 `[N, S]`, from `read`; None: the policy is not recurrent.
    """

    def __init__(
        self, graph: GraphBuilder, recurrent_size: int, frame_stack: int, frame_sizes: Mapping[str, int]
    ) -> None:
        self._graph = graph
        self._n_earlier = frame_stack - 1
        self._frame_sizes = dict(frame_sizes) if self._n_earlier else {}
        self._sizes = [recurrent_size] * (recurrent_size > 0)
        self._sizes += [size * self._n_earlier for size in self._frame_sizes.values()] + [1] * bool(self._frame_sizes)
        self.n_numbers = sum(self._sizes)
        self.recurrent: str | None = None
        self._is_recurrent = recurrent_size > 0
        self._earlier: dict[str, str] = {}
        self._has_begun = ""
        self._kept: list[str] = []

    def read(self, name: str) -> None:
        """Splits the input with this name."""
        parts = self._graph.split(self._graph.add("Flatten", name, axis=1), self._sizes)
        if self._is_recurrent:
            self.recurrent = parts.pop(0)
        if self._frame_sizes:
            self._has_begun = parts.pop()
        self._earlier = dict(zip(self._frame_sizes, parts, strict=True))

    def push(self, frames: Mapping[str, str]) -> Mapping[str, str]:
        """Stacks frames on the previous ones: `[N, F]` to `[N, K * F]`. An episode begins with K first frames."""
        if not self._frame_sizes:
            return frames
        graph, stacks = self._graph, {}
        has_begun = graph.add("Greater", self._has_begun, graph.constant(np.zeros(1, np.float32)))
        for path, frame in frames.items():
            earlier = graph.add("Where", has_begun, self._earlier[path], graph.concat([frame] * self._n_earlier))
            stacks[path] = graph.concat([earlier, frame])
            size = self._frame_sizes[path]
            self._kept.append(graph.split(stacks[path], [size, size * self._n_earlier])[1])
        return stacks

    def after(self, recurrent: str | None) -> str:
        """Returns the next state, `[N, M]`, given the next recurrent state."""
        parts = [] if recurrent is None else [recurrent]
        if self._frame_sizes:
            parts += [*self._kept, self._graph.filled(self._has_begun, np.ones(1, np.float32))]
        return self._graph.concat(parts)


def _actions(
    graph: GraphBuilder, saved: SavedPolicy, substep_key: str, substep: SubstepSpaces, outputs: str, mask: str | None
) -> ActionNodes:
    """Adds the greedy actions for a network's outputs `[N, n]`; a mask is `[N, n]`, nonzero if allowed."""
    distribution, space = head_distribution(substep, saved.spec.head), substep.action
    if isinstance(space, Box):
        parameters = outputs
        if distribution.n_outputs != distribution.n_parameters:
            log_std = saved.state[f"log_std.{substep_key}"].astype(np.float32)
            parameters = graph.concat([outputs, graph.filled(outputs, log_std)])
        values = _box_action(graph, space, outputs, is_squashed=saved.spec.head == "squashed_gaussian")
        return ActionNodes(parameters=parameters, n_parameters=distribution.n_parameters, values=values)
    if isinstance(space, MultiBinary):
        ones = graph.add("Greater", outputs, graph.constant(np.zeros(1, np.float32)))
        return ActionNodes(
            parameters=outputs, n_parameters=distribution.n_parameters, indices=graph.convert(ones, np.int64)
        )
    sizes = action_mask_sizes(space)
    # Before the advantages of a dueling head is the value of the observation.
    n_before = distribution.n_outputs - sum(sizes)
    *before, scores = graph.split(outputs, [n_before, sum(sizes)] if n_before else [sum(sizes)])
    if mask is not None:
        scores = graph.add(
            "Where", _allowed(graph, mask, sizes), scores, graph.constant(np.full(1, FORBIDDEN, np.float32))
        )
    best = [graph.add("ArgMax", part, axis=1, keepdims=1) for part in graph.split(scores, sizes)]
    return ActionNodes(
        parameters=graph.concat([*before, scores]),
        n_parameters=distribution.n_parameters,
        indices=graph.concat(best),
    )


def _box_action(graph: GraphBuilder, space: Box[Any], outputs: str, *, is_squashed: bool) -> str:
    """Returns the actions for the means, `[N, D]` in the dtype of the space: squashed or clipped to the bounds."""
    dtype = np.result_type(space.dtype, _FLOAT32)
    if is_squashed:
        low, high = finite_bounds(space)
        squashed = graph.convert(graph.add("Tanh", graph.split(outputs, [low.size, low.size])[0]), dtype)
        half_width, centre = (
            graph.constant(values.astype(dtype)) for values in (0.5 * (high - low), 0.5 * (low + high))
        )
        action = graph.add("Add", graph.add("Mul", squashed, half_width), centre)
    else:
        action = graph.convert(outputs, dtype)
    if (bounds := ExecutedActions(space).bounds) is not None:
        lowest, highest = (graph.constant(bound.astype(dtype).reshape(-1)) for bound in bounds)
        action = graph.add("Min", graph.add("Max", action, lowest), highest)
    return graph.convert(action, space.dtype)


def _allowed(graph: GraphBuilder, mask: str, sizes: tuple[int, ...]) -> str:
    """Returns bool `[N, n]`, True where an action is allowed. A mask that allows no action of an element allows all."""
    allowed = graph.convert(graph.convert(mask, np.bool_), np.float32)
    parts = []
    for part in graph.split(allowed, sizes):
        any_allowed = graph.add("ReduceMax", part, axes=[1], keepdims=1)
        allows_none = graph.add("Sub", graph.constant(np.ones(1, np.float32)), any_allowed)
        parts.append(graph.add("Add", part, allows_none))
    return graph.add("Greater", graph.concat(parts), graph.constant(np.zeros(1, np.float32)))
