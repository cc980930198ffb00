"""What the learner knows of one actor: while it runs, and in its checkpoints."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rollcast.services.rollouts.join import JoinOffer
from rollcast.services.status.status import ActorInfo, ActorState


@dataclass(slots=True, kw_only=True)
class ActorRecord:
    """What the learner knows of one actor. Guarded by the registry's lock.

    `accepting` is held by the stream that passes a rollout on, from where it looks what has been accepted to where it
    notes that this has: a stream that takes over begins after that.
    """

    actor_id: str
    slot: int
    incarnation: int
    process_nonce: int
    offer: JoinOffer
    state: ActorState = ActorState.JOINED
    acknowledged_sequence: int = 0
    # up to where a checkpoint taken now has its rollouts
    taken_sequence: int = 0
    rollouts: int = 0
    env_steps: int = 0
    policy_version: int = 0
    last_error: str = ""
    last_seen: float = field(default_factory=time.monotonic)
    cancel_stream: Callable[[], None] | None = None
    # processes that had this name before, the last of them last
    replaced_nonces: tuple[int, ...] = ()
    accepting: threading.Lock = field(default_factory=threading.Lock)
    # for how long its stream has been waiting for what comes next, in seconds; any thread may ask
    awaiting_s: Callable[[], float] = lambda: 0.0
    # nobody had the name before, and no stream was ever opened: it may be nobody's
    is_provisional: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether it streams, or is about to."""
        return self.state in (ActorState.JOINED, ActorState.STREAMING)

    def info(self) -> ActorInfo:
        """The record as a value."""
        return ActorInfo(
            actor_id=self.actor_id,
            slot=self.slot,
            incarnation=self.incarnation,
            state=self.state,
            peer=self.offer.peer,
            n_envs=self.offer.n_envs,
            rollouts=self.rollouts,
            env_steps=self.env_steps,
            policy_version=self.policy_version,
            idle_s=time.monotonic() - self.last_seen,
            software_version=self.offer.software_version,
            last_error=self.last_error,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierActor:
    """What a checkpoint keeps of an actor.

    Attributes:
        slot: Its slot.
        incarnation: How often its name had joined.
        process_nonce: Of the process that had joined last.
        taken_sequence: The last of its rollouts that the checkpoint has, in its batches or its replay buffer.
        replaced_nonces: Of the processes that had the name before, the last of them last; at most 64.
    """

    slot: int
    incarnation: int
    process_nonce: int
    taken_sequence: int
    replaced_nonces: tuple[int, ...]
