"""Defines the agreement between an actor and a learner before the first rollout."""

import enum
from dataclasses import dataclass, field

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.joining.evaluation import EvaluationPlan
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import EnvironmentSpaces

PROTOCOL_VERSION = 1


class ActorRole(enum.Enum):
    """The role of an actor."""

    ACT = 0
    EVALUATE = 1


@dataclass(frozen=True, slots=True)
class Relay:
    """A relay between actors and their learner.

    Attributes:
        relay_id: The relay's name, for display only.
        nonce: A random number, not 0, that the relay's process draws once for each address of its learner. Only a peer
            with this number may send for the relay's actors.
    """

    relay_id: str
    nonce: int = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOffer:
    """An actor's offer to act. `rollcast.v1.JoinRequest` documents the fields."""

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
    """The work that a learner assigns to an actor. `rollcast.v1.JoinResponse` documents the fields."""

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
    # The learner's spaces, if their substeps or members of a Dict have another order; None: the offer's order holds.
    spaces: EnvironmentSpaces | None = None
    # An evaluator's work; None for other roles.
    evaluation: EvaluationPlan | None = None
    # The other learner of the same run that the actor must join instead; all other fields are then ignored. Empty: this
    # learner accepts the actor.
    learner_address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedActor:
    """An actor that has joined, with the parts of the agreement that its streams need.

    Attributes:
        actor_id: The actor's name.
        incarnation: The incarnation of the actor's process.
        rollout_shape: The shape of the actor's rollouts.
        activity_interval_s: Seconds between two activity reports; 0: no reports.
    """

    actor_id: str
    incarnation: int
    rollout_shape: RolloutShape
    activity_interval_s: float
