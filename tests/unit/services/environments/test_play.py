"""The stream of one client, over a transport that a test plays."""

import asyncio
from collections.abc import Sequence

import pytest

from rollcast.services.environments.dialled import DialledClient, DialledTurn, Hello
from rollcast.services.environments.play import EnvironmentPlay, LoopCalls
from rollcast.services.errors import InvalidTurnError
from tests.play_messages import hello, turn, turns
from tests.processes import DEADLINE_S


class Welcomes:
    """A sink that welcomes everybody, and answers nothing.

    Attributes:
        has_left: Set when a client has.
    """

    def __init__(self) -> None:
        self.has_left = asyncio.Event()

    def open(self, hello: Hello, client: DialledClient) -> None:
        client.welcome(range(hello.n_envs))

    def take(self, client: DialledClient, turns: Sequence[DialledTurn]) -> None: ...

    def leave(self, client: DialledClient, reason: str) -> None:
        self.has_left.set()


def test_a_message_that_is_being_written_is_not_broken_off_by_an_error():
    async def play_wrongly() -> bool:
        is_written, is_sending, sink = False, asyncio.Event(), Welcomes()
        requests = iter([hello(), turns(turn(environment=7))])

        async def receive() -> bytes | None:
            request = next(requests)
            if request.HasField("turns"):
                await is_sending.wait()
            return request.SerializeToString()

        async def send(_message: bytes) -> None:
            nonlocal is_written
            is_sending.set()
            await sink.has_left.wait()
            is_written = True

        play = EnvironmentPlay(sink, LoopCalls(asyncio.get_running_loop()))
        with pytest.raises(InvalidTurnError, match="there is no such environment"):
            await play(receive, send, "ipv4:10.0.0.7:50411")
        return is_written

    assert asyncio.run(asyncio.wait_for(play_wrongly(), DEADLINE_S))
