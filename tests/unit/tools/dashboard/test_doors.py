"""Requests of other websites do not reach the page, whatever they say; those of its own do."""

import asyncio

import pytest

from rollcast.tools.dashboard.doors import Doors


async def _page(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"the page"})
    elif scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    else:
        await send({"type": "lifespan.startup.complete"})


def ask(kind="http", **headers):
    """The messages that an application sends for a request."""
    scope = {"type": kind, "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Doors(_page, ["page.example"])(scope, None, send))
    return sent


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080", "192.0.2.7", "page.example:80"],
)
def test_lets_its_own_names_and_numbers_in(host):
    assert ask(host=host, origin=f"http://{host}")[0]["status"] == 200
    assert ask("websocket", host=host, origin=f"http://{host}")[0]["type"] == "websocket.accept"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "", ":80", "[::1", "127.0.0.1.evil.example"]
)
def test_refuses_other_names(host):
    start, body = ask(host=host)
    assert start["status"] == 421
    assert b"expected localhost" in body["body"]
    assert ask("websocket", host=host)[0]["type"] == "websocket.close"


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:9999", "null", "http://localhost"])
def test_refuses_pages_of_others(origin):
    assert ask(host="localhost:8080", origin=origin)[0]["status"] == 421
    assert ask("websocket", host="localhost:8080", origin=origin)[0]["type"] == "websocket.close"


def test_refuses_a_request_that_names_nobody():
    assert ask()[0]["status"] == 421


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_no_answer_may_be_framed_or_load_from_elsewhere(host):
    headers = dict(ask(host=host)[0]["headers"])
    assert b"frame-ancestors 'none'" in headers[b"content-security-policy"]
    assert b"default-src 'self'" in headers[b"content-security-policy"]


def test_leaves_the_life_of_the_server_alone():
    assert ask("lifespan") == [{"type": "lifespan.startup.complete"}]
