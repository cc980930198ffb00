"""Clients with environments that send what no honest one does: each is refused by name, and the honest one plays on."""

from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from rollcast.services.limits.limits import MAX_ENVS_PER_ACTOR
from rollcast.services.wire.error_status import error_from_rpc
from rollcast.v1 import environment_pb2
from tests.play_messages import FLAT, TERMINATED, agent, hello, turn, turns
from tests.unit.services.server.test_environments import Game, Sink, served

pytestmark = pytest.mark.slow

NAN = np.array([np.nan, 0.0], np.float32).tobytes()
# Messages of a client that was welcome, and the refusal of each.
IN_MIDSTREAM = {
    "other spaces": (hello(n_envs=2), "expected turns"),
    "no kind": (environment_pb2.PlayRequest(), "expected turns"),
    "no turns": (turns(), "at least one"),
    "an unknown environment": (turns(turn(environment=2**32 - 1)), "no such environment"),
    "an unknown agent": (turns(turn(agent(number=7))), "correct the number"),
    "100,000 agents": (turns(turn(*[agent(observation=())] * 100_000)), "leaves"),
    "an agent twice": (turns(turn(agent(), agent())), "twice"),
    "a second turn before its actions": (turns(turn(), turn()), "at most one turn"),
    "an end before a beginning": (turns(turn(agent(TERMINATED))), "first turn of an episode"),
    "an unknown state": (turns(turn(agent(99))), "its state is 99"),
    "NaN": (turns(turn(agent(observation=(NAN,)))), "finite"),
    "float64": (turns(turn(agent(observation=(np.zeros(2).tobytes(),)))), "expected 8"),
    "a reward without end": (turns(turn(agent(reward=float("inf")))), "its reward is inf"),
    "a value in mid-episode": (turns(turn(score=1.0)), "not over"),
    "5 MB": (turns(turn(agent(observation=(bytes(5 << 20),)))), "larger than max"),
}
AT_FIRST = {
    "turns": (turns(turn()), "expected hello"),
    "a name of 3 MB": (hello("x" * 3_000_000), "at most 128 bytes"),
    "another version": (hello(protocol=99), "speaks version 99"),
    "too many environments": (hello(n_envs=MAX_ENVS_PER_ACTOR + 1), "expected at most"),
    "no spaces": (hello(substeps=[]), "substep"),
    "100,000 substeps": (hello(offered=FLAT, substeps=[*hello().hello.substeps] * 100_000), ""),
}


@pytest.fixture
def channel() -> Iterator[grpc.Channel]:
    with served(Sink()) as (_, channel):
        yield channel


@pytest.fixture
def honest(channel: grpc.Channel) -> Game:
    """One that plays all the time."""
    game = Game(channel).say(hello("honest"))
    game.hear()
    return game


def refused(game: Game) -> str:
    with pytest.raises(grpc.RpcError) as ended:
        game.hear()
    assert ended.value.code() in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
    return str(error_from_rpc(ended.value, "here"))


@pytest.mark.parametrize("what", IN_MIDSTREAM)
def test_in_midstream(channel: grpc.Channel, honest: Game, what: str):
    message, told = IN_MIDSTREAM[what]
    game = Game(channel).say(hello("hostile"))
    game.hear()
    assert told in refused(game.say(message))
    assert honest.say(turns(turn())).hear().HasField("actions")


@pytest.mark.parametrize("what", AT_FIRST)
def test_at_first(channel: grpc.Channel, honest: Game, what: str):
    message, told = AT_FIRST[what]
    assert told in refused(Game(channel).say(message))
    assert honest.say(turns(turn())).hear().HasField("actions")
