"""The turns of rollouts that wait for room."""

from collections.abc import Callable

from rollcast.services.rollouts.rollouts import Rollout


class Turn:
    """The place of a rollout among those that wait for room; its queue alone changes it.

    Attributes:
        rollout: The rollout.
        arrived_at: The time at which it came, by `time.monotonic`.
        is_in: Whether it is in the queue; None: it waits.

    Args:
        rollout: The rollout.
        arrived_at: The time at which it came.
        decided: Called once when the wait is over, with the queue's lock held: it must not call the queue.
    """

    __slots__ = ("_decided", "arrived_at", "is_in", "rollout")

    def __init__(self, rollout: Rollout, arrived_at: float, decided: Callable[[], None]) -> None:
        self.rollout = rollout
        self.arrived_at = arrived_at
        self.is_in: bool | None = None
        self._decided = decided

    def decide(self, *, is_in: bool) -> None:
        """Ends the wait.

        Args:
            is_in: Whether the rollout is in the queue.
        """
        self.is_in = is_in
        self._decided()
