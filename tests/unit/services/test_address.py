import pytest

from rollcast.services.address import exclude_one_another, following_address, parse_address, shown_peer
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
    "text", ["", "localhost", ":1", "a:65536", "a:b", "a b:1", "unix:", "unix:" + "x" * 108, "unix:/\udcff", "a:1\n"]
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


@pytest.mark.parametrize(
    ("address", "second_after"),
    [
        ("localhost:50051", "localhost:50053"),
        ("[::1]:50051", "[::1]:50053"),
        ("0.0.0.0:0", "0.0.0.0:0"),
        ("unix:/tmp/learner.sock", "unix:/tmp/learner.sock.2"),
    ],
)
def test_further_servers_of_a_learner_follow_its_address(address: str, second_after: str):
    assert following_address(address, 0, "rank 0") == address
    assert following_address(address, 2, "rank 2") == second_after


@pytest.mark.parametrize(
    ("one", "other", "excluded"),
    [
        ("127.0.0.1:5", "127.0.0.1:5", True),
        ("127.0.0.1:5", "127.0.0.1:6", False),
        ("127.0.0.1:5", "127.0.0.2:5", False),
        ("0.0.0.0:5", "127.0.0.2:5", True),
        ("0.0.0.0:0", "0.0.0.0:0", False),
        ("unix:/a", "unix:/a", True),
        ("unix:/a", "127.0.0.1:5", False),
    ],
)
def test_servers_of_a_machine_exclude_one_another_at_one_port(one: str, other: str, excluded: bool):
    assert exclude_one_another(parse_address(one), parse_address(other)) is excluded
    assert exclude_one_another(parse_address(other), parse_address(one)) is excluded


def test_a_port_that_there_is_not_is_refused():
    with pytest.raises(ConfigurationError, match="rank 2, whose port would be 65537; expected a port that leaves"):
        following_address("localhost:65535", 2, "rank 2")
