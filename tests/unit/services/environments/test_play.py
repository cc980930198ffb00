"""The stream of one client, over a transport that a test plays."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from rollcast.services.environments.dialled import DialledClient, DialledTurn, Hello
from rollcast.services.environments.play import EnvironmentPlay, LoopAlarm, LoopCalls
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

    def attach(self, look_later: Callable[[float], None]) -> None: ...

    def look(self) -> None: ...

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


def in_a_loop(play: Callable[[asyncio.AbstractEventLoop], Awaitable[None]]) -> None:
    async def run() -> None:
        await play(asyncio.get_running_loop())

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_calls_of_the_loop_itself_come_after_those_before_them_and_at_once() -> None:
    async def call(loop: asyncio.AbstractEventLoop) -> None:
        called: list[str] = []
        calls = LoopCalls(loop)
        other = threading.Thread(target=calls, args=(lambda: called.append("another thread's"),))
        other.start()
        other.join(DEADLINE_S)
        calls(lambda: called.append("the loop's"))
        assert called == ["another thread's", "the loop's"]

    in_a_loop(call)


@pytest.mark.parametrize("ahead_s", [-1.0, 0.0003, 0.005], ids=["past", "less than a timer's tick", "a few ticks"])
def test_an_alarm_rings_in_the_loop_and_not_before_its_time(ahead_s: float) -> None:
    async def ring(loop: asyncio.AbstractEventLoop) -> None:
        rang, rang_at = asyncio.Event(), []

        def note() -> None:
            rang_at.append((time.monotonic(), threading.get_ident()))
            rang.set()

        alarm = LoopAlarm(loop, LoopCalls(loop), note)
        at = time.monotonic() + ahead_s
        await loop.run_in_executor(None, alarm, at)
        await rang.wait()
        assert rang_at[0][0] >= at
        assert rang_at[0][1] == threading.get_ident()

    in_a_loop(ring)


def test_an_alarm_rings_at_the_earliest_time_and_can_be_set_again_then() -> None:
    async def ring(loop: asyncio.AbstractEventLoop) -> None:
        rang, n_rings = asyncio.Event(), 0

        def note() -> None:
            nonlocal n_rings
            n_rings += 1
            if n_rings == 1:
                alarm(-1.0)
            else:
                rang.set()

        alarm = LoopAlarm(loop, LoopCalls(loop), note)
        for at in (time.monotonic() + 10 * DEADLINE_S, time.monotonic(), time.monotonic() + DEADLINE_S):
            alarm(at)
        await rang.wait()
        assert n_rings == 2

    in_a_loop(ring)
