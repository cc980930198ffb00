"""Makes the seeds of all actors of a run: for their environments, and for sampling their actions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rollcast.actor.seeds import derive_seed
from rollcast.services.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ActorSeeds:
    """The seeds of all actors of one run.

    Attributes:
        run_seed: The seed from which missing seeds are derived.
        env_seeds: Seeds of the environments by slot; further slots have derived seeds.
        agent_seeds: Seeds for sampling actions, in the same order.
    """

    run_seed: int
    env_seeds: tuple[int, ...] = ()
    agent_seeds: tuple[int, ...] = ()

    @classmethod
    def for_actors(
        cls, run_seed: int, n_actors: int, *, env_seeds: Sequence[int] | None, agent_seeds: Sequence[int] | None
    ) -> Self:
        """Returns the seeds of a fixed number of actors.

        Args:
            run_seed: See the attribute.
            n_actors: The number of actors.
            env_seeds: One seed for each actor; None: all are derived.
            agent_seeds: Like `env_seeds`.

        Raises:
            ConfigurationError: The number of seeds is not `n_actors`.
        """
        return cls(
            run_seed,
            _one_each("actor_env_seeds", env_seeds, n_actors),
            _one_each("actor_agent_seeds", agent_seeds, n_actors),
        )

    def of(self, slot: int, incarnation: int) -> tuple[int, int]:
        """Returns the seeds of an actor's environments and of its sampling.

        Given seeds apply to the first incarnation. A restarted process of the same name would repeat the episodes, so
        its seeds derive from (run seed, slot, incarnation).

        Args:
            slot: The actor's slot, from 0.
            incarnation: The number of processes under its name, including this one; from 1.
        """
        env_seed, agent_seed = (
            given[slot]
            if incarnation == 1 and slot < len(given)
            else derive_seed(self.run_seed, which, slot, incarnation)
            for which, given in enumerate((self.env_seeds, self.agent_seeds))
        )
        return env_seed, agent_seed


def _one_each(name: str, seeds: Sequence[int] | None, n_actors: int) -> tuple[int, ...]:
    if seeds is None:
        return ()
    if len(seeds) != n_actors:
        raise ConfigurationError(f"{name} has {len(seeds)} entries; expected n_actors = {n_actors}, one each")
    return tuple(seeds)
