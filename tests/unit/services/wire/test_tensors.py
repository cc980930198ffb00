import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollcast.services.errors import InvalidTensorError
from rollcast.services.limits.limits import MAX_RANK
from rollcast.services.wire.tensors import DTYPES, tensor_from_proto, tensor_to_proto
from rollcast.v1 import tensor_pb2

ARRAYS = st.sampled_from(list(DTYPES.values())).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))
)


@given(ARRAYS)
def test_round_trip_keeps_dtype_shape_and_bits(array):
    proto = tensor_pb2.Tensor.FromString(tensor_to_proto(array).SerializeToString())
    for decoded in (
        tensor_from_proto(proto, what="x"),
        tensor_from_proto(proto, dtype=array.dtype, shape=array.shape, what="x"),
    ):
        assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
        assert decoded.tobytes() == array.tobytes()
        assert not decoded.flags.writeable


def test_big_endian_and_strided_inputs_are_converted():
    array = np.arange(12, dtype=">i4").reshape(3, 4).T[::2]
    decoded = tensor_from_proto(tensor_to_proto(array), what="x")
    assert decoded.dtype == np.int32
    np.testing.assert_array_equal(decoded, array)


def test_every_enum_value_but_unspecified_has_a_dtype():
    assert set(DTYPES) == {number for number in tensor_pb2.DataType.values() if number}


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1j]), np.array([None]), np.array([1], "M8[s]")])
def test_rejects_dtype_off_the_whitelist(array):
    with pytest.raises(InvalidTensorError, match=r"the reward has dtype .*expected one of bool"):
        tensor_to_proto(array, what="the reward")


def test_rejects_rank_above_the_limit_when_sending():
    with pytest.raises(InvalidTensorError, match="33 dimensions"):
        tensor_to_proto(np.zeros((1,) * (MAX_RANK + 1)))


def test_messages_name_the_tensor_the_value_and_what_was_expected():
    proto = tensor_to_proto(np.zeros((2, 3), np.float32))
    with pytest.raises(InvalidTensorError, match=r"the obs has dtype float32; expected float64"):
        tensor_from_proto(proto, dtype=np.dtype(np.float64), what="the obs")
    with pytest.raises(InvalidTensorError, match=r"the obs has shape \[2, 3\]; expected \[N, 4\]"):
        tensor_from_proto(proto, shape=(-1, 4), what="the obs")
    proto.data = proto.data[1:]
    with pytest.raises(InvalidTensorError, match=r"the obs has 23 bytes; expected 24 for float32 \[2, 3\]"):
        tensor_from_proto(proto, what="the obs")
