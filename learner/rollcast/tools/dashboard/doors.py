"""Refuses requests to the page that another website makes its visitors send."""

import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

Message: TypeAlias = dict[str, Any]
Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

# The page loads only files of this server, and no website can show it in a frame under its own buttons. Vue compiles
# templates in the browser, hence 'unsafe-eval'; NiceGUI's page contains inline scripts and styles.
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data: blob:; font-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
        b"form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


class Doors:
    """An ASGI middleware that refuses foreign host names, and requests from pages of other websites.

    A website can point its own name to this machine's address (DNS rebinding), so that a browser takes the page for one
    of that website. Therefore only IP addresses, `localhost` and the given names are accepted. Browsers allow a page of
    another website to open a WebSocket, and name that website as the origin.

    Args:
        app: The application that it protects.
        host_names: The names, besides `localhost` and IP addresses, under which browsers may request the page.
    """

    def __init__(self, app: App, host_names: Collection[str]) -> None:
        self.app = app
        self._names = {name.lower() for name in host_names} | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request, or refuses it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        problem = self._problem(headers.get(b"host", ""), headers.get(b"origin"))
        if problem is None:
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "http":
            await _refuse(problem, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": problem[:120]})

    def _problem(self, host: str, origin: str | None) -> str | None:
        name = _host_name(host)
        if name is None or not (name in self._names or _is_number(name)):
            return (
                f"the browser asked for {host!r}; expected localhost, an IP address, or a name given with "
                "--host-names; use one of them, or add this name to --host-names"
            )
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return f"a page of {origin!r} sent the request; expected a page of {host!r}; open the dashboard itself"
        return None


def _host_name(host: str) -> str | None:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return None
    return name.rstrip(".") if name else None


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = message | {"headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return send_with_headers


async def _refuse(problem: str, send: Send) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *_HEADERS]
    await send({"type": "http.response.start", "status": 421, "headers": headers})
    await send({"type": "http.response.body", "body": f"{problem}\n".encode()})
