"""One rank that does what `test_group` asks for: `python -m tests.rank_operations WHAT`."""

import os
import signal
import sys

import torch

from rollcast.learner.ranks import group as group_module
from rollcast.learner.ranks.group import RankGroup
from rollcast.learner.ranks.rank_info import rank_info
from rollcast.services.errors import ConfigurationError, RollcastError


def main(what: str) -> int:
    """Does it; returns 0, or 1 after an error of rollcast's own, which it prints."""
    place = rank_info(os.environ)
    assert place is not None
    is_last = place.rank == place.n_ranks - 1
    try:
        with RankGroup(place, timeout_s=4.0) as group:
            if is_last and what == "another version":
                group_module.software_version = lambda: "0.0.1"
            group.compare({"--batch-size": 8 if what != "differ" else 8 * (1 + place.rank)})
            if what == "freeze before they are connected" and place.rank == 0:
                group.told("compared", 1, what="rank 1 to need nothing but the connection")
                os.kill(os.getpid(), signal.SIGSTOP)
            group.begin("gloo")
            group.sum(torch.ones(1), "the first sum")
            if what == "freeze" and place.rank == 0:
                os.kill(os.getpid(), signal.SIGSTOP)
            group.describe_by(lambda: ("thinking", "after 7 updates"))
            if is_last and what == "die":
                os._exit(0)
            if is_last and what == "raise":
                raise ConfigurationError("a wrong number; expected another; take it")
            if is_last and what == "hang":
                print("hangs", flush=True)  # noqa: T201  # for the test, which reads it
                os.kill(os.getpid(), signal.SIGSTOP)
            if is_last and what == "stay away":
                group.told("nothing", 0, what="what never comes", timeout_s=8.0)
            rows = group.gather(torch.tensor([float(place.rank), 5.0]), "the second sum")
            root = torch.full((2,), float(place.rank))
            group.broadcast(root, "what rank 0 has")
            print(rows.tolist(), root.tolist(), flush=True)  # noqa: T201
    except RollcastError as error:
        print(f"{type(error).__name__}: {error}", flush=True)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
