import numpy as np
import pytest
from gymnasium import spaces

from rollcast.services.errors import (
    InvalidInputError,
    InvalidTensorError,
    MissingMessageError,
    ProtocolMismatchError,
    UnreadableMessageError,
)
from rollcast.services.inference.codec import QuestionCodec, answer_to_bytes, network_from_bytes, network_to_bytes
from rollcast.services.inference.inference import InferenceNetwork, Inferred, Question, weights_digest
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.spaces.spaces import SubstepSpaces
from rollcast.v1 import inference_pb2
from tests.play_messages import TEAM

SPEC = PolicySpec(recurrence="gru", recurrent_size=2, frame_stack=3)
MASKED = SubstepSpaces(
    observation=spaces.Dict([("seen", spaces.Discrete(4, start=1)), ("action_mask", spaces.MultiBinary(2))]),
    action=spaces.Discrete(2),
)
NETWORK = InferenceNetwork({**TEAM, "masked": MASKED}, SPEC)
CODEC = QuestionCodec(NETWORK)
N = 2
# [N, K, ...], but for the mask
SEEN = {
    "walker": {"": np.arange(12, dtype=np.float32).reshape(N, 3, 2)},
    "gunner": {"view": np.arange(24, dtype=np.uint8).reshape(N, 3, 2, 2), "ammo": np.full((N, 3), 4)},
    "masked": {"seen": np.array([[1, 2, 3], [4, 4, 4]]), "action_mask": np.array([[1, 0], [1, 1]], np.int8)},
}
STATE = np.array([[0.5, 1.0], [-1.0, 0.0]], np.float32)


def question(key="walker", **changes):
    return Question(7, b"d" * 16, key, SEEN[key], STATE)._replace(**changes)


def changed(**fields):
    """A question of the walker, whose fields are others."""
    request = inference_pb2.InferRequest.FromString(CODEC.to_bytes(question()))
    for name, value in fields.items():
        if isinstance(value, list):
            del request.question.observation[:]
            request.question.observation.extend(value)
        else:
            setattr(request.question, name, value)
    return request.SerializeToString()


def test_a_network_comes_back_with_one_digest():
    (network, digest), (_, again) = (network_from_bytes(network_to_bytes(NETWORK)) for _ in range(2))
    assert network == NETWORK
    assert digest == again != network_from_bytes(network_to_bytes(InferenceNetwork(TEAM, SPEC)))[1]


@pytest.mark.parametrize("key", SEEN)
def test_a_question_comes_back(key):
    found = CODEC.from_bytes(CODEC.to_bytes(question(key)))
    assert (*found[:3], found.n) == (7, b"d" * 16, key, N)
    assert list(found.observation) == list(SEEN[key])
    for path, expected in SEEN[key].items():
        np.testing.assert_array_equal(found.observation[path], expected)
        assert found.observation[path].dtype == expected.dtype
    np.testing.assert_array_equal(found.state, STATE)
    assert found.state.flags.writeable


@pytest.mark.parametrize(
    ("message", "error", "said"),
    [
        (b"\xff\xff", UnreadableMessageError, "do not parse"),
        (b"", MissingMessageError, "no question"),
        (network_to_bytes(NETWORK), MissingMessageError, "no question"),
        (changed(n=0), InvalidTensorError, "0 rows"),
        (changed(n=1 << 20), InvalidTensorError, "1048576 rows"),
        (changed(substep=3), InvalidTensorError, "substep number 3"),
        (changed(n=1), InvalidTensorError, "48 bytes; expected 24"),
        (changed(observation=[]), InvalidTensorError, "0 leaves"),
        (changed(observation=[b""]), InvalidTensorError, "0 bytes; expected 48"),
        (changed(observation=[np.full(12, np.nan, np.float32).tobytes()]), InvalidTensorError, "nan"),
        (changed(state=b""), InvalidTensorError, "state of a question has 0 bytes; expected 16"),
        (changed(state=np.full(4, np.inf, np.float32).tobytes()), InvalidTensorError, "inf"),
        (changed(substep=2, observation=[np.zeros(6, int).tobytes(), bytes(4)]), InvalidTensorError, "1 to 4"),
    ],
)
def test_refuses_other_questions(message, error, said):
    with pytest.raises(error, match=said):
        CODEC.from_bytes(message)


@pytest.mark.parametrize(
    ("network", "error"),
    [
        (b"", MissingMessageError),
        (b"\xff", UnreadableMessageError),
        (CODEC.to_bytes(question()), MissingMessageError),
        (inference_pb2.InferRequest(network={"protocol": 2}).SerializeToString(), ProtocolMismatchError),
        (inference_pb2.InferRequest(network={"protocol": 1}).SerializeToString(), InvalidInputError),
    ],
)
def test_refuses_other_networks(network, error):
    with pytest.raises(error):
        network_from_bytes(network)


def test_an_answer_comes_back():
    parameters = np.arange(8, dtype=np.float32).reshape(N, 4)
    found = CODEC.answer_from_bytes(answer_to_bytes(Inferred(8, parameters, STATE)), N, 4)
    assert found.policy_version == 8
    np.testing.assert_array_equal(found.parameters, parameters)
    np.testing.assert_array_equal(found.state, STATE)
    assert CODEC.answer_from_bytes(answer_to_bytes(Inferred(8)), N, 4) == Inferred(8)
    assert answer_to_bytes(None) == b""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Inferred(8, np.zeros((N, 3), np.float32), STATE), "the parameters has 24 bytes; expected 32"),
        (Inferred(8, np.full((N, 4), np.nan, np.float32), STATE), "nan"),
        (Inferred(8, np.zeros((N, 4), np.float32)), "the state of an answer has 0 bytes; expected 16"),
    ],
)
def test_refuses_answers_that_do_not_fit(answer, said):
    with pytest.raises(InvalidTensorError, match=said):
        CODEC.answer_from_bytes(answer_to_bytes(answer), N, 4)


def test_a_digest_is_that_of_names_and_numbers_in_any_order():
    a, b = np.arange(3, dtype=np.float32), np.arange(2)
    digest = weights_digest({"a": a, "b": b})
    assert digest == weights_digest({"b": b, "a": a.astype(">f4")})
    assert len({digest, weights_digest({"a": a + 1, "b": b}), weights_digest({"c": a, "b": b})}) == 3
