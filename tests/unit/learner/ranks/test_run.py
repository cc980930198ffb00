import pytest

from rollcast.learner.ranks.run import rank_address
from rollcast.services.errors import ConfigurationError


@pytest.mark.parametrize(
    ("address", "of_rank_2"),
    [
        ("localhost:50051", "localhost:50053"),
        ("[::1]:50051", "[::1]:50053"),
        ("0.0.0.0:0", "0.0.0.0:0"),
        ("unix:/tmp/learner.sock", "unix:/tmp/learner.sock.2"),
    ],
)
def test_each_rank_has_an_address_of_its_own(address: str, of_rank_2: str):
    assert rank_address(address, 0) == address
    assert rank_address(address, 2) == of_rank_2


def test_a_port_that_there_is_not_is_refused():
    with pytest.raises(ConfigurationError, match="rank 2, whose port would be 65537; expected a port from which"):
        rank_address("localhost:65535", 2)
