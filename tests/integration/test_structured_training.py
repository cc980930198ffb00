"""Games of several agents with spaces of their own: trained in processes, each agent evaluated, and served.

Every algorithm learns of several substeps in unit/learner/algorithms/test_independent_learning.py.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.client.replay import ReplayClient
from rollcast.services.errors import InvalidInputError, SpacesMismatchError
from rollcast.services.spaces.spaces import EnvironmentSpaces
from tests.integration.learner_fakes import offer
from tests.processes import completed, ended, free_port, running, status_of, wait_until

pytestmark = pytest.mark.slow

SPEAKER = (
    *("--algorithm", "sac", "--env-id", "mpe2.simple_speaker_listener_v4:parallel_env", "--batch-size", 16),
    *("--replay.min-size", 100, "--replay.samples-per-insert", 32, "--total-steps", 400),
)
TICTACTOE = (
    *("--algorithm", "r2d2", "--env-id", "pettingzoo:make", "--agent-policies", "separate"),
    *("--env-kwargs", '{"env_type": "aec", "id": "classic/tictactoe-v3"}', "--batch-size", 8, "--n-rollout-steps", 4),
    *("--replay.sequence-length", 3, "--replay.burn-in", 1, "--replay.min-size", 50, "--recurrent-size", 8),
    *("--total-steps", 500),
)


@pytest.mark.parametrize(
    ("game", "substeps", "agents"),
    [
        (SPEAKER, {"speaker", "listener"}, {"speaker_0", "listener_0"}),
        (TICTACTOE, {"player_1", "player_2"}, {"player_1", "player_2"}),
    ],
    ids=["sac", "r2d2"],
)
def test_trains_and_evaluates_each_agent(
    game: tuple[object, ...], substeps: set[str], agents: set[str], tmp_path: Path
):
    run = tmp_path / "run"
    options = ("--n-actors", 1, "--envs-per-actor", 4, "--log-interval-s", 0.1, "--run-dir", run)
    done = completed("train", *game, *options)
    assert int(re.search(r"^updates +([\d,]+)", done.stdout, re.MULTILINE)[1].replace(",", "")) > 3
    metrics = (run / "metrics.jsonl").read_text(encoding="utf-8")
    assert all(f"/{substep}/" in metrics for substep in substeps), "what each of them learns is told"
    played = completed("evaluate", run, "--n-episodes", 3)
    assert set(re.findall(r"^ +(\w+) +[-\d.]+$", played.stdout, re.MULTILINE)) == agents


EXPECTED = r"expected one of \['speaker', 'listener'\]"


def check_acting(client: LearnerClient, spaces: EnvironmentSpaces) -> None:
    for key, substep in spaces.items():
        chosen, version = client.act({"": substep.observation.sample()[None]}, substep_key=key)
        assert chosen.shape == (1, *substep.action.shape)
        assert version > 0
    with pytest.raises(InvalidInputError, match=f"substep_key is 'x'; {EXPECTED}"):
        client.act({"": np.zeros((1, 3), np.float32)}, substep_key="x")


def check_replay(address: str, spaces: EnvironmentSpaces) -> None:
    with ReplayClient(address) as nobodys:
        for call in (nobodys.info, nobodys.reset, lambda: nobodys.update_priorities([0], [1.0])):
            with pytest.raises(InvalidInputError, match=f"substep_key is ''; {EXPECTED}"):
                call()
        with pytest.raises(InvalidInputError, match="name one"):
            next(nobodys.samples(4))
    for key, substep in spaces.items():
        with ReplayClient(address, substep_key=key) as replay:
            info = replay.info()
            assert info.spaces == {key: substep}
            assert info.size >= 100
            (batch,) = replay.samples(4, 1)
            assert batch.substeps[key].observation[""].shape == (1, 4, *substep.observation.shape)
            assert replay.update_priorities(batch.keys, np.ones(4)) < 4
    with (
        ReplayClient(address, substep_key="speaker") as speakers,
        ReplayClient(address, substep_key="listener") as listeners,
    ):
        # rollouts of the actors may be inserted later
        wait_until(lambda: speakers.reset() or speakers.info().size == 0, "an empty buffer")
        assert listeners.info().size > 0


def test_a_learner_of_several_substeps_serves_each_of_them(tmp_path: Path):
    """The learner has never heard of the game: it takes the spaces of the first actor."""
    address = f"127.0.0.1:{free_port()}"
    options = ("--spaces-from", "first_actor", "--n-rollout-steps", 8, "--hidden-sizes", 8, "--replay.capacity", 5000)
    options += (*SPEAKER[:2], *SPEAKER[4:-1], 10**9, "--stop-return", 1e9)
    serving = ("learner", "learner", "--address", address, "--run-dir", tmp_path / "run", *options)
    acting = ("actor", "--learner-address", address, "--envs-per-actor", 4, *SPEAKER[2:4])
    with (
        running(*serving, "--env-id", "not.installed:here") as learner,
        running(*acting, "--actor-id", "one"),
        running(*acting, "--actor-id", "two"),
        LearnerClient(address) as client,
    ):
        wait_until(lambda: status_of(client).updates > 10, "updates")
        wait_until(
            lambda: {info.actor_id for info in client.actors() if info.rollouts} == {"one", "two"}, "both actors"
        )
        status, spaces = client.status(), client.describe().spaces
        assert status.rejected_rollouts == status.duplicate_rollouts == 0
        assert status.replay.capacity == 10_000
        check_acting(client, spaces)
        with pytest.raises(SpacesMismatchError, match="the substeps"):
            client.join(offer("three", spaces={"speaker": spaces["speaker"]}))
        check_replay(address, spaces)
        checkpoint, _ = client.save_checkpoint()
        assert sorted(path.name for path in Path(checkpoint).glob("substep*")) == ["substep0", "substep1"]
        client.stop()
        assert ended(learner) == 0
        assert "replay buffers: 'speaker': 5,000 transitions" in learner.stdout.read()
