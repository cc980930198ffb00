"""Clients with environments that send too much: each is refused by name, and the honest one plays on.

unit/services/environments/test_dialled_stream.py has every rule that a turn may break.
"""

from collections.abc import Iterator

import grpc
import pytest

from rollcast.services.wire.error_status import error_from_rpc
from tests.play_messages import FLAT, agent, hello, turn, turns
from tests.unit.services.server.test_environments import Game, Sink, served

pytestmark = pytest.mark.slow

# Large messages of a client that was welcome, and the refusal of each.
IN_MIDSTREAM = {
    "100,000 agents": (turns(turn(*[agent(observation=())] * 100_000)), "leaves"),
    "5 MB": (turns(turn(agent(observation=(bytes(5 << 20),)))), "larger than max"),
}
AT_FIRST = {
    "a name of 3 MB": (hello("x" * 3_000_000), "at most 128 bytes"),
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
