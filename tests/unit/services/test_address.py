import pytest

from rollcast.services.address import parse_address
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
