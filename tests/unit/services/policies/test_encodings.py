import contextlib
import threading

import numpy as np
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import InvalidTensorError, LearnerUnreachableError
from rollcast.services.policies.assembler import PolicyAssembler
from rollcast.services.policies.bfloat16 import rounded_to_bfloat16
from rollcast.services.policies.codec import encode_policy
from rollcast.services.policies.delta import encode_delta
from rollcast.services.policies.encodings import ENCODINGS, PolicyEncoding
from tests.chaos.proxy import Proxy
from tests.integration.learner_fakes import DEADLINE_S
from tests.policies import SpoiltPolicy, message_of
from tests.processes import wait_until

DELTA, BFLOAT16 = (PolicyEncoding.DELTA,), (PolicyEncoding.BFLOAT16,)
RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal(300_000, np.float32)


def weights(version):
    return {"w": rounded_to_bfloat16(WEIGHTS * np.float32(1 + 1e-3 * version)), "count": np.array(version)}


def following(client, takes, versions, learner, publish=weights):
    """Publishes versions one by one; returns what a subscriber with an assembler of its own gets, and its chunks."""
    assembler, added = PolicyAssembler(encodings=takes), []

    def add(chunk):
        added.append((chunk.encoding, chunk.base_version, len(chunk.payload)))
        return PolicyAssembler.add(assembler, chunk)

    assembler.add = add
    policies = iter(client.subscribe_policy(assembler=assembler))
    received = []
    for version in versions:
        learner.source.publish(version, publish(version))
        received.append(next(policies))
    policies.close()
    return received, added


@pytest.mark.parametrize("takes", [(), BFLOAT16, DELTA, DELTA + BFLOAT16], ids=str)
def test_every_encoding_brings_the_same_numbers(learner, client, takes):
    received, added = following(client, takes, range(1, 6), learner)
    for version, state in received:
        for name, array in weights(version).items():
            np.testing.assert_array_equal(state[name], array, strict=True)
    sizes = [size for _, _, size in added]
    if takes and takes[0] is PolicyEncoding.DELTA:
        assert [base for _, base, _ in added] == [0, 1, 2, 3, 4]
        assert sizes[0] < 0.5 * WEIGHTS.nbytes
        assert max(sizes[1:]) < 0.2 * WEIGHTS.nbytes
    elif takes:
        assert max(sizes) < 0.51 * WEIGHTS.nbytes
    else:
        assert sum(sizes) > 5 * WEIGHTS.nbytes
    assert {encoding for encoding, _, _ in added} == {takes[0].value if takes else 0}


def test_subscriber_that_comes_back_goes_on_with_the_difference_to_what_it_has(learner, client):
    assembler = PolicyAssembler(encodings=DELTA)
    learner.source.publish(1, weights(1))
    first = client.subscribe_policy(assembler=assembler)
    assert next(iter(first))[0] == 1
    first.cancel()
    learner.source.publish(2, weights(2))
    assert assembler.base_digest(1)
    version, state = next(iter(client.subscribe_policy(1, assembler=assembler)))
    assert version == 2
    np.testing.assert_array_equal(state["w"], weights(2)["w"])


@pytest.mark.parametrize("takes", ENCODINGS.values(), ids=ENCODINGS)
def test_subscriber_whose_connection_broke_in_the_middle_of_a_version_gets_all_of_it(learner, takes):
    large = np.random.default_rng(0).standard_normal(2_000_000, np.float32)  # several chunks in every encoding
    learner.source.publish(1, {"w": large})
    proxy = Proxy(int(learner.address.rpartition(":")[2]), seed=0, bytes_per_s=4e6)
    assembler = PolicyAssembler(encodings=takes)
    with contextlib.closing(proxy), LearnerClient(proxy.address) as client:
        policies = iter(client.subscribe_policy(assembler=assembler))
        cut = threading.Thread(
            target=lambda: (wait_until(lambda: proxy.n_bytes_down > 3e6, "some chunks"), proxy.inject("cut", 0.0, 0.0))
        )
        cut.start()
        with pytest.raises(LearnerUnreachableError):
            next(policies)
        cut.join(DEADLINE_S)
    with LearnerClient(learner.address) as client:
        version, state = next(iter(client.subscribe_policy(assembler=assembler)))
    assert version == 1
    np.testing.assert_array_equal(state["w"], large, strict=True)


def spoilt(encoded, base, how):
    """Returns a policy of which the learner sends something else as the difference to a version."""
    delta = encode_delta(encoded.file, base.file)
    head = {
        "version": encoded.version,
        "encoding": PolicyEncoding.DELTA.value,
        "base_version": base.version,
        "file_bytes": encoded.n_bytes,
        "file_digest": encoded.digest,
    }
    if how == "bytes":
        delta = delta[: len(delta) // 2] + bytes(4) + delta[len(delta) // 2 + 4 :]
    elif how == "planes":
        delta = encode_delta(encoded.file, bytes(len(base.file)))
    elif how == "base":
        head["base_version"] = 77
    elif how == "size":
        head["file_bytes"] += 4
    elif how == "bomb":
        delta = encode_delta(bytes(1 << 24), None)
    elif how == "digest":
        head["file_digest"] = bytes(16)
    return SpoiltPolicy(encoded, delta={base.digest: (message_of(delta, **head),)})


@pytest.mark.parametrize("how", ["bytes", "planes", "base", "size", "bomb", "digest"])
def test_damaged_delta_is_told_and_the_stream_goes_on_with_a_whole_one(learner, client, how, caplog):
    assembler = PolicyAssembler(encodings=DELTA)
    learner.source.publish(1, weights(1))
    policies = iter(client.subscribe_policy(assembler=assembler))
    assert next(policies)[0] == 1
    base = learner.source.encoded
    encoded = spoilt(encode_policy(2, weights(2)), base, how)
    with learner.source.changed:
        learner.source.encoded = encoded
        learner.source.changed.notify_all()
    version, state = next(policies)
    assert version == 2
    np.testing.assert_array_equal(state["w"], weights(2)["w"])
    assert "policy 2" in caplog.text
    assert "requesting it again, without a base" in caplog.text
    learner.source.publish(3, weights(3))
    assert next(policies)[0] == 3
    policies.close()


def never_decoded(version, base_digest):
    """A version that nobody can decode as a delta to a base, b"" without one."""
    encoded = encode_policy(version, weights(version))
    head = {
        "version": version,
        "encoding": PolicyEncoding.DELTA.value,
        "base_version": version - 1 if base_digest else 0,
    }
    delta = message_of(encode_delta(encoded.file, None), file_bytes=encoded.n_bytes, **head)
    return SpoiltPolicy(encoded, delta={base_digest: (delta,)})


@pytest.mark.parametrize("has_base", [False, True], ids=["without a base", "with a base"])
def test_learner_whose_deltas_never_decode_is_asked_for_whole_files(learner, client, has_base, caplog):
    policies = iter(client.subscribe_policy(assembler=PolicyAssembler(encodings=DELTA)))
    digest = b""
    for version in range(1, 11):
        encoded = never_decoded(version, digest)
        digest = encoded.digest if has_base else b""
        with learner.source.changed:
            learner.source.encoded = encoded
            learner.source.changed.notify_all()
        received, state = next(policies)
        assert received == version
        np.testing.assert_array_equal(state["w"], weights(version)["w"])
    policies.close()
    assert len(learner.source.subscribed) == 4
    assert caplog.text.count("without a base") == 2
    assert caplog.text.count("requesting whole files from now on") == 1


def test_learner_that_sends_deltas_which_were_not_asked_for_is_given_up(learner, client, caplog):
    encoded = never_decoded(1, b"")
    learner.source.encoded = SpoiltPolicy(encoded, whole=encoded.delta(None), delta={b"": encoded.delta(None)})
    with pytest.raises(InvalidTensorError, match=r"policy 1 has digest .* after decoding"):
        list(client.subscribe_policy(assembler=PolicyAssembler(encodings=DELTA)))
    assert len(learner.source.subscribed) == 4


def test_unrounded_policies_come_through_every_encoding(learner, client):
    received, _ = following(client, DELTA, (1, 2), learner, lambda version: {"w": WEIGHTS * np.float32(version)})
    np.testing.assert_array_equal(received[1][1]["w"], WEIGHTS * np.float32(2))
    learner.source.publish(3, {"w": WEIGHTS})
    received, added = following(client, BFLOAT16, (4,), learner, lambda version: {"w": WEIGHTS})
    np.testing.assert_array_equal(received[0][1]["w"], WEIGHTS)
    assert sum(size for _, _, size in added) > WEIGHTS.nbytes, "nothing is rounded on its way"
