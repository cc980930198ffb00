"""A learner that can train so many steps a second, with actors that play so many each."""

from dataclasses import dataclass

from rollcast.tools.scaling.waits import Waits


@dataclass
class SimulatedLearner:
    """`needed` actors keep the trainer busy; with `cores`, more actors than that play no more."""

    needed: float
    cores: float = float("inf")

    def waits(self, n_actors: int) -> Waits:
        playing = min(n_actors, self.cores)
        return Waits(
            learner=max(0.0, 1 - playing / self.needed),
            actors=1.0 if playing > self.needed else 0.0,
            n_actors=n_actors,
            env_steps_per_second=1000 * min(playing, self.needed),
        )
