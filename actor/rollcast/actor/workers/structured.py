"""Steps structured environments with a policy, and records a rollout for each substep."""

from collections.abc import Callable, Sequence

from rollcast.actor.environments.structured import Turn
from rollcast.actor.vector.structured import StructuredVectorEnv
from rollcast.actor.workers.substeps import SubstepWorker


class StructuredRolloutWorker(SubstepWorker[StructuredVectorEnv]):
    """A worker that collects rollouts of T steps, one for each substep in turn.

        worker = StructuredRolloutWorker(vector_env, policy, 32, actor_id="a", incarnation=1, env_seed=0)
        rollout = worker.collect()

    All agents of all environments that act in the same substep act in one batch. For arguments and invariants, see
    `RolloutWorker` and `SubstepWorker`.

    Raises:
        ConfigurationError: If a number is wrong, or the policy lacks a substep.
    """

    def _prepare(self, env_seed: int | Sequence[int]) -> None:
        super()._prepare(env_seed)
        # The current turn of each environment; empty before the first `collect`.
        self._turns: list[Turn] = []

    def _play(self, should_stop: Callable[[], bool] | None) -> bool:
        """Steps every environment until it has to wait; returns False if `should_stop` returned True."""
        if not self._turns:
            self._turns = [self._vector_env.reset(index, seed=seed) for index, seed in enumerate(self._env_seeds)]
            for index, turn in enumerate(self._turns):
                self._begin(index, turn)
        while ready := {index: turn for index, turn in enumerate(self._turns) if self._may_go_on(index, turn)}:
            if should_stop is not None and should_stop():
                return False
            actions = self._act(ready)
            if self._policy_events is not None:
                self._policy_events.end_step()
            for index in ready:
                turn = self._vector_env.step(index, actions[index])
                if turn.is_dropped:
                    self.dropped_episodes += 1
                    self._drop(index)
                else:
                    self._record(index, turn)
                if turn.observations:
                    self._turns[index] = turn
                    self._see(index, turn)
                else:
                    self._turns[index] = self._vector_env.reset(index)
                    self._begin(index, self._turns[index])
        return True

    def _may_go_on(self, index: int, turn: Turn) -> bool:
        """Returns whether an environment can continue from a turn before the rollout ends."""
        return self._has_room(index, turn) and not self._has_all_rows(index)
