"""Records of one actor: the running learner's record, and the record in a checkpoint."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rollcast.services.joining.activity import ActorActivity
from rollcast.services.joining.join import JoinOffer
from rollcast.services.limits.counts import MAX_COUNT
from rollcast.services.status.status import ActorInfo, ActorState
from rollcast.services.wire.same_fields import same_fields

_OF_RECORD: Final = same_fields(
    ActorInfo,
    but=(
        *("peer", "n_envs", "idle_s", "software_version"),
        *("acting_state", "applied_policy_version", "env_steps_per_second", "via", "memory_bytes"),
        *("answer_p50_s", "answer_p99_s"),
    ),
)
# The window of an actor's rate, in seconds.
_WINDOW_S: Final = 5.0
# The shortest time between two marks.
_MARK_S: Final = 0.5


class RecentRate:
    """The rate at which a count grows, over the last 5 s; or over the last two changes, if these are farther apart.

    Not thread-safe.

    Args:
        clock: Returns monotonic seconds; replaced in tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._count = 0
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)])

    def add(self, n: int) -> None:
        """Adds `n` to the count."""
        self._count += n
        now = self._clock()
        if now - self._marks[-1][0] >= _MARK_S:
            self._marks.append((now, self._count))
            while len(self._marks) > 2 and self._marks[1][0] <= now - _WINDOW_S:
                self._marks.popleft()

    def per_second(self) -> float:
        """Returns the rate; 0 without a change for twice the window."""
        now = self._clock()
        (began, before), (newest, _) = self._marks[0], self._marks[-1]
        if now <= began or now - newest > 2 * max(_WINDOW_S, newest - began):
            return 0.0
        return (self._count - before) / (now - began)


def next_incarnation(offered: int, before: int) -> int:
    """Returns the incarnation of a process that replaces another.

    It is above both numbers, except at `MAX_COUNT`, where only an attacker's offer leads: peers refuse larger numbers.

    Args:
        offered: The incarnation in the process's offer; 0: it is new.
        before: The incarnation of the replaced process.
    """
    return min(max(offered, before + 1), MAX_COUNT)


def _awaits_no_message() -> float:
    return 0.0


@dataclass(slots=True, kw_only=True)
class ActorRecord:
    """The learner's record of one actor. Guarded by the registry's lock, except `accepting` and `awaiting_s`.

    A stream holds `accepting` until the record counts the rollout as accepted. The actor's next stream takes the same
    lock before it reads the record.
    """

    actor_id: str
    slot: int
    incarnation: int
    process_nonce: int
    offer: JoinOffer
    state: ActorState = ActorState.JOINED
    state_since: float = field(default_factory=time.monotonic)
    # the number of actors with an open stream before this one was lost, including it
    n_streaming_before: int = 0
    acknowledged_sequence: int = 0
    # the last rollout in a checkpoint taken now
    taken_sequence: int = 0
    rollouts: int = 0
    env_steps: int = 0
    policy_version: int = 0
    last_error: str = ""
    last_seen: float = field(default_factory=time.monotonic)
    # the time of its last loss of connection, by `time.monotonic`
    lost_at: float = -math.inf
    cancel_stream: Callable[[], None] | None = None
    # the nonces of earlier processes of this name, latest last
    replaced_nonces: tuple[int, ...] = ()
    accepting: threading.Lock = field(default_factory=threading.Lock)
    # returns the seconds of its stream's wait for the next message; any thread may call it
    awaiting_s: Callable[[], float] = _awaits_no_message
    # the name is new and has never opened a stream: the record is dropped when its lease ends
    is_provisional: bool = False
    # the number of streams that it has opened
    n_streams: int = 0
    # the number of its late rollouts, which other actors replaced; only its stream counts them
    n_late: int = 0
    # its last report of its time; None: no report
    activity: ActorActivity | None = None
    # the cores that it used between its last two reports
    cpu_cores: float = 0.0
    rate: RecentRate = field(default_factory=RecentRate)

    @property
    def is_alive(self) -> bool:
        """True while the actor has a stream, or is about to open one."""
        return self.state in (ActorState.JOINED, ActorState.STREAMING)

    def drop_stream(self) -> None:
        """Drops the reference to the ended stream, which would keep its call alive."""
        self.cancel_stream, self.awaiting_s = None, _awaits_no_message

    def info(self) -> ActorInfo:
        """Returns the record as an immutable value, for the status."""
        return ActorInfo(
            **_OF_RECORD(self),
            peer=self.offer.peer,
            n_envs=self.offer.n_envs,
            idle_s=time.monotonic() - self.last_seen,
            software_version=self.offer.software_version,
            acting_state=None if self.activity is None else self.activity.state,
            applied_policy_version=0 if self.activity is None else self.activity.policy_version,
            env_steps_per_second=self.rate.per_second(),
            memory_bytes=0 if self.activity is None else self.activity.memory_bytes,
            answer_p50_s=0.0 if self.activity is None else self.activity.answer_p50_s,
            answer_p99_s=0.0 if self.activity is None else self.activity.answer_p99_s,
            via=tuple(relay.relay_id for relay in self.offer.via),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierActor:
    """The record of an actor in a checkpoint.

    Attributes:
        slot: The actor's slot.
        incarnation: The number of processes that had joined under its name.
        process_nonce: The nonce of the last of these processes.
        taken_sequence: The last of its rollouts in the checkpoint's batches or replay buffer.
        replaced_nonces: The nonces of earlier processes, latest last; at most 64.
    """

    slot: int
    incarnation: int
    process_nonce: int
    taken_sequence: int
    replaced_nonces: tuple[int, ...]
