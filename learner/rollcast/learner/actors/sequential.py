"""Actors that play in turn in the trainer's thread: for debugging, and for bit-identical runs."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from rollcast.actor.environments.device import device_of
from rollcast.actor.environments.make import EnvFactory
from rollcast.actor.playing.evaluate import Evaluation, evaluate_against, evaluate_as_planned
from rollcast.actor.policies.base import Policy
from rollcast.actor.policies.make import make_policy
from rollcast.actor.policies.networks import check_default_dtype
from rollcast.actor.policies.trainable import TorchPolicy
from rollcast.actor.vector.make import WORKER_INFO_KEYS, make_vector_env
from rollcast.actor.workers.base import Worker
from rollcast.actor.workers.make import make_worker
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.learner.serving.evaluations import EvaluatedPolicy, EvaluationResult, EvaluatorsInfo
from rollcast.learner.serving.seeds import ActorSeeds
from rollcast.services.errors import ActorFailedError, CollectInterruptedError
from rollcast.services.joining.evaluation import EvaluationActions, EvaluationPlan
from rollcast.services.policies.policies import PolicyState

logger = logging.getLogger(__name__)


def _name(slot: int) -> str:
    return f"sequential-{slot}"


@contextlib.contextmanager
def _naming(slot: int) -> Iterator[None]:
    """Adds the actor's name to its error, as for actors in other processes."""
    try:
        yield
    except ActorFailedError as error:
        error.args = (f"actor {_name(slot)} failed: {error}",)
        raise


class SequentialDistributedActors(DistributedActors):
    """Actors that play one rollout each, in turn, when trajectories are missing. Equal seeds give bit-identical runs.

    Args:
        env_factory: Makes one environment.
        policy: The policy to sample actions from.
        n_rollout_steps: T.
        n_actors: The number of actors that take turns.
        batch_size: B, in trajectories.
        actor_env_seeds: One seed per actor for its environments; None derives them from `seed`.
        actor_agent_seeds: One seed per actor for its sampling of actions; None derives them from `seed`.
        envs_per_actor: The environments that each actor steps at once.
        seed: The seed from which missing seeds are derived.
        evaluation: The evaluation of each due policy, also played in this thread; None: no policy is evaluated.
        deterministic: True: bit-identical to other kinds of deterministic actors.

    Raises:
        ConfigurationError: A number or the seeds are invalid.
    """

    resumes_in_step = True

    def __init__(
        self,
        env_factory: EnvFactory,
        policy: TorchPolicy,
        n_rollout_steps: int,
        n_actors: int,
        batch_size: int,
        actor_env_seeds: Sequence[int] | None = None,
        actor_agent_seeds: Sequence[int] | None = None,
        *,
        envs_per_actor: int = 1,
        seed: int = 0,
        evaluation: EvaluationPlan | None = None,
        deterministic: bool = False,
    ) -> None:
        super().__init__(env_factory, policy, n_rollout_steps, n_actors, batch_size, deterministic=deterministic)
        self._env_factory = env_factory
        self._envs_per_actor = envs_per_actor
        self._seeds = ActorSeeds.for_actors(seed, n_actors, env_seeds=actor_env_seeds, agent_seeds=actor_agent_seeds)
        # Each checkpoint begins a new incarnation, with seeds of its own.
        self._incarnation = 1
        self._workers: list[tuple[Worker[Any], Policy]] = []
        # The episodes that workers dropped that are closed.
        self._dropped_before = 0
        self._turn = 0
        self._queue: deque[RolloutSlice] = deque()
        self._version = 0
        self._newest: PolicyState = {}
        self._evaluation = evaluation
        self._evaluations: list[EvaluationResult] = []
        self._evaluation_error = ""

    def start(self) -> None:
        """Makes the environments and the policies."""
        if self._workers:
            return
        self._version = self._versions_before
        self._make_workers()

    def state(self) -> dict[str, Any]:
        """See `DistributedActors.state`; a resumed run begins with the next incarnation, like `renew`."""
        return super().state() | {"incarnation": self._incarnation + 1}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `DistributedActors.load_state`."""
        super().load_state(state)
        self._version = self._versions_before
        self._incarnation = state["incarnation"]

    def renew(self) -> bool:
        """Remakes all environments with other seeds, like a resumed run, because environments cannot be saved.

        Drops trajectories that are not collected yet. Unfinished episodes do not count.
        """
        self.stop()
        self._incarnation += 1
        self._make_workers()
        return True

    def _make_workers(self) -> None:
        """Makes the environments and the policies, and publishes the policy to them."""
        for slot in range(self.n_actors):
            env_seed, agent_seed = self._seeds.of(slot, self._incarnation)
            vector_env = make_vector_env(self._env_factory, self._envs_per_actor, info_keys=WORKER_INFO_KEYS)
            policy = make_policy(
                self.policy.spaces,
                self.policy.spec,
                seed=agent_seed,
                allowed_network=self.policy.spec.network,
                device=device_of(vector_env),
                slot=slot,
            )
            worker = make_worker(
                vector_env,
                policy,
                self.n_rollout_steps,
                actor_id=_name(slot),
                incarnation=self._incarnation,
                env_seed=env_seed,
            )
            self._workers.append((worker, policy))
        self.broadcast_updated_policy(self.policy.state_arrays())

    def stop(self) -> None:
        """Closes the environments."""
        self._dropped_before = self.dropped_episodes
        for worker, _ in self._workers:
            worker.close()
        self._workers.clear()
        self._queue.clear()
        self._assembly = None
        self._turn = 0

    def broadcast_updated_policy(self, state_dict: PolicyState) -> None:
        """Loads the next version into every actor, which uses it from its next rollout on."""
        self._version += 1
        self._newest = state_dict
        for worker, policy in self._workers:
            policy.load(self._version, state_dict)
            worker.set_progress(self.progress)

    @property
    def evaluators(self) -> EvaluatorsInfo:
        """One evaluator, this thread, if an evaluation is planned; otherwise none."""
        return EvaluatorsInfo(n_alive=int(self._evaluation is not None), last_error=self._evaluation_error)

    def evaluate_newest(self, env_steps: int, opponents: Mapping[int, PolicyState] = MappingProxyType({})) -> None:
        """Plays the evaluation's episodes now, in a separate environment, and keeps the result.

        Raises:
            CollectInterruptedError: Training must end.
        """
        plan = self._evaluation
        if plan is None:
            return
        make = partial(
            make_policy, self.policy.spaces, self.policy.spec, seed=plan.seed, allowed_network=self.policy.spec.network
        )
        policy = make()
        policy.load(self._version, self._newest)
        began = time.monotonic()
        played: Mapping[EvaluationActions, Evaluation] = {}
        against: Mapping[int, Evaluation] = {}
        try:
            with self.waiting.waiting_for("an evaluation that is played in this thread"):
                if plan.opponents:
                    against = evaluate_against(
                        self._env_factory, policy, opponents, plan, make, on_step=self._check_interrupted
                    )
                else:
                    played = evaluate_as_planned(self._env_factory, policy, plan, on_step=self._check_interrupted)
        except ActorFailedError as error:
            self._evaluation_error = str(error)
            logger.error("the evaluation of version %d failed: %s; training continues", self._version, error)  # noqa: TRY400
            return
        self._evaluation_error = ""
        self._evaluations.append(
            EvaluationResult(
                policy=EvaluatedPolicy(
                    version=self._version, env_steps=env_steps, state=self._newest, opponents=tuple(opponents)
                ),
                played=played,
                against=against,
                seconds=time.monotonic() - began,
            )
        )

    def take_evaluations(self) -> Sequence[EvaluationResult]:
        """See `DistributedActors.take_evaluations`."""
        results, self._evaluations = self._evaluations, []
        return results

    def _check_interrupted(self) -> None:
        if self.interrupted:
            raise CollectInterruptedError("the evaluation was interrupted, because training ends")

    @property
    def policy_version(self) -> int:
        """The newest published version."""
        return self._version

    @property
    def queue_size(self) -> int:
        """The number of trajectories of the last rollout that the last batch did not need."""
        return sum(piece.n_trajectories for piece in self._queue)

    @property
    def queue_capacity(self) -> int:
        """The number of trajectories in one rollout: no rollout is played ahead."""
        return self._envs_per_actor

    @property
    def n_actors_alive(self) -> int:
        """The number of actors, after `start`."""
        return len(self._workers)

    @property
    def dropped_episodes(self) -> int:
        """The number of episodes that were dropped because their environment raised."""
        return self._dropped_before + sum(worker.dropped_episodes for worker, _ in self._workers)

    def poll_slice(self, max_trajectories: int) -> RolloutSlice | None:
        """Takes the rest of the last rollout; no rollout is played ahead."""
        return self.next_slice(max_trajectories) if self._queue else None

    def next_slice(self, max_trajectories: int, *, enough: int = 1) -> RolloutSlice:
        """Takes trajectories from the last rollout. If none is left, the next actor plays a rollout."""
        if not self._queue:
            slot = self._turn
            worker, _ = self._workers[slot]
            self._turn = (self._turn + 1) % self.n_actors
            with self.waiting.waiting_for("a rollout that is played in this thread"), _naming(slot):
                rollout = worker.collect(lambda: self.interrupted)
            check_default_dtype()
            if rollout is None:
                raise CollectInterruptedError("collecting was interrupted, because training ends")
            self._queue.append(RolloutSlice(rollout, 0, rollout.n_envs))
        piece, rest = self._queue.popleft().cut(max_trajectories)
        if rest is not None:
            self._queue.appendleft(rest)
        return piece
