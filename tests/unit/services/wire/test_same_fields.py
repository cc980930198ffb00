import pytest

from rollcast.services.rollouts.rollouts import StreamProgress
from rollcast.services.wire.same_fields import same_fields
from rollcast.v1 import rollout_pb2


def test_reads_the_same_fields_of_a_value_and_its_message():
    read = same_fields(StreamProgress)
    progress = StreamProgress(acknowledged_sequence=3, credit_sequence=5, end_of_training=True, min_policy_version=7)
    message = rollout_pb2.StreamRolloutsResponse(**read(progress))
    assert message.credit_sequence == 5
    assert StreamProgress(**read(message)) == progress


def test_leaves_out_the_fields_that_a_codec_converts():
    read = same_fields(StreamProgress, but=("credit_sequence",))
    assert "credit_sequence" not in read(StreamProgress(acknowledged_sequence=3, credit_sequence=5))


def test_refuses_a_message_without_the_field():
    with pytest.raises(AttributeError, match="acknowledged_sequence"):
        same_fields(StreamProgress)(rollout_pb2.OpenStream())
