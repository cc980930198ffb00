"""Two learner ranks in containers, with the actors of both: deploy/compose/ddp.yml on top of docker-compose.yml."""

import contextlib
import re
import shlex

import pytest

from tests.documents import commands, section_of
from tests.e2e.conftest import ENDLESS, wait_until
from tests.e2e.watch import Watch

# The first process of rank 1: those that it starts have the same variable, and higher numbers.
KILL_RANK_1 = "kill -9 $(grep -lxz RANK=1 /proc/[0-9]*/environ | cut -d/ -f3 | sort -n | head -1)"
START_S = 240


@contextlib.contextmanager
def both_ranks(compose):
    """Watches both ranks at the container's own address; only that of rank 0 has a port on this machine."""
    (learner,) = compose.containers("learner")
    (network,) = learner.attrs["NetworkSettings"]["Networks"].values()
    with Watch(f"{network['IPAddress']}:50051") as first, Watch(f"{network['IPAddress']}:50052") as second:
        yield first, second


def wait_for_both(ranks):
    """Waits until both ranks train with an actor each, and returns these: actor -> incarnation, by rank."""
    for rank in ranks:
        rank.wait_for_training(1, START_S)
    for rank in ranks:
        rank.wait_for_progress()
    return [rank.incarnations() for rank in ranks]


@pytest.mark.parametrize("compose", [ENDLESS | {"OVERRIDE": "deploy/compose/ddp.yml"}], indirect=True)
def test_two_ranks_share_the_actors_and_come_back_with_them_when_one_is_killed(compose):
    section = section_of("several_learners.md", "In containers")
    files, up, status, down = (shlex.split(line) for line in commands(section)[:4])
    assert files == ["export", "COMPOSE_FILE=docker-compose.yml:deploy/compose/ddp.yml"], "as the project here has them"
    # the images are built; two of the four actors are enough
    compose.run(*(word for word in up[2:] if word != "--build"), "--scale", "actor=2")
    with both_ranks(compose) as ranks:
        actors = wait_for_both(ranks)
        assert {*actors[0], *actors[1]} == {actor.id[:12] for actor in compose.containers("actor")}
        assert not actors[0].keys() & actors[1].keys(), "each actor has one rank"

        def shows_its_actors():
            # a test has no terminal
            shown = compose.run("exec", "-T", *status[3:])
            return all(re.search(rf"^\d+ +{actor} +streaming", shown, re.MULTILINE) for actor in actors[1])

        wait_until(shows_its_actors, "the actors of rank 1 in its table")
        # updates after the checkpoint are lost
        saved = [rank.client.status() for rank in ranks]
        ranks[0].client.save_checkpoint()

    (learner,) = compose.containers("learner")
    # by itself, as when memory runs out: ends the other, and both come back
    killed = learner.exec_run(["sh", "-c", KILL_RANK_1])
    assert killed.exit_code == 0, killed.output
    wait_until(lambda: learner.reload() or learner.attrs["RestartCount"] == 1, "the engine's restart", START_S)
    with both_ranks(compose) as ranks:
        assert wait_for_both(ranks) == actors, "the same processes at the same ranks"
        for rank, before in zip(ranks, saved, strict=True):
            assert rank.client.status().env_steps > before.env_steps, "it goes on from the checkpoint"
            assert rank.client.status().policy_version > before.policy_version
    assert [actor.attrs["RestartCount"] for actor in compose.containers("actor")] == [0] * 2
    logged = compose.run("logs", "--no-color", "learner")
    assert "RankLostError: rank 0 of 2 waited" in logged
    assert "rank 1 no longer answers" in logged

    # a signal to both ranks: each drains, and none of it is a failure
    compose.run("stop")
    assert compose.exit_codes() == {"runs-folder": [0], "learner": [0], "actor": [0] * 2}
    (run,) = compose.runs.glob("[!.]*")
    last = max((run / "checkpoints").iterdir())
    assert (last / "rank1" / "training.json").is_file(), "one run, with a part of each rank"
    compose.run(*down[2:])
    wait_until(lambda: compose.leftovers() == [], "nothing of it to be left")
