"""Every decoder that is fuzzed, by its name."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.fuzz.oracle import Target


class Entry(NamedTuple):
    """A decoder in the table.

    Attributes:
        module: Which module of this package has the function that makes the target.
        share: Of all messages: so many times those of one with 1. What opens files, or makes networks, gets fewer.
    """

    module: str
    share: float


TARGETS: Final[Mapping[str, Entry]] = {
    "tensor": Entry("message_targets", 6),
    "environment": Entry("message_targets", 2),
    "join_offer": Entry("message_targets", 1.5),
    "join_agreement": Entry("message_targets", 3),
    "actor_activity": Entry("message_targets", 1.5),
    "inference": Entry("message_targets", 1.5),
    "history": Entry("message_targets", 1.5),
    "evaluation_report": Entry("message_targets", 1.5),
    "learner_status": Entry("message_targets", 3),
    "learner_description": Entry("message_targets", 1.5),
    "actor_info": Entry("message_targets", 2),
    "error_status": Entry("message_targets", 2),
    "rollout": Entry("rollout_targets", 5),
    "rollout_stream": Entry("rollout_targets", 2),
    "bundles": Entry("relay_targets", 2),
    "bundle_answers": Entry("relay_targets", 1),
    "play": Entry("play_targets", 2),
    "statistics": Entry("rollout_targets", 1.5),
    "recording": Entry("rollout_targets", 0.4),
    "policy_chunks": Entry("policy_targets", 4),
    "policy_encodings": Entry("policy_targets", 4),
    "policy_weights": Entry("policy_targets", 2),
    "act_request": Entry("policy_targets", 3),
    "saved_policy": Entry("policy_targets", 0.7),
    "replay_info": Entry("replay_targets", 0.2),
    "priorities": Entry("replay_targets", 2),
    "replay_batches": Entry("replay_targets", 2.5),
    "manifest": Entry("checkpoint_targets", 2),
    "training_state": Entry("checkpoint_targets", 0.1),
    "replay_ring": Entry("checkpoint_targets", 0.25),
    "replay_frames": Entry("checkpoint_targets", 0.15),
    "replay_slots": Entry("checkpoint_targets", 0.15),
    "log_entry": Entry("log_targets", 2),
    "log_segment": Entry("log_targets", 0.7),
    "log_recovery": Entry("log_targets", 0.5),
    "run_settings": Entry("file_targets", 0.5),
    "tokens": Entry("file_targets", 2),
    "certificates": Entry("file_targets", 0.1),
    "metrics": Entry("file_targets", 1),
}


def make_target(name: str, folder: Path) -> Target:
    """Makes a target, and imports no more than it needs.

    Args:
        name: One of `TARGETS`.
        folder: For its files; empty.
    """
    module = importlib.import_module(f"tests.fuzz.{TARGETS[name].module}")
    target: Target = getattr(module, name)(folder)
    return target
