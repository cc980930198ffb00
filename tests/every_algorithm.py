"""Every algorithm with everything that a policy and a batch may have, for tests of devices.

case = CASES["ppo: memory"]
algorithm = case.make(device)
case.update(algorithm, case.batches(device))
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from pydantic import BaseModel

from rollcast.actor.policies.action_masks import ACTION_MASK
from rollcast.learner.algorithms.algorithm import Algorithm, Metrics
from rollcast.learner.algorithms.appo import Appo
from rollcast.learner.algorithms.appo_settings import AppoSettings
from rollcast.learner.algorithms.dqn import Dqn
from rollcast.learner.algorithms.dqn_settings import DqnSettings
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.algorithms.independent_learners import IndependentLearners
from rollcast.learner.algorithms.observation_statistics import observe_batch
from rollcast.learner.algorithms.ppo import Ppo
from rollcast.learner.algorithms.ppo_settings import PpoSettings
from rollcast.learner.algorithms.r2d2 import R2d2
from rollcast.learner.algorithms.r2d2_settings import R2d2Settings
from rollcast.learner.algorithms.sac import Sac
from rollcast.learner.algorithms.sac_settings import SacSettings
from rollcast.learner.batch import Batch, BatchColumns
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.spaces.spaces import (
    FLAT_SUBSTEP,
    EnvironmentSpaces,
    SubstepSpaces,
    flatten_observation,
    space_leaves,
)
from tests.batches import build_batch

T, B = 6, 4
KINDS: Mapping[str, tuple[type[Algorithm], type[BaseModel]]] = {
    "impala": (Impala, ImpalaSettings),
    "ppo": (Ppo, PpoSettings),
    "appo": (Appo, AppoSettings),
    "dqn": (Dqn, DqnSettings),
    "r2d2": (R2d2, R2d2Settings),
    "sac": (Sac, SacSettings),
}
# Two passes of two minibatches: enough to see what each costs.
_FEW_PASSES = {"n_epochs": 2, "minibatch_steps": T * B // 2}
# The names of the optimiser's epsilon. SAC's optimisers have torch's, which no setting changes.
_EPSILONS = {"impala": "optimizer_epsilon", "ppo": "optimizer_epsilon", "appo": "optimizer_epsilon"} | dict.fromkeys(
    ("dqn", "r2d2"), "adam_epsilon"
)
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ppo": _FEW_PASSES,
    "appo": _FEW_PASSES,
    "dqn": {"target_update_interval": 1},
    "r2d2": {"target_update_interval": 1},
}

VECTOR = Box(-np.inf, np.inf, (3,), np.float32)
PIXELS = Box(0, 255, (36, 36, 1), np.uint8)
MIXED = Dict(vector=VECTOR, tile=Discrete(3, start=2), tiles=MultiDiscrete([2, 3]), flags=MultiBinary(2))
TWO_WAYS = Discrete(2)
PUSHES = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
SMALL = PolicySpec(hidden_sizes=(16, 16))


def make_algorithm(
    kind: str,
    spaces: EnvironmentSpaces,
    spec: PolicySpec,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    **settings: Any,
) -> Any:
    """Makes an algorithm by its name; it is of its own class."""
    algorithm, kind_of_settings = KINDS[kind]
    return algorithm(spaces, spec, kind_of_settings(**settings), device=device, seed=seed)  # type: ignore[call-arg]


def make_learners(
    kind: str, spaces: EnvironmentSpaces, spec: PolicySpec, *, seed: int = 0, **options: Any
) -> IndependentLearners:
    """Makes independent learners, each of the algorithm."""

    def learner(spaces: EnvironmentSpaces, *, seed: int) -> Algorithm:
        made: Algorithm = make_algorithm(kind, spaces, spec, seed=seed, **options)
        return made

    return IndependentLearners(spaces, learner, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Case:
    """An algorithm, what its policy sees and does, and what is special about it.

    Attributes:
        kind: The algorithm.
        observation: The space, or, for several substeps, that of each.
        action: The space.
        spec: The policy's architecture.
        settings: Of the algorithm, where they are not the defaults.
        n_substeps: More than one: independent learners.
        weights: True if batches have importance weights.
        overridden: True if batches have actions that no policy chose.
    """

    kind: str
    observation: Space[Any] = field(default_factory=lambda: VECTOR)
    action: Space[Any] = field(default_factory=lambda: TWO_WAYS)
    spec: PolicySpec = SMALL
    settings: Mapping[str, Any] = field(default_factory=dict)
    n_substeps: int = 1
    weights: bool = False
    overridden: bool = False

    @property
    def spaces(self) -> EnvironmentSpaces:
        """The spaces by substep key."""
        keys = [FLAT_SUBSTEP] if self.n_substeps == 1 else [f"substep{i}" for i in range(self.n_substeps)]
        return {key: SubstepSpaces(observation=self.observation, action=self.action) for key in keys}

    def in_proportion(self) -> "Case":
        """Returns the case with steps of the optimiser of a tenth of the gradient; SAC's as it is.

        Adam divides by the gradient's size: where that is small, its rounding moves a parameter by a whole step. Beside
        an epsilon that is far above all gradients, steps are as exact as gradients.
        """
        if self.kind not in _EPSILONS:
            return self
        return replace(self, settings={**self.settings, "learning_rate": 0.1, _EPSILONS[self.kind]: 1.0})

    def make(self, device: torch.device | str, *, seed: int = 0) -> Algorithm:
        """Makes the algorithm."""
        own = {**_DEFAULTS.get(self.kind, {}), **self.settings}
        make = make_algorithm if self.n_substeps == 1 else make_learners
        return make(self.kind, self.spaces, self.spec, device=device, seed=seed, **own)

    def batches(self, device: torch.device | str, *, seed: int = 0) -> list[Batch]:
        """Makes a batch for each substep. Episodes end in them in every way, and some rows are no transitions."""
        make = _transitions if self.kind in ("dqn", "sac") else _trajectories
        return [make(self, key, np.random.default_rng((seed, i)), device) for i, key in enumerate(self.spaces)]

    def update(self, algorithm: Algorithm, batches: list[Batch], *, progress: float = 0.25) -> Metrics:
        """Updates the algorithm with each batch, as a trainer does."""
        metrics: Metrics = {}
        for batch in batches:
            metrics = {**metrics, **algorithm.update(batch, progress=progress)}
            if not algorithm.learns_from_replay:
                observe_batch(algorithm.policy, batch)
        return metrics


def _trajectories(case: Case, key: str, rng: np.random.Generator, device: torch.device | str) -> Batch:
    """Returns trajectories `[T, B]`.

    The first terminates in row 2 and goes on after a reset row; the second is truncated in row 3, and has a final
    observation; the third begins in row 2; the last is cut in the last row.
    """
    terminated, truncated = (torch.zeros(T, B, dtype=torch.bool) for _ in range(2))
    valid = torch.ones(T, B, dtype=torch.bool)
    terminated[2, 0] = truncated[3, 1] = truncated[T - 1, 3] = True
    valid[3, 0] = False
    valid[:2, 2] = False
    burn_in = 2 if case.kind == "r2d2" else 0
    columns = _columns(case, key, rng, (T, B), n_finals=2)
    if case.spec.state_size:
        columns = replace(columns, initial_state=_normal(rng, B, case.spec.state_size))
    if case.spec.frame_stack > 1:
        previous = _observation(case.observation, rng, (B, case.spec.frame_stack - 1))
        columns = replace(columns, previous_observation={p: x for p, x in previous.items() if p != ACTION_MASK})
    return build_batch(
        columns,
        key=key,
        device=str(device),
        reward=_normal(rng, T, B),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        final_index=torch.tensor([[3, 1], [T - 1, 3]]),
        burn_in=burn_in,
        overridden=torch.from_numpy(rng.random((T, B)) < 0.3) if case.overridden else None,
        weights=_normal(rng, B).abs() if case.weights else None,
    )


def _transitions(case: Case, key: str, rng: np.random.Generator, device: torch.device | str) -> Batch:
    """Returns transitions `[1, 8]`, one of which terminated."""
    n = 2 * B
    terminated = torch.zeros(1, n, dtype=torch.bool)
    terminated[0, 1] = True
    stack = (case.spec.frame_stack,) if case.spec.frame_stack > 1 else ()
    return build_batch(
        _columns(case, key, rng, (1, n), stack=stack),
        key=key,
        device=str(device),
        reward=_normal(rng, 1, n),
        terminated=terminated,
        discount=torch.full((n,), 0.9),
        weights=_normal(rng, n).abs() if case.weights else None,
    )


def _columns(
    case: Case,
    key: str,
    rng: np.random.Generator,
    shape: tuple[int, int],
    *,
    n_finals: int = 0,
    stack: tuple[int, ...] = (),
) -> BatchColumns:
    action = _drawn(case.spaces[key].action, rng, shape)
    observation = _observation(case.observation, rng, shape, stack)
    if ACTION_MASK in observation:  # what was done was allowed
        observation[ACTION_MASK].scatter_(-1, action[..., None], 1)
    return BatchColumns(
        observation=observation,
        action=action,
        log_prob=-_normal(rng, *shape).abs(),
        last_observation=_observation(case.observation, rng, shape[1:], stack),
        final_observation=_observation(case.observation, rng, (n_finals,), stack),
    )


def _observation(
    space: Space[Any], rng: np.random.Generator, shape: tuple[int, ...], stack: tuple[int, ...] = ()
) -> dict[str, torch.Tensor]:
    """Returns observations `[*shape, ...]` for every leaf, `[*shape, *stack, ...]` but for the mask."""
    return {
        path: _drawn(leaf, rng, shape if path == ACTION_MASK else (*shape, *stack))
        for path, leaf in space_leaves(space).items()
    }


def _drawn(space: Space[Any], rng: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    """Returns values of the space, `[*shape, ...]`."""
    space.seed(int(rng.integers(1 << 30)))
    drawn = [flatten_observation(space, space.sample())[""] for _ in range(int(np.prod(shape)))]
    values = np.array(drawn, space.dtype).reshape(*shape, *(space.shape or ()))
    return torch.from_numpy(values)


def _normal(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape, np.float32))


def _masked(n_actions: int) -> Dict:
    return Dict({ACTION_MASK: Box(0, 1, (n_actions,), np.int8), "seen": VECTOR})


_lstm = partial(replace, SMALL, recurrence="lstm", recurrent_size=8)
_normalized = partial(replace, SMALL, normalize_observations=True)
_stacked = partial(replace, SMALL, frame_stack=3)

CASES: Mapping[str, Case] = {
    "impala": Case(kind="impala"),
    "impala: rmsprop, normalised advantages": Case(
        kind="impala", settings={"optimizer": "rmsprop", "normalize_advantages": True}
    ),
    "impala: box, all normalised": Case(
        kind="impala", action=PUSHES, spec=_normalized(), settings={"normalize_rewards": True}
    ),
    "impala: mixed observations, several actions": Case(
        kind="impala", observation=MIXED, action=MultiDiscrete([3, 2], start=[1, 0]), spec=_normalized()
    ),
    "impala: binary actions": Case(kind="impala", action=MultiBinary(2)),
    "impala: masks": Case(kind="impala", observation=_masked(2)),
    "impala: memory": Case(kind="impala", spec=_lstm()),
    "impala: actions of others": Case(
        kind="impala", overridden=True, settings={"normalize_advantages": True, "normalize_rewards": True}
    ),
    "impala: gru, frame stacks": Case(kind="impala", spec=_stacked(recurrence="gru", recurrent_size=8)),
    "impala: images": Case(kind="impala", observation=PIXELS, spec=_stacked(), settings={"share_torso": True}),
    "impala: residual network": Case(kind="impala", observation=PIXELS, spec=replace(SMALL, network="impala_resnet")),
    "ppo": Case(kind="ppo"),
    "ppo: box, all normalised": Case(
        kind="ppo",
        action=PUSHES,
        spec=_normalized(),
        settings={"normalize_rewards": True, "clip_range_value": 0.2},
    ),
    "ppo: a smaller last minibatch": Case(kind="ppo", settings={"minibatch_steps": 10}),
    "ppo: memory": Case(kind="ppo", spec=_lstm()),
    "ppo: images": Case(kind="ppo", observation=PIXELS, spec=_stacked(), settings={"share_torso": True}),
    "ppo: masks": Case(kind="ppo", observation=_masked(2)),
    "ppo: two substeps": Case(kind="ppo", n_substeps=2, spec=_normalized()),
    "appo": Case(kind="appo"),
    "appo: actions of others": Case(kind="appo", overridden=True),
    "appo: memory": Case(kind="appo", spec=_lstm()),
    "dqn": Case(kind="dqn", weights=True, settings={"epsilon_end": 0.01}),
    "dqn: masks, normalised": Case(kind="dqn", observation=_masked(2), spec=_normalized()),
    "dqn: mixed observations": Case(kind="dqn", observation=MIXED, action=Discrete(2, start=3)),
    "dqn: images": Case(kind="dqn", observation=PIXELS, spec=_stacked()),
    "dqn: two substeps": Case(kind="dqn", n_substeps=2),
    "r2d2": Case(kind="r2d2", spec=_lstm(), weights=True),
    "r2d2: gru, masks, frame stacks": Case(
        kind="r2d2", observation=_masked(2), spec=_stacked(recurrence="gru", recurrent_size=8)
    ),
    "sac: discrete": Case(kind="sac", weights=True),
    "sac: discrete, masks": Case(kind="sac", observation=_masked(2)),
    "sac: box": Case(kind="sac", action=PUSHES, weights=True, spec=_normalized()),
    "sac: box, ensemble": Case(
        kind="sac",
        action=PUSHES,
        settings={"n_critics": 4, "target_critics": 2, "critic_layer_norm": True},
    ),
    "sac: images": Case(kind="sac", observation=PIXELS, action=PUSHES, spec=_stacked()),
    "sac: two substeps": Case(kind="sac", n_substeps=2, action=PUSHES),
}

# One for each set of parts that a checkpoint has.
PARTS = [
    "impala: rmsprop, normalised advantages",
    "impala: box, all normalised",
    "impala: images",
    "ppo: memory",
    "ppo: two substeps",
    "appo",
    "dqn: masks, normalised",
    "dqn: two substeps",
    "r2d2",
    "sac: discrete",
    "sac: box",
    "sac: box, ensemble",
]


def same_state(one: PolicyState, other: PolicyState) -> bool:
    """Returns True if two policies have the same arrays, to the bit."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def without_noise(algorithm: Algorithm) -> PolicyState:
    """Returns the policy, without what a resumed run sets again."""
    return {name: array for name, array in algorithm.policy_state().items() if not name.startswith("exploration.")}
