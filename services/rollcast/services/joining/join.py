"""Defines the agreement between an actor and a learner before the first rollout."""

import enum
from dataclasses import dataclass, field

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.joining.evaluation import EvaluationPlan
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces

PROTOCOL_VERSION = 1


class ActorRole(enum.Enum):
    """The part that an actor plays."""

    ACT = 0
    EVALUATE = 1


@dataclass(frozen=True, slots=True)
class Relay:
    """A relay between actors and their learner.

    Attributes:
        relay_id: Its name, for display only.
        nonce: A number of its process, one for each address of its learner, not 0. Only a peer that knows it may
            send for the relay's actors.
    """

    relay_id: str
    nonce: int = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOffer:
    """An actor's offer to act; field by field as `rollcast.v1.JoinRequest` documents it."""

    actor_id: str
    process_nonce: int
    spaces: EnvironmentSpaces
    n_envs: int
    network: str
    software_version: str
    incarnation: int = 0
    acknowledged_sequence: int = 0
    protocol_version: int = PROTOCOL_VERSION
    peer: str = ""
    role: ActorRole = ActorRole.ACT
    via: tuple[Relay, ...] = ()
    follows_redirect: bool = False
    plays_by_clock: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAgreement:
    """The work that a learner gives an actor; field by field as `rollcast.v1.JoinResponse` documents it."""

    actor_id: str
    slot: int
    incarnation: int
    acknowledged_sequence: int
    n_rollout_steps: int
    env_seed: int
    agent_seed: int
    policy: PolicySpec
    max_message_bytes: int
    n_envs: int = 0
    learner_nonce: int = 0
    awaiting_s: float = 0.0
    policy_version: int = 0
    activity_interval_s: float = 0.0
    report_with_rollout: bool = False
    # The learner's spaces, if it has substeps or members of a Dict in another order; None: the offer's order holds.
    spaces: EnvironmentSpaces | None = None
    # An evaluator's work; None for other roles.
    evaluation: EvaluationPlan | None = None
    # The learner of the same run that wants the actor; then nothing else counts. Empty: this one takes it.
    learner_address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedActor:
    """An actor that has joined, with the part of the agreement that its streams need.

    Attributes:
        actor_id: The actor's name.
        incarnation: The number of its process.
        rollout_shape: The shape of its rollouts.
        activity_interval_s: Seconds between two reports of its time; 0: none.
    """

    actor_id: str
    incarnation: int
    rollout_shape: RolloutShape
    activity_interval_s: float
