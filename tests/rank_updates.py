"""Updates of every algorithm on two ranks, and the same updates by one learner: what `test_reduction` compares.

`python -m tests.rank_updates FOLDER` is one rank; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say which.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.numpy import save_file
from torch.overrides import TorchFunctionMode

from rollcast.learner.algorithms.observation_statistics import observe_batch
from rollcast.learner.algorithms.one_policy import OnePolicy
from rollcast.learner.batch import Batch, BatchColumns
from rollcast.learner.ranks.group import RankGroup
from rollcast.learner.ranks.rank_info import rank_info
from rollcast.learner.ranks.reduction import GradientReduction, RankReduction
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces
from tests.batches import BOX_SPACES, SPACES, B, make_batch, recurrent_batch, transition_batch
from tests.every_algorithm import make_algorithm
from tests.learnt import learnt

W: Final = 2
N_UPDATES: Final = 3
N_STEPS, N_ENVS = 5, 4
SPEC: Final = PolicySpec(hidden_sizes=(16, 16), activation="tanh", normalize_observations=True)
RECURRENT: Final = PolicySpec(hidden_sizes=(16,), activation="tanh", recurrence="gru", recurrent_size=4)
# Adam divides by a gradient's size: without this, gradients of rounding's size would move parameters by whole steps.
EPSILON: Final = 1e-3
# Clips: the norms are those of the sum over the ranks. Rank 1 alone would be clipped otherwise.
CLIPS: Final = {"max_grad_norm": 0.05}
OF_PPO: Final[dict[str, Any]] = {
    **CLIPS,
    "optimizer_epsilon": EPSILON,
    "minibatch_steps": 10,
    "n_epochs": 3,
    "normalize_rewards": True,
    "normalize_advantages": True,
}


def _trajectories(seed: int, *, recurrent: bool = False, overrides: bool = False) -> Batch:
    """Returns trajectories in which some rows are no transitions: rank 1 has fewer than rank 0.

    With `overrides`, no policy chose most actions of rank 1.
    """
    valid = torch.ones(N_STEPS, N_ENVS, dtype=torch.bool)
    valid[: seed % 4, 0] = False
    truncated = torch.zeros(N_STEPS, N_ENVS, dtype=torch.bool)
    truncated[2, 3] = True
    given: dict[str, Any] = {
        "seed": seed,
        "valid": valid,
        "truncated": truncated,
        "final_index": torch.tensor([[2, 3]]),
        "final_observation": torch.full((1, 3), 0.1 * seed),
    }
    if overrides and seed % W:
        given["overridden"] = torch.rand(N_STEPS, N_ENVS, generator=torch.Generator().manual_seed(seed)) < 0.7
    return recurrent_batch(4, **given) if recurrent else make_batch(n_steps=N_STEPS, n_envs=N_ENVS, **given)


def _transitions(seed: int, *, box: bool = False) -> Batch:
    weights = torch.rand(B, generator=torch.Generator().manual_seed(seed + 100))
    return transition_batch(box=box, seed=seed, weights=weights)


@dataclasses.dataclass(frozen=True)
class Case:
    """An algorithm, and the batches of one rank in each update."""

    kind: str
    batch: Callable[[int], Batch] = _trajectories
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    spaces: EnvironmentSpaces = dataclasses.field(default_factory=lambda: SPACES)
    spec: PolicySpec = SPEC

    def make(self, **changes: Any) -> OnePolicy[Any]:
        """Makes the algorithm, with changed settings."""
        settings = {**self.settings, **changes}
        made: OnePolicy[Any] = make_algorithm(self.kind, self.spaces, self.spec, seed=1, **settings)
        return made


OF_IMPALA: Final[dict[str, Any]] = {
    "optimizer": "adam",
    **{name: OF_PPO[name] for name in OF_PPO.keys() - {"minibatch_steps", "n_epochs"}},
}
OF_DQN: Final = {**CLIPS, "adam_epsilon": EPSILON}
CASES: Final[dict[str, Case]] = {
    "impala": Case("impala", settings=OF_IMPALA),
    "ppo": Case("ppo", settings=OF_PPO),
    # The last minibatch of a rank has one step.
    "ppo_rest": Case("ppo", settings={**OF_PPO, "minibatch_steps": 19}),
    # The passes end early, by the KL of both ranks.
    "ppo_kl": Case("ppo", settings={**OF_PPO, "learning_rate": 3e-3, "target_kl": 1e-4}),
    "appo": Case("appo", settings=OF_PPO),
    **{
        f"{kind}_overridden": Case(kind, partial(_trajectories, overrides=True), settings)
        for kind, settings in (("impala", OF_IMPALA), ("ppo", OF_PPO), ("appo", OF_PPO))
    },
    "dqn": Case("dqn", _transitions, {**OF_DQN, "target_update_interval": 2}),
    "r2d2": Case("r2d2", partial(_trajectories, recurrent=True), OF_DQN, spec=RECURRENT),
    "sac_discrete": Case("sac", _transitions, CLIPS),
    "sac": Case("sac", partial(_transitions, box=True), CLIPS, BOX_SPACES),
}


def nothing_of(batch: Batch) -> Batch:
    """Returns the batch of a rank that has no data: none of its rows is a transition."""
    return dataclasses.replace(batch, valid=torch.zeros_like(batch.valid), n_env_steps=0)


def batch_of(case: Case, update: int, rank: int) -> Batch:
    """Returns the batch of a rank; in the last update, rank 1 has no data."""
    batch = case.batch(W * update + rank)
    return nothing_of(batch) if update == N_UPDATES - 1 and rank == 1 else batch


def together(batches: list[Batch]) -> Batch:
    """Returns the batch of one learner that has the trajectories of all ranks, those of rank 0 first.

    A buffer without data gives no transitions; rows of trajectories that are none count as little as those of no rank.
    """
    if batches[0].reward.shape[0] == 1:
        batches = [batch for batch in batches if batch.n_env_steps]

    def joined(name: str, holder: Any = None) -> Any:
        parts = [getattr(batch if holder is None else holder(batch), name) for batch in batches]
        if parts[0] is None:
            return None
        if isinstance(parts[0], dict):
            return {path: _cat(name, [part[path] for part in parts]) for path in parts[0]}
        return _cat(name, parts)

    overridden = [torch.zeros_like(b.valid) if b.overridden is None else b.overridden for b in batches]
    index = [batch.final_index.clone() for batch in batches]
    for rank, own in enumerate(index):
        own[:, 1] += rank * batches[0].reward.shape[1]
    columns = BatchColumns(
        **{
            field.name: joined(field.name, lambda batch: batch.substeps["0"])
            for field in dataclasses.fields(BatchColumns)
        }
    )
    return dataclasses.replace(
        batches[0],
        substeps={"0": columns},
        **{name: joined(name) for name in ("reward", "terminated", "truncated", "valid", "weights")},
        overridden=torch.cat(overridden, dim=1) if any(mask.any() for mask in overridden) else None,
        final_index=torch.cat(index),
        policy_version=np.concatenate([batch.policy_version for batch in batches]),
        n_env_steps=sum(batch.n_env_steps for batch in batches),
    )


_BY_TRAJECTORY: Final = ("last_observation", "final_observation", "initial_state", "weights")


def _cat(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(parts, dim=0 if name in _BY_TRAJECTORY else 1)


def learn(algorithm: OnePolicy[Any], batches: Iterable[Batch]) -> dict[str, np.ndarray[Any, Any]]:
    """Makes the updates; returns the parameters, the moments and the metrics."""
    results: dict[str, np.ndarray[Any, Any]] = {}
    for i, batch in enumerate(batches):
        metrics = algorithm.update(batch, progress=i / N_UPDATES)
        observe_batch(algorithm.policy, batch)
        algorithm.share_observations()
        results |= {f"metrics/{i}/{name}": np.asarray(float(value)) for name, value in metrics.items()}
    return results | {
        name: array.numpy()
        for name, array in learnt(algorithm).items()
        if "optimizer" not in name and name != "generator"
    }


class AsRank(GradientReduction):
    """Gives an algorithm the noise of a rank, without any other rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    @property
    def rank(self) -> int:
        return self._rank


class DrawnByRanks(TorchFunctionMode):
    """Replaces what one learner draws by what the ranks draw together, in the order of `together`."""

    def __init__(self, case: Case) -> None:
        self._minibatch_steps = case.settings.get("minibatch_steps", 1)
        self._generators = []
        for rank in range(W):
            algorithm = case.make()
            algorithm.join_ranks(AsRank(rank))
            self._generators.append(torch.Generator())
            if (state := learnt(algorithm).get("generator")) is not None:
                self._generators[-1].set_state(state)
        super().__init__()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.randperm:
            return self._permutation(*args)
        if func is torch.randn:
            (n_rows, *others), *_ = args
            # an empty batch draws nothing
            return torch.cat([func((B, *others), generator=its) for its in self._generators[: n_rows // B]])
        return func(*args, **kwargs or {})

    def _permutation(self, n_items: int) -> torch.Tensor:
        minibatches = (
            torch.randperm(n_items // W, generator=its).split(self._minibatch_steps) for its in self._generators
        )
        return torch.cat(
            [
                index // N_ENVS * W * N_ENVS + rank * N_ENVS + index % N_ENVS
                for of_ranks in zip(*minibatches, strict=True)
                for rank, index in enumerate(of_ranks)
            ]
        )


def learn_alone(case: Case) -> dict[str, np.ndarray[Any, Any]]:
    """Makes the updates of one learner that has the batches, the minibatches and the noise of all ranks."""
    size = case.settings.get("minibatch_steps")
    algorithm = case.make(**({} if size is None else {"minibatch_steps": W * size}))
    batches = [together([batch_of(case, i, rank) for rank in range(W)]) for i in range(N_UPDATES)]
    with DrawnByRanks(case):
        return learn(algorithm, batches)


def main(folder: Path) -> None:
    """Makes the updates of one rank, and writes what came of them."""
    place = rank_info(os.environ)
    assert place is not None
    torch.set_num_threads(1)
    with RankGroup(place, timeout_s=60.0) as group:
        group.begin("gloo")
        for name, case in CASES.items():
            algorithm = case.make()
            if place.rank:  # other parameters, until those of rank 0 replace them
                with torch.no_grad():
                    for parameter in algorithm.policy.parameters():
                        parameter.add_(1.0)
            algorithm.join_ranks(RankReduction(group))
            results = learn(algorithm, (batch_of(case, i, place.rank) for i in range(N_UPDATES)))
            save_file(
                {key: np.ascontiguousarray(value) for key, value in results.items()},
                folder / f"{name}-{place.rank}.safetensors",
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
