"""Serves the page to browsers, in its own process."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from nicegui import Client, ui

from rollcast.services.address import parse_web_address
from rollcast.services.errors import AddressInUseError, ConfigurationError
from rollcast.tools.dashboard.connections import BoundedConnection
from rollcast.tools.dashboard.doors import Doors
from rollcast.tools.dashboard.page import Page
from rollcast.tools.dashboard.text import Text
from rollcast.tools.dashboard.watched import Watched

# Seconds between two checks of the role, which a restarted learner or a new token file may change.
_ASK_ROLE_S: Final = 5.0
# Seconds that open pages may take to close when the server stops.
_GRACE_S: Final = 1
# Seconds within which a browser that lost its connection, as a busy machine does, finds its page again. After that it
# loads the page anew, without the outcome of the last command.
_KEEP_PAGE_S: Final = 60.0
# Most pages that were requested but not opened. Each takes 0.9 MB, and NiceGUI keeps it for a minute.
_MAX_UNOPENED: Final = 16
_ICON: Final = Path(__file__).with_name("icon.svg")


class DashboardServer:
    """Serves the pages of learners until `stop`.

    Args:
        learners: The learners; each has a page at `/0`, `/1` and so on, and the first one at `/`, too.
        address: "host:port"; port 0: any free one.
        host_names: The names, besides `localhost` and IP addresses, under which browsers may request the page.

    Raises:
        ConfigurationError: The address is not "host:port", or its host cannot be resolved.
        AddressInUseError: The page cannot listen there, for example because another server does.
    """

    def __init__(self, learners: Sequence[Watched], address: str, *, host_names: Collection[str] = ()) -> None:
        self._learners = learners
        self._socket, host = _listen(address)
        port = self._socket.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        app = FastAPI(lifespan=self._lifespan, openapi_url=None)
        app.add_api_route("/healthz", _healthy, response_class=PlainTextResponse, include_in_schema=False)
        ui.page("/", title="rollcast", reconnect_timeout=_KEEP_PAGE_S)(lambda: self._page("0"))
        ui.page("/{index}", title="rollcast", reconnect_timeout=_KEEP_PAGE_S)(self._page)
        ui.run_with(
            app,
            title="rollcast",
            dark=None,
            favicon=_ICON,
            tailwind=False,
            binding_refresh_interval=None,
            show_welcome_message=False,
            # Browsers are asked every 0.8 of this time whether they are there, and have 0.4 of it to answer.
            reconnect_timeout=10.0,
            gzip_middleware_factory=None,
        )
        config = uvicorn.Config(
            Doors(app, {*host_names, host}),
            http=BoundedConnection,
            # uvicorn logs to this process's log, which is bounded.
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Server(config)

    def run(self, on_serving: Callable[[], None]) -> None:
        """Serves until `stop`.

        Args:
            on_serving: Called when browsers can open the page.
        """
        self._server.on_serving = on_serving
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Makes `run` return. Any thread and any signal handler may call it."""
        self._server.should_exit = True

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        del app
        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(_keep_role(watched)) for watched in self._learners]
            yield
            for task in asking:
                task.cancel()

    def _page(self, index: str) -> None:
        if not (index.isascii() and index.isdecimal() and int(index) < len(self._learners)):
            Text(f"There is no page {index!r}; expected /0 to /{len(self._learners) - 1}.")
            return
        unopened = [client for client in Client.instances.values() if not client.has_socket_connection]
        # This page's client is the last of them.
        for client in unopened[:-_MAX_UNOPENED]:
            client.delete()
        Page(self._learners[int(index)], self._learners)


class _Server(uvicorn.Server):
    """A server that leaves signals to the command, and calls `on_serving` when it serves."""

    on_serving: Callable[[], None] = staticmethod(lambda: None)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles no signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to serve."""
        await super().startup(sockets)
        if self.started:
            self.on_serving()


async def _healthy() -> str:
    return "the page is served\n"


async def _keep_role(watched: Watched) -> None:
    while True:
        await asyncio.to_thread(watched.ask_role)
        await asyncio.sleep(_ASK_ROLE_S)


def _listen(address: str) -> tuple[socket.socket, str]:
    """Returns a socket that listens at an address, and the host of that address."""
    parsed = parse_web_address(address)
    try:
        candidates = socket.getaddrinfo(parsed.host, parsed.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"the host of the address {address!r} cannot be resolved: {error}; expected a name or IP address of this "
            "machine, for example 127.0.0.1 or 0.0.0.0; correct it"
        ) from error
    # IPv4 first, which most users expect of `localhost`
    family, kind, protocol, _, where = min(candidates, key=lambda candidate: candidate[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise AddressInUseError(
            f"the page cannot be served at {address!r}: {error.strerror}; expected a free port of this machine; choose "
            "another, or port 0 for any free one: --listen-address localhost:0"
        ) from error
    return listener, parsed.host
