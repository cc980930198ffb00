import re

import pytest

from rollcast.learner.ranks.rank_info import RankInfo, rank_info
from rollcast.services.errors import ConfigurationError

FOUND = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}


def test_reads_the_variables_of_torchrun():
    of_torchrun = {
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RANK": "0",
    }
    assert rank_info(FOUND | of_torchrun) == RankInfo(
        rank=0, n_ranks=4, n_local_ranks=2, local_rank=0, host="host", port=29500, attempt=3
    )


def test_rank_0_serves_the_store_unless_torchrun_does():
    place = rank_info(FOUND | {"RANK": "0"})
    assert place is not None
    assert place.hosts_store
    assert not (rank_info(FOUND) or place).hosts_store


@pytest.mark.parametrize("variables", [{}, {"RANK": "", "WORLD_SIZE": ""}, FOUND | {"RANK": "0", "WORLD_SIZE": "1"}])
def test_a_process_that_is_alone_has_no_place(variables):
    assert rank_info(variables) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"WORLD_SIZE": ""}, "RANK is '1', and WORLD_SIZE is not set"),
        ({"RANK": ""}, "WORLD_SIZE is '4', and RANK is not set"),
        ({"MASTER_ADDR": ""}, "RANK is 1 and WORLD_SIZE 4, and MASTER_ADDR is not set"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is not set"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT is '70000'; expected a whole number, 1 to 65535"),
        ({"RANK": "4"}, "RANK is '4'; expected a whole number, 0 to 3"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; expected a whole number, 1 or more"),
        ({"WORLD_SIZE": "٢"}, "WORLD_SIZE is '٢'"),
    ],
)
def test_refuses_variables_that_name_no_place(changes, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        rank_info(FOUND | changes)
