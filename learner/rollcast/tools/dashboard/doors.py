"""Decides which requests of browsers reach the page: none that another website makes its visitor send."""

import ipaddress
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

Message: TypeAlias = dict[str, Any]
Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

# The page loads what this server ships, and nothing else; no other page shows it in a frame, under its own buttons.
# Vue compiles templates in the browser, hence 'unsafe-eval'; NiceGUI's page has scripts and styles in it.
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
    """An ASGI application before another: refuses names that are not the page's, and requests of other websites.

    A website can give its own name this machine's address (DNS rebinding), and a browser then takes the page for that
    website's. So only numbers, `localhost` and the given names are taken. A WebSocket of another website's page, which
    browsers allow, has that website as its origin.

    Args:
        app: The application behind it.
        host_names: The names, beside `localhost` and numbers, under which browsers may ask for the page.
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
                f"the browser asked for {host!r}; expected localhost, a number, or a name given with --host-names; "
                "ask under such a name, or give this one"
            )
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return f"a page of {origin!r} asked; expected one of {host!r}; open the page itself"
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
