"""The ports that tests are given: no other process is given them meanwhile, between two servers neither."""

import socket

import pytest

from tests.integration.learner_fakes import serve
from tests.processes import free_port, free_ports


def test_only_a_server_of_the_test_takes_its_port():
    address = f"localhost:{free_port()}"
    port = int(address.partition(":")[2])
    for _ in range(2):
        with serve(address) as learner, pytest.raises(OSError, match="in use"):
            assert learner.address == address
            socket.create_server(("127.0.0.1", port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_ports_that_follow_each_other_are_held_too():
    first = free_ports(3)
    for port in range(first, first + 3):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))
