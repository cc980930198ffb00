import pytest

from rollcast.services.address import parse_address, shown_peer
from rollcast.services.errors import ConfigurationError


@pytest.mark.parametrize("text", ["localhost:1", "127.0.0.1:0", "[::1]:65535", "learner_1:50051"])
def test_parses_tcp_address(text):
    address = parse_address(text)
    assert address.text == text
    assert address.path is None
    assert f":{address.port}" in text


@pytest.mark.parametrize("text", ["unix:/tmp/x", "unix:///tmp/x"])
def test_parses_unix_address(text):
    assert str(parse_address(text).path) == "/tmp/x"


@pytest.mark.parametrize(
    "text", ["", "localhost", ":1", "a:65536", "a:b", "a b:1", "unix:", "unix:" + "x" * 108, "a:1\n"]
)
def test_rejects_malformed_address(text):
    with pytest.raises(ConfigurationError, match="the address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("peer", "shown"),
    [
        ("ipv6:%5B::1%5D:36172", "[::1]:36172"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5", "[fe80::1%eth0]:5"),
        ("ipv6:%5B::1%5D", "[::1]"),
        ("ipv4:10.0.0.7:5", "10.0.0.7:5"),
        ("unix:", "unix:"),
        ("", ""),
        ("all clients", "all clients"),
    ],
)
def test_callers_are_shown_as_people_write_addresses(peer, shown):
    assert shown_peer(peer) == shown
