"""Sorts rollouts by sequence and slot, regardless of their order of arrival."""

from collections.abc import Callable

from rollcast.learner.queueing.queue import RolloutSlice
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import EnvironmentSpaces


class SlotOrder:
    """A sorter of whole rollouts: by sequence, then by the actor's slot. For one thread.

    If actors play rollout s with policy version s, a batch of one rollout per actor is the same in every run. The
    actors' speeds have no effect.

    Args:
        n_slots: The number of actors; their slots start at 0.
        slot_of: Returns the slot of an actor of a given name.
    """

    def __init__(self, n_slots: int, slot_of: Callable[[str], int]) -> None:
        self._n_slots = n_slots
        self._slot_of = slot_of
        self._arrived: dict[tuple[int, int], RolloutSlice] = {}
        # The remaining trajectories of the current rollout.
        self._rest: RolloutSlice | None = None
        self._sequence, self._slot = 1, 0

    def add(self, piece: RolloutSlice) -> None:
        """Adds a whole rollout."""
        self._arrived[piece.rollout.sequence, self._slot_of(piece.rollout.actor_id)] = piece

    def take(self, max_trajectories: int) -> RolloutSlice | None:
        """Returns up to `max_trajectories` trajectories of the next rollout; None until it arrives."""
        turn = self._rest
        if turn is None:
            turn = self._arrived.pop((self._sequence, self._slot), None)
            if turn is None:
                return None
            self._slot += 1
            if self._slot == self._n_slots:
                self._sequence, self._slot = self._sequence + 1, 0
        piece, self._rest = turn.cut(max_trajectories)
        return piece


def trajectories_of_an_actor(spaces: EnvironmentSpaces, envs_per_actor: int) -> int:
    """Returns the number of trajectories in a rollout.

    Raises:
        ConfigurationError: The environment has several substeps.
    """
    if len(spaces) > 1:
        raise ConfigurationError(
            f"deterministic collecting of the substeps {sorted(spaces)} is not supported; expected one: omit "
            "--deterministic, or let the agents share a policy"
        )
    (substep,) = spaces.values()
    return envs_per_actor * substep.n_agents


def actors_in_step(spaces: EnvironmentSpaces, batch_size: int, envs_per_actor: int) -> int:
    """Returns the number of actors that fill a batch with one rollout each.

    Raises:
        ConfigurationError: `batch_size` is not a multiple of an actor's trajectories, or the environment has several
            substeps.
    """
    n_trajectories = trajectories_of_an_actor(spaces, envs_per_actor)
    if batch_size % n_trajectories:
        raise ConfigurationError(
            f"batch_size is {batch_size}, and an actor collects {n_trajectories} trajectories at once; deterministic "
            "collecting expects a multiple, so that every actor collects one rollout for each batch; change one of them"
        )
    return batch_size // n_trajectories
