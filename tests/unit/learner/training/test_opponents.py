"""The rating of policies by their games, and the opponents that are kept for it."""

import math
from pathlib import Path

import numpy as np
import pytest

from rollcast.actor.playing.evaluate import summarize
from rollcast.learner.training.opponents import RANDOM, Opponents, rate, score
from rollcast.services.policies.policies import PolicySpec

SPEC = PolicySpec(hidden_sizes=(4,))


def state(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(2, value, np.float32)}


def games(*margins: float):
    return summarize(margins, (5,) * len(margins))


def kept(folder: Path | None, *versions: int, n_earlier: int = 2) -> Opponents:
    opponents = Opponents(n_earlier, SPEC, folder)
    for version in versions:
        opponents.keep(version, state(version), 10.0 * version, env_steps=100 * version)
    return opponents


def test_rating_is_where_the_expected_score_is_the_score():
    many = [1.0] * 750 + [0.0] * 250
    # 400 log10(3) more points win three games of four; the one game that counts as drawn moves it a little
    assert rate({0.0: many}).value == pytest.approx(400 * math.log10(750.5 / 250.5))
    assert rate({100.0: many}).value == pytest.approx(100 + 400 * math.log10(750.5 / 250.5))
    assert rate({0.0: [1.0, 0.0]}).value == pytest.approx(0.0, abs=1e-6)
    assert rate({0.0: [0.5] * 4, 200.0: [0.5] * 4}).value == pytest.approx(100.0)


def test_rating_of_who_wins_or_loses_everything_is_finite():
    best, worst = rate({0.0: [1.0] * 20}), rate({0.0: [0.0] * 20})
    assert best.value == pytest.approx(400 * math.log10(41))
    assert worst.value == pytest.approx(-best.value)


@pytest.mark.parametrize("points", [0.0, 150.0])
def test_interval_has_the_rating_of_nineteen_players_of_twenty(points: float):
    rng = np.random.default_rng(7)
    chance = 1 / (1 + 10 ** (-points / 400))
    ratings = [rate({0.0: list(map(float, rng.random(60) < chance))}) for _ in range(400)]
    share = np.mean([low <= points <= high for _, low, high in ratings])
    assert 0.92 <= share <= 0.98, "a share of 0.95 over 400 players has a deviation of 0.011"


def test_more_than_the_others_is_a_game_won():
    assert [score(margin) for margin in (2.0, 0.0, -0.5)] == [1.0, 0.5, 0.0]


def test_first_and_last_ones_are_kept():
    opponents = kept(None, 1, 4, 6, 9)
    assert list(opponents.states) == [1, 6, 9]


def test_an_opponent_that_was_replaced_while_it_played_has_its_rating_still_and_no_more_are_remembered_than_that():
    opponents = kept(None, *range(1, 100))
    assert list(opponents.states) == [1, 98, 99]
    assert opponents.rate({97: games(0.0)}).value == pytest.approx(970.0)
    assert len(opponents.state()) < 20


def test_ratings_are_relative_to_those_of_the_opponents():
    opponents = kept(None, 10, 20)
    even = opponents.rate({RANDOM: games(1.0, -1.0), 10: games(0.0, 0.0), 20: games(0.0, 0.0)})
    assert even.value == pytest.approx(100.0, abs=1.0)
    assert opponents.rate({RANDOM: games(1.0, 1.0), 10: games(0.0), 20: games(0.0)}).value > even.value


def test_opponents_outlive_the_process(tmp_path: Path):
    folder = tmp_path / "opponents"
    before = kept(folder, 1, 4, 6, 9)
    after = Opponents(2, SPEC, folder)
    after.load_state(before.state())
    assert list(after.states) == [1, 6, 9]
    np.testing.assert_array_equal(after.states[6]["w"], state(6)["w"])
    assert after.rate({9: games(0.0)}).value == pytest.approx(90.0)


def test_policies_of_after_the_checkpoint_are_no_opponents(tmp_path: Path):
    before = kept(tmp_path / "opponents", 1, 4)
    checkpoint = before.state()
    before.keep(6, state(6), 60.0, env_steps=600)
    after = Opponents(2, SPEC, tmp_path / "opponents")
    after.load_state(checkpoint)
    assert list(after.states) == [1, 4]


def test_opponents_that_are_gone_damaged_or_of_another_network_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    folder = tmp_path / "opponents"
    before = kept(folder, 1, 4, 6)
    first, second, _ = sorted(folder.iterdir())
    first.unlink()
    second.write_bytes(second.read_bytes()[:-3])
    after = Opponents(2, SPEC, folder)
    after.load_state(before.state())
    assert list(after.states) == [6]
    assert "evaluations continue without an opponent" in caplog.text
    other = Opponents(2, PolicySpec(hidden_sizes=(5,)), folder)
    other.load_state(before.state())
    assert not other.states
    assert "its network is PolicySpec(network='auto', hidden_sizes=(4,)" in caplog.text
    assert "evaluations continue without the earlier opponents, versions [1, 4, 6]" in caplog.text
