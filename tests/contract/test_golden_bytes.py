import re

import numpy as np
import pytest
import xxhash

from rollcast.services.columns.shape import RolloutShape
from rollcast.services.history.codec import updates_from_protos
from rollcast.services.joining.activity_codec import activity_from_proto
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.codec import encode_policy
from rollcast.services.rollouts.assembler import RolloutAssembler
from rollcast.services.spaces.codec import space_from_proto
from rollcast.services.streams.receiver import parse_request
from rollcast.services.wire.seal import seal
from rollcast.v1 import history_pb2, policy_pb2, rollout_pb2, space_pb2
from tests.contract.golden_messages import (
    FOLDER,
    SPACE,
    SUBSTEP,
    golden_messages,
    rollout,
    rollout_with_events,
    rollout_with_versions,
)
from tests.documents import PAGES
from tests.rollouts import assert_same_rollout

DOCS = PAGES["protocol.md"]


def golden(name: str) -> bytes:
    return bytes.fromhex((FOLDER / f"{name}.hex").read_text())


@pytest.mark.parametrize("name", list(golden_messages()))
def test_the_bytes_have_not_changed(name):
    assert golden_messages()[name] == golden(name), (
        f"the bytes of {name} have changed: actors and learners of different versions no longer understand each "
        "other. If "
        "that is meant, raise PROTOCOL_VERSION and run python -m tests.contract.golden_messages"
    )


def test_there_is_no_golden_file_too_many():
    assert {path.stem for path in FOLDER.glob("*.hex")} == set(golden_messages())


def test_old_bytes_still_decode():
    assert space_from_proto(space_pb2.Space.FromString(golden("space"))) == SPACE
    request = rollout_pb2.StreamRolloutsRequest(rollout=rollout_pb2.Rollout.FromString(golden("rollout")))
    assert_same_rollout(RolloutAssembler(RolloutShape({"0": SUBSTEP}, 2, 2)).add(request), rollout(2, 2))
    with_body = parse_request(golden("rollout_with_body"))
    assert_same_rollout(RolloutAssembler(RolloutShape({"0": SUBSTEP}, 2, 2)).add(*with_body), rollout(2, 2))
    with_versions = parse_request(golden("rollout_with_versions"))
    assert_same_rollout(
        RolloutAssembler(RolloutShape({"0": SUBSTEP}, 2, 2)).add(*with_versions), rollout_with_versions()
    )
    with_report = parse_request(golden("rollout_with_report"))
    assert_same_rollout(RolloutAssembler(RolloutShape({"0": SUBSTEP}, 2, 2)).add(*with_report), rollout(2, 2))
    assert activity_from_proto(with_report.request.report, actor_id="golden").policy_version == 7
    request = rollout_pb2.StreamRolloutsRequest(rollout=rollout_pb2.Rollout.FromString(golden("rollout_with_events")))
    assert_same_rollout(RolloutAssembler(RolloutShape({"0": SUBSTEP}, 2, 2)).add(request), rollout_with_events())
    (update,) = updates_from_protos([history_pb2.WatchHistoryResponse.FromString(golden("history"))])
    assert (update.now_s, update.lanes[1].shares.tolist()) == (61.5, [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    activity = rollout_pb2.StreamRolloutsRequest.FromString(golden("actor_activity")).activity
    assert activity_from_proto(activity, actor_id="golden").seconds == (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    version, state = PolicyAssembler().add(policy_pb2.GetPolicyResponse.FromString(golden("policy_chunk")).chunk)
    assert version == 9
    np.testing.assert_array_equal(state["w"], np.arange(3, dtype=np.float32))


def test_digests_are_those_that_the_documentation_gives_for_clients_in_other_languages():
    documented = dict(re.findall(r"XXH3-(64|128) of `rollcast` is\s+`([0-9a-f]+)`", DOCS.read_text()))
    assert documented == {
        "64": f"{xxhash.xxh3_64_intdigest(b'rollcast', seed=0):016x}",
        "128": xxhash.xxh3_128_digest(b"rollcast", seed=0).hex(),
    }
    head = rollout_pb2.StreamRolloutsRequest(open=rollout_pb2.OpenStream(actor_id="a")).SerializeToString()
    sealed = rollout_pb2.StreamRolloutsRequest.FromString(seal(head))
    assert sealed.digest == xxhash.xxh3_64_intdigest(head, seed=0)
    (chunk,) = encode_policy(1, {"w": np.zeros(1, np.float32)}).chunks
    policy = policy_pb2.GetPolicyResponse.FromString(chunk).chunk
    assert policy.digest == xxhash.xxh3_128_digest(policy.payload, seed=0)
