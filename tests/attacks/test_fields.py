"""The walk over fields: it changes each of them, and names what it does not know."""

import math

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from rollcast.keda import external_scaler_pb2
from rollcast.v1 import relay_pb2, space_pb2
from tests.attacks.fields import CannotFillError, Sizes, spoilt

SIZES = Sizes(n_bytes=10, n_members=3, message_bytes=1000)


class Empty:
    """Takes an empty message for honest, and bytes for bytes."""

    def honest(self, descriptor):
        return message_factory.GetMessageClass(descriptor)()

    def held(self, field):
        if field.name == "message":
            raise CannotFillError(field.full_name)


def changes(message, world=None):
    return dict(spoilt(lambda: message, world or Empty(), SIZES))


def test_each_field_is_changed_at_every_depth():
    changed = changes(space_pb2.Box(shape=[2]))
    assert list(changed["shape [-1] * 3"].shape) == [-1] * 3
    assert changed["low.data of 10 bytes"].low.data == b"x" * 10
    assert changed["high.dtype 99"].high.dtype == 99
    assert not changed["shape absent"].shape
    assert changed["low empty"].HasField("low")
    assert not changed["low absent"].HasField("low")


def test_the_ends_of_numbers_and_maps():
    from rollcast.v1 import learner_pb2

    changed = changes(learner_pb2.WatchStatusRequest(interval_s=1.0))
    assert math.isnan(changed["interval_s nan"].interval_s)
    assert changed["interval_s 5e-324"].interval_s == 5e-324
    assert len(changes(external_scaler_pb2.ScaledObjectRef())["scalerMetadata of 3 members"].scalerMetadata) == 3


def test_a_message_inside_one_of_its_own_type_is_not_entered():
    names = {what.split()[0] for what in changes(space_pb2.Space())}
    assert "dict.members.space" in names
    assert not any(name.startswith("dict.members.space.") for name in names)


def test_bytes_of_unknown_content_are_named():
    with pytest.raises(CannotFillError, match=r"rollcast\.v1\.UpwardPart\.message"):
        changes(relay_pb2.UpwardPart())


def test_a_field_of_an_unknown_kind_is_named():
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    message = file.message_type.add(name="Request")
    message.nested_type.add(name="Group")
    message.field.add(name="group", number=1, type=10, label=1, type_name=".old.Request.Group")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    request = message_factory.GetMessageClass(pool.FindMessageTypeByName("old.Request"))()
    with pytest.raises(CannotFillError, match=r"old\.Request\.group is a GROUP"):
        changes(request)
