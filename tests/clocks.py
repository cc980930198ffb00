"""A clock that stands still unless a test moves it."""


class Clock:
    """Tells the time that it was given.

    Attributes:
        now: The time, in seconds.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
