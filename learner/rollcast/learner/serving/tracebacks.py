"""Writes failures for the log, without a traceback that the log has just shown."""

from rollcast.services.joining.activity import ActorFailure


class Tracebacks:
    """The texts of failures for the log: a traceback that equals the previous one is not repeated. Not thread-safe."""

    def __init__(self) -> None:
        self._last = ""

    def text_of(self, failure: ActorFailure) -> str:
        """Returns the text that follows `actor NAME failed:`, with the traceback if the previous failure had another.

        Args:
            failure: The failure.
        """
        is_new, self._last = failure.traceback != self._last, failure.traceback
        return f"\n{failure.traceback}" if is_new else f" {failure.exception_type}, with the same traceback as before"
