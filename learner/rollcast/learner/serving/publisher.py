"""Publishes policies: encodes each version in a thread, and serves the newest one."""

import threading
from contextlib import AbstractContextManager
from typing import Final

from rollcast.learner.serving.acting import BatchedActing
from rollcast.services.errors import NotReadyError
from rollcast.services.policies.codec import EncodedPolicy, encode_policy
from rollcast.services.policies.evaluated import OnEnd, WaitForVersion
from rollcast.services.policies.policies import PolicySpec, PolicyState
from rollcast.services.policies.subscribers import Subscribers
from rollcast.services.spaces.spaces import EnvironmentSpaces

# The longest time for encoding a version: 1 GiB takes a few seconds.
_ENCODE_TIMEOUT_S: Final = 60.0


class PolicyPublisher:
    """The newest policy, encoded: a `rollcast.services.policies.service.PolicySource`.

    `publish` hands a version over and returns. The encoder's thread reads the version's arrays, which a device may
    still be writing, and encodes them. If versions arrive faster than the thread encodes them, the thread skips some,
    unless `every_version` is set. A reader gets at least the newest version at the time of its call.

    Invariant: versions increase by one with each hand-over, unless the caller gives the version, and each is encoded at
    most once. If training has diverged, a version cannot be encoded. Then no further version is published, and the
    trainer's next call raises the error.

    The trainer's thread calls `publish`, `check`, `settle`, `newest_with_state`, `end` and `close`. Any thread may call
    the other methods.

    Attributes:
        spaces: See Args.
        state_size: S, the size of a recurrent policy's state; 0 for other policies.
        frame_stack: K, the number of stacked frames in an observation.
        want: Notes that an actor waits for a version; see `Subscribers.want`.
        pause: Notes that an actor needs no version before its next credit; see `Subscribers.pause`.
        act: Acts with the newest version; see `BatchedActing.act`.
        act_status: Returns the number and the durations of the calls of `act`.

    Args:
        spaces: The spaces of the policy's observations and actions.
        spec: The policy's architecture.
        seed: The seed of the sampling in `act`.
        first_version: The number of the first published version.
        every_version: True: every version is encoded, and `publish` waits for the previous one.
    """

    def __init__(
        self,
        spaces: EnvironmentSpaces,
        spec: PolicySpec,
        *,
        seed: int,
        first_version: int = 1,
        every_version: bool = False,
    ) -> None:
        self.spaces = spaces
        self.state_size, self.frame_stack = spec.state_size, spec.frame_stack
        self._every_version = every_version
        self._next_version = first_version
        # Guards the six below. Subscribers do not wait here, so that a version wakes only the encoder.
        self._changed = threading.Condition()
        self._handed: tuple[int, PolicyState, float] | None = None  # not yet taken by the encoder
        self._version = 0
        self._newest: tuple[EncodedPolicy, PolicyState] | None = None
        self._error: BaseException | None = None
        self._is_closing = False
        self._encoder: threading.Thread | None = None
        self._subscribers = Subscribers()
        self.want, self.take, self.pause = self._subscribers.want, self._subscribers.take, self._subscribers.pause
        self.sent_version = self._subscribers.sent_version
        acting = BatchedActing(spaces, spec, self._newest_weights, seed=seed)
        self.act, self.act_status = acting.act, acting.status

    @property
    def version(self) -> int:
        """The newest version, whether or not it is encoded yet; 0 before the first."""
        return self._version

    @property
    def ended(self) -> bool:
        """True once no further version will come."""
        return self._subscribers.ended

    def publish(self, state: PolicyState, progress: float = 0.0, *, version: int | None = None) -> int:
        """Passes a new version to the encoder, and returns its number.

        Args:
            state: Its arrays. They must not change, because another thread reads them later.
            progress: The progress of training, in [0, 1].
            version: Its number, if another process assigns numbers; None: the next number.

        Raises:
            RollcastError: Encoding the previous version failed: training has diverged, or an array's dtype is not
                supported.
            NotReadyError: `every_version` is set, and the previous version is not encoded in time.
        """
        if self._every_version:
            self.settle()
        with self._changed:
            self._raise_error()
            self._version = self._next_version if version is None else version
            self._next_version = self._version + 1
            self._handed = self._version, state, progress
            if self._encoder is None:
                self._encoder = threading.Thread(target=self._encode_all, name="rollcast-encoder", daemon=True)
                self._encoder.start()
            self._changed.notify_all()
            return self._version

    def check(self) -> None:
        """Raises the encoder's error, if encoding has failed."""
        with self._changed:
            self._raise_error()

    def settle(self) -> None:
        """Waits until the newest version is encoded.

        Raises:
            RollcastError: The version cannot be encoded.
            NotReadyError: The version is not encoded in time.
        """
        with self._changed:
            self._await_version(self._version)
            self._raise_error()

    def newest_with_state(self) -> tuple[EncodedPolicy, PolicyState]:
        """Returns the newest version and its arrays.

        Raises:
            RollcastError: The version cannot be encoded.
            NotReadyError: No version has been published yet, or it is not encoded in time.
        """
        self.settle()
        return self._require_newest()

    def end(self) -> None:
        """Encodes the newest version, marks it as the last version, and wakes every subscriber."""
        self.close()
        self._subscribers.end()

    def close(self) -> None:
        """Encodes the newest version, and ends the encoder's thread. Does nothing after the first call."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            encoder, self._encoder = self._encoder, None
        if encoder is not None:
            encoder.join(_ENCODE_TIMEOUT_S)

    def newest(self) -> EncodedPolicy:
        """Returns the newest version.

        Raises:
            NotReadyError: No version has been published yet, or it is not encoded in time.
        """
        return self._require_newest()[0]

    def subscription(
        self, *, after_version: int, actor_id: str = "", on_end: OnEnd | None = None
    ) -> AbstractContextManager[WaitForVersion]:
        """See `rollcast.services.policies.service.PolicySource.subscription`."""
        return self._subscribers.subscription(after_version, actor_id, on_end)

    def _encode_all(self) -> None:
        """Thread: encodes each newest version until the publisher is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._handed is not None or self._is_closing)
                if self._handed is None:
                    return
                (version, state, progress), self._handed = self._handed, None
            try:
                encoded = encode_policy(version, state, progress)
            except BaseException as error:  # noqa: BLE001  # the trainer raises it, whatever it is
                with self._changed:
                    self._error, self._handed = error, None
                    self._changed.notify_all()
                return
            with self._changed:
                self._newest = encoded, state
                self._changed.notify_all()
            self._subscribers.offer(encoded)

    def _await_version(self, version: int) -> None:
        """Waits until a version or a newer one is encoded, or the encoder has ended. The caller holds the lock."""

        def is_there() -> bool:
            return self._error is not None or version <= (self._newest[0].version if self._newest else 0)

        if not self._changed.wait_for(is_there, _ENCODE_TIMEOUT_S):
            raise NotReadyError(
                f"version {version} of the policy is not encoded after {_ENCODE_TIMEOUT_S:.0f} s; expected it to be "
                "encoded by then; check whether its device hangs, and try again with backoff"
            )

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _newest_weights(self) -> tuple[int, PolicyState]:
        encoded, weights = self._require_newest()
        return encoded.version, weights

    def _require_newest(self) -> tuple[EncodedPolicy, PolicyState]:
        with self._changed:
            self._await_version(self._version)
            if self._newest is None:
                raise NotReadyError("there is no policy yet: the learner is starting; try again with backoff")
            return self._newest
