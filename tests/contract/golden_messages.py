"""Messages whose bytes are part of the contract; `python -m tests.contract.golden_messages` writes them anew."""

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from gymnasium import spaces

from rollcast.services.environments.codec import actions_to_bytes
from rollcast.services.history.codec import update_to_protos
from rollcast.services.history.history import (
    EvaluationPoint,
    EventSeverity,
    HistoryEvent,
    HistoryPoint,
    HistoryUpdate,
    Lane,
    PolicyDelays,
    RunFacts,
)
from rollcast.services.inference.codec import QuestionCodec
from rollcast.services.inference.inference import InferenceNetwork, Question
from rollcast.services.joining.activity import ActingState, ActorActivity
from rollcast.services.joining.activity_codec import activity_to_proto
from rollcast.services.joining.join import JoinAgreement, JoinOffer
from rollcast.services.joining.join_codec import join_agreement_to_proto, join_offer_to_proto
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.codec import RolloutEncoder, rollout_to_proto
from rollcast.services.rollouts.recording_codec import RecordingHeader, recording_header_to_proto
from rollcast.services.rollouts.rollouts import EpisodeStatistics, Rollout
from rollcast.services.rollouts.statistics import EpochStatistic, EventStatistic, EventValue
from rollcast.services.spaces.codec import space_to_proto
from rollcast.services.spaces.spaces import SubstepSpaces
from rollcast.services.status.codec import actor_to_proto, status_to_proto
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase
from rollcast.services.wire.seal import find_seal, seal
from rollcast.services.wire.tensors import DTYPES, tensor_to_proto
from rollcast.v1 import environment_pb2, rollout_pb2
from tests.play_messages import agent, turn, turns
from tests.rollouts import build_rollout

FOLDER = Path(__file__).parent / "golden"

SPACE = spaces.Dict(
    [
        ("vector", spaces.Box(-1, 1, (3,), np.float32)),
        ("bounds", spaces.Box(np.array([0, 1]), np.array([2, 3]), dtype=np.int16)),
        ("token", spaces.Discrete(5, start=-2)),
        ("pair", spaces.Tuple([spaces.MultiBinary([2, 2]), spaces.MultiDiscrete([2, 3], start=[1, 0])])),
    ]
)
SUBSTEP = SubstepSpaces(observation=spaces.Box(-9, 9, (2,), np.float32), action=spaces.Discrete(2))


def rollout(n_steps: int, n_envs: int) -> Rollout:
    ramp = np.arange(n_steps * n_envs, dtype=np.float32).reshape(n_steps, n_envs)
    return build_rollout(
        observation={"": np.stack([ramp, -ramp], axis=-1)},
        action=ramp.astype(np.int64) % 2,
        log_prob=-ramp / 8,
        last_observation={"": np.ones((n_envs, 2), np.float32)},
        final_observation={"": np.full((1, 2), 0.5, np.float32)},
        final_index=[(1, 0)],
        actor_id="golden",
        incarnation=2,
        sequence=3,
        policy_version=4,
        reward=ramp,
        terminated=ramp == 1,
        truncated=ramp == 2,
        valid=ramp != 3,
        episodes=(EpisodeStatistics(env_index=0, episode_return=1.5, n_steps=9),),
        env_seeds=tuple(range(n_envs)),
    )


def rollout_with_versions() -> Rollout:
    return dataclasses.replace(rollout(2, 2), policy_versions=np.array([[4, 4], [-1, 300]]))


def rollout_with_events() -> Rollout:
    minutes = EventStatistic(
        event="parcel",
        name="minutes",
        epoch=(
            EpochStatistic(name="mean", reduction="mean"),
            EpochStatistic(name="span", reduction="own"),
            EpochStatistic(name="total", reduction="sum", cumulative=True),
        ),
    )
    count = EventStatistic(event="act", name="", epoch=(EpochStatistic(name="", reduction="median"),))
    values = (EventValue(minutes, ("north", "1"), 2.5), EventValue(minutes, ("south", "1"), 7.0))
    episode = EpisodeStatistics(env_index=1, episode_return=1.5, n_steps=9, events=values)
    return dataclasses.replace(rollout(2, 2), episodes=(episode,), events=(EventValue(count, (), 3.0),))


def history(status: LearnerStatus, actor: ActorInfo) -> HistoryUpdate:
    return HistoryUpdate(
        now_s=61.5,
        run=RunFacts(env_id="e", algorithm="impala", seed=0, stop_return=1.0, started_unix_s=2.0, software_version="0"),
        status=status,
        actors=(replace(actor, acting_state=ActingState.ACTING, applied_policy_version=3, env_steps_per_second=4.0),),
        points=(HistoryPoint(time_s=60.0, interval_s=15.0, env_steps=5, mean_return=0.0, replay_size=0),),
        evaluations=(
            EvaluationPoint(
                time_s=59.0, env_steps=4, policy_version=2, mean_return=1.0, ci_low=-np.inf, ci_high=np.inf, best=True
            ),
        ),
        lanes=(
            Lane(actor_id="", interval_s=1.0, end_s=58.0, shares=np.arange(10, dtype=np.uint8).reshape(2, 5)),
            Lane(actor_id="golden", interval_s=1.0, end_s=58.0, shares=np.arange(12, dtype=np.uint8).reshape(2, 6)),
        ),
        events=(HistoryEvent(time_s=1.0, severity=EventSeverity.WARNING, who="golden", text="x", detail="y"),),
        delays=PolicyDelays(trajectories_by_lag=(1, 0, 2), max_policy_lag=0, data_age_p50_s=0.5, publish_lag_p99_s=2.0),
    )


def golden_messages() -> Mapping[str, bytes]:
    offer = JoinOffer(
        actor_id="golden",
        process_nonce=1,
        spaces={"0": SUBSTEP},
        n_envs=2,
        network="auto",
        software_version="0",
        incarnation=3,
        acknowledged_sequence=4,
    )
    agreement = JoinAgreement(
        actor_id="golden",
        slot=1,
        incarnation=3,
        acknowledged_sequence=4,
        n_rollout_steps=5,
        env_seed=6,
        agent_seed=7,
        policy=PolicySpec(),
        max_message_bytes=8,
    )
    agreement_of_a_learner = replace(agreement, n_envs=9, learner_nonce=10)
    status = LearnerStatus(phase=Phase.PAUSED, waiting_for="x", env_steps=1, mean_return=0.0, algorithm="impala")
    actor = ActorInfo(actor_id="golden", slot=1, incarnation=2, state=ActorState.LOST, idle_s=0.5)
    activity = ActorActivity(
        state=ActingState.LOADING_POLICY, seconds=(0.5, 1.0, 1.5, 2.0, 2.5, 3.0), policy_version=7, policy_age_s=0.25
    )
    messages = {
        f"tensor_{dtype.name}": tensor_to_proto(np.array([[0, 1]], dtype)).SerializeToString()
        for dtype in DTYPES.values()
    }
    messages["space"] = space_to_proto(SPACE).SerializeToString()
    messages["join_request"] = join_offer_to_proto(offer).SerializeToString()
    messages["join_response"] = join_agreement_to_proto(agreement).SerializeToString()
    messages["join_response_of_a_learner"] = join_agreement_to_proto(agreement_of_a_learner).SerializeToString()
    messages["learner_status"] = status_to_proto(status).SerializeToString()
    messages["actor_info"] = actor_to_proto(actor).SerializeToString()
    messages["actor_activity"] = rollout_pb2.StreamRolloutsRequest(
        activity=activity_to_proto(activity)
    ).SerializeToString()
    (messages["history"],) = (proto.SerializeToString() for proto in update_to_protos(history(status, actor)))
    header = RecordingHeader(
        spaces={"0": SUBSTEP}, n_rollout_steps=5, n_envs=2, env_id="e", played_by="p", software_version="0"
    )
    messages["recording_header"] = recording_header_to_proto(header).SerializeToString()
    messages["rollout"] = rollout_to_proto(rollout(2, 2)).SerializeToString()
    (messages["rollout_with_body"],) = RolloutEncoder().encode(rollout(2, 2))
    (messages["rollout_with_report"],) = RolloutEncoder().encode(rollout(2, 2), activity)
    (messages["rollout_with_versions"],) = RolloutEncoder().encode(rollout_with_versions())
    messages["rollout_with_events"] = rollout_to_proto(rollout_with_events()).SerializeToString()
    # the header only: the bodies hold two mebibytes of ramps
    first, second, *_ = RolloutEncoder().encode(rollout(300, 300))
    messages["rollout_with_frames"] = first[:256]
    messages["frame"] = second[:64]
    chunk = encode_policy(9, {"w": np.arange(3, dtype=np.float32)}).chunks[0]
    messages["policy_chunk"] = chunk[: find_seal(chunk)]  # its digest is optional, and came later
    messages["play_turns"] = seal(turns(turn(agent(reward=0.5))).SerializeToString())
    acted = environment_pb2.EnvironmentActions(environment=1).SerializeToString()
    (actions,) = actions_to_bytes([acted], 3, 0.5, 1 << 20)
    messages["play_actions"] = seal(actions)
    codec = QuestionCodec(InferenceNetwork({"0": SUBSTEP}, PolicySpec()))
    asked = Question(7, b"d" * 16, "0", {"": np.array([[0.5, -0.5]], np.float32)}, None)
    messages["inference_question"] = seal(codec.to_bytes(asked))
    return messages


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, message in golden_messages().items():
        (FOLDER / f"{name}.hex").write_text(message.hex(" ", 4) + "\n")
