"""Compares the ONNX model of a policy with the policy on random observations, and times both."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, MultiBinary
from numpy.typing import NDArray

from rollcast.actor.environments.executed_actions import ExecutedActions
from rollcast.actor.exporting.model import PolicyModel
from rollcast.actor.exporting.players import OwnNames
from rollcast.actor.policies.action_masks import FORBIDDEN, action_mask_sizes
from rollcast.actor.policies.distributions import Parameters
from rollcast.actor.policies.make import make_saved_policy
from rollcast.actor.policies.observation_moments import NORMALIZATION, normalized_leaves
from rollcast.services.errors import MismatchError
from rollcast.services.policies.policies import SavedPolicy
from rollcast.services.spaces.leaf_schema import leaf_schema
from rollcast.services.spaces.spaces import EnvironmentSpaces, SubstepSpaces, space_leaves

# The largest difference before rounding. For rows with a number above 1, it is relative to the row's largest number.
TOLERANCE: Final = 1e-5
# The number of trajectories in a batch, and the probability that a trajectory begins a new episode at an observation.
_N_ROWS: Final = 100
_BEGIN_RATE: Final = 0.1
# The widest Box from which observations are drawn uniformly. Observations of a wider Box are drawn around 0, because
# environments are seldom near such bounds.
_WIDEST: Final = 1e3
_TIMED_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The comparison of a model with its policy.

    Attributes:
        n_observations: The number of compared observations.
        largest_difference: The largest difference between actions, parameters and states; see `TOLERANCE`.
        n_ties: The number of observations whose two best actions differ by less than the tolerance. These actions are
            not compared.
        model_s: The time of each single action with onnxruntime, on one thread, in seconds.
        policy_s: The time of each single action with the policy, in seconds.
    """

    n_observations: int
    largest_difference: float
    n_ties: int
    model_s: NDArray[np.float64]
    policy_s: NDArray[np.float64]


def check_model(
    content: bytes,
    model: PolicyModel,
    saved: SavedPolicy,
    spaces: EnvironmentSpaces,
    substep_key: str,
    n: int,
    *,
    n_timed: int = 1000,
) -> Agreement:
    """Runs a model and its policy on the same observations, in episodes that begin at random steps.

    Args:
        content: The model, serialised.
        model: The model.
        saved: The policy.
        spaces: The policy's spaces, by substep key.
        substep_key: The substep that the model acts in.
        n: The number of observations to compare; rounded up to whole batches.
        n_timed: The most actions to time, of each of the two.

    Raises:
        MismatchError: The outputs differ by more than the tolerance, or the actions differ.
        ConfigurationError: The policy cannot act here, because its network needs torch.
    """
    session = _Session(content, model)
    policy = make_saved_policy(saved, spaces, seed=0, allowed_network=saved.spec.network)
    executed = ExecutedActions(spaces[substep_key].action)
    drawn = _DrawnObservations(
        saved, substep_key, spaces[substep_key], is_float32=not isinstance(model.player, OwnNames)
    )
    random = np.random.default_rng(0)

    n_rows = min(n, _N_ROWS)
    state, stacks = policy.initial_state(n_rows), policy.frame_stacks(n_rows)
    model_state = np.zeros((n_rows, model.state_size), np.float32)
    largest, n_ties, n_compared = 0.0, 0, 0
    while n_compared < n:
        begins = random.random(n_rows) < _BEGIN_RATE
        model_state[begins] = 0.0
        if state is not None:
            state[begins] = 0.0
        if stacks is not None:
            stacks.begin(begins)
        observation = drawn(n_rows)
        action, parameters = policy.act(
            observation if stacks is None else stacks.push(observation),
            deterministic=True,
            substep_key=substep_key,
            state=state,
        )
        found, model_state = session(observation, model_state)
        tied = _are_tied(spaces[substep_key].action, parameters)
        pairs = {"action": (model.player.as_output(executed(action))[~tied], found[model.outputs[0].name][~tied])}
        if "parameters" in found:
            pairs["parameters"] = parameters, found["parameters"]
        if state is not None:
            pairs["state"] = state, model_state[:, : state.shape[1]]
        for what, (expected, given) in pairs.items():
            difference = _difference(expected, given)
            if not difference <= TOLERANCE:
                raise _mismatch(what, n_compared, expected, given, difference)
            largest = max(largest, difference)
        n_ties += int(tied.sum())
        n_compared += n_rows

    one, one_state, no_state = drawn(1), policy.initial_state(1), np.zeros((1, model.state_size), np.float32)
    one_stacks = policy.frame_stacks(1)

    def act_once() -> None:
        seen = one if one_stacks is None else one_stacks.push(one)
        executed(policy.act(seen, deterministic=True, substep_key=substep_key, state=one_state)[0])

    return Agreement(
        n_observations=n_compared,
        largest_difference=largest,
        n_ties=n_ties,
        model_s=_times(lambda: session(one, no_state), n_timed),
        policy_s=_times(act_once, n_timed),
    )


class _Session:
    """The model in onnxruntime, on one thread."""

    def __init__(self, content: bytes, model: PolicyModel) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._model = model
        # Without the outputs that describe the model.
        self._names = [tensor.name for tensor in model.outputs if isinstance(tensor.shape[0], str)]
        self._inputs = {tensor.name for tensor in self._session.get_inputs()}

    def __call__(
        self, observation: Mapping[str, NDArray[Any]], state: NDArray[np.float32]
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.float32]]:
        player = self._model.player
        given = player.feed(observation)
        if state.size:
            given[player.state_in] = state.reshape(len(state), *player.state_shape(state.shape[1]))
        found = dict(zip(self._names, self._session.run(self._names, given), strict=True))
        return found, found[player.state_out].reshape(state.shape) if state.size else state


class _DrawnObservations:
    """Draws observations: around the running mean if the policy normalises them, otherwise within the space.

    Args:
        saved: The policy.
        substep_key: The substep.
        substep: Its spaces.
        is_float32: Whether to round numbers to float32, because the player gives no others.
    """

    def __init__(self, saved: SavedPolicy, substep_key: str, substep: SubstepSpaces, *, is_float32: bool) -> None:
        self._random = np.random.default_rng(1)
        self._leaves = space_leaves(substep.observation)
        self._is_float32 = is_float32
        # Mean and deviation of each leaf that is normalised.
        self._moments: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}
        start = 0
        for path, shape in normalized_leaves(substep.observation).items() if saved.spec.normalize_observations else ():
            numbers = slice(start, start := start + int(np.prod(shape)))
            prefix = f"{NORMALIZATION}.{substep_key}"
            mean, variance = (saved.state[f"{prefix}.{name}"][numbers].reshape(shape) for name in ("mean", "variance"))
            self._moments[path] = mean, np.sqrt(variance)

    def __call__(self, n: int) -> dict[str, NDArray[Any]]:
        """Returns n observations."""
        return {path: self._leaf(path, leaf, n) for path, leaf in self._leaves.items()}

    def _leaf(self, path: str, leaf: Space[Any], n: int) -> NDArray[Any]:
        schema, random = leaf_schema(leaf), self._random
        if not isinstance(leaf, Box):
            assert schema.low is not None  # leaf_schema sets both
            assert schema.n_values is not None
            low, n_values = (np.broadcast_to(bound, schema.shape) for bound in (schema.low, schema.n_values))
            return (low + random.integers(n_values, size=(n, *schema.shape))).astype(schema.dtype)
        low, high = leaf.low.astype(np.float64), leaf.high.astype(np.float64)
        shape = (n, *schema.shape)
        if path in self._moments:
            mean, deviation = self._moments[path]
            values = mean + 3.0 * deviation * random.standard_normal(shape)
        else:
            middle = np.clip(0.0, low, high)
            is_wide = (high / 2 - low / 2) > _WIDEST / 2
            values = random.uniform(
                np.where(is_wide, np.maximum(low, middle - 10), low),
                np.where(is_wide, np.minimum(high, middle + 10), high),
                shape,
            )
        if schema.dtype.kind != "f":
            values = np.rint(values)
        elif self._is_float32:
            values = values.astype(np.float32).astype(np.float64)
        return np.clip(values, low, high).astype(schema.dtype)


def _are_tied(space: Space[Any], parameters: Parameters) -> NDArray[np.bool_]:
    """Returns bool `[N]`: True where two actions are equally good, except for rounding."""
    if isinstance(space, Box):
        return np.zeros(len(parameters), np.bool_)
    if isinstance(space, MultiBinary):
        near: NDArray[np.bool_] = np.any(np.abs(parameters) <= TOLERANCE, axis=1)
        return near
    sizes = action_mask_sizes(space)
    tied = np.zeros(len(parameters), np.bool_)
    for scores in np.split(parameters[:, -sum(sizes) :], np.cumsum(sizes)[:-1], axis=1):
        best = np.sort(scores, axis=1)[:, -2:]
        if best.shape[1] > 1:
            tied |= best[:, 1] - best[:, 0] <= TOLERANCE * np.maximum(1.0, np.abs(best[:, 1]))
    return tied


def _difference(expected: NDArray[Any], given: NDArray[Any]) -> float:
    """Returns the largest difference. Any difference of integers counts as infinite. NaN if a number is NaN."""
    if expected.shape != given.shape or expected.dtype != given.dtype:
        return np.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(expected, given) else np.inf
    if not expected.size:
        return 0.0
    rows, others = (values.reshape(len(values), -1).astype(np.float64) for values in (expected, given))
    # Parameters of forbidden actions are huge, and would hide the rest of their row.
    size = np.where(rows > FORBIDDEN / 2, np.abs(rows), 0.0).max(axis=1, keepdims=True)
    differences = np.abs(rows - others) / np.maximum(1.0, size) - _rounding(expected.dtype)
    return float(np.maximum(differences, 0.0).max())


def _rounding(dtype: np.dtype[Any]) -> float:
    """Returns the distance of two neighbours of a narrow dtype, to which numbers within the tolerance may round."""
    return float(np.finfo(dtype).eps) if dtype.itemsize < 4 else 0.0


def _mismatch(
    what: str, n_before: int, expected: NDArray[Any], given: NDArray[Any], difference: float
) -> MismatchError:
    if expected.shape != given.shape or expected.dtype != given.dtype:
        found = f"{given.dtype}{list(given.shape)}; expected {expected.dtype}{list(expected.shape)}"
    else:
        same = (
            expected == given
            if expected.dtype.kind != "f"
            else np.isclose(expected, given, 0, TOLERANCE + _rounding(expected.dtype))
        )
        row = int(np.flatnonzero(~same.reshape(len(same), -1).all(axis=1))[0])
        found = f"{given[row].tolist()} for drawn observation {n_before + row}; expected {expected[row].tolist()}"
    return MismatchError(
        f"the exported policy computes the {what} {found:.400}; the difference is {difference:.2g}, above "
        f"{TOLERANCE:g}; "
        "no file was written; report this, with the policy file, or serve the policy instead: rollcast serve-policy"
    )


def _times(act: Callable[[], object], n: int) -> NDArray[np.float64]:
    """Returns the seconds of `n` single calls at most, after a few uncounted ones."""
    for _ in range(20):
        act()
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < n and time.perf_counter() - began < _TIMED_S:
        start = time.perf_counter()
        act()
        taken.append(time.perf_counter() - start)
    return np.array(taken)
