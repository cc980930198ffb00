import pytest

from rollcast.services.settings.suggestions import did_you_mean

OPTIONS = [
    *("--n-actors", "--max-actors", "--envs-per-actor", "--double", "--no-double", "--total-steps"),
    *("--impala.learning-rate", "--impala.learning-rate-schedule", "--sac.policy-learning-rate"),
]


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("--n-actor", "did you mean --n-actors?"),
        ("--tot", "did you mean --total-steps?"),
        ("--n_actors", "did you mean --n-actors?"),
        ("--learning-rate", "did you mean --impala.learning-rate, or --sac.policy-learning-rate?"),
        ("--sac.learning-rate", "did you mean --sac.policy-learning-rate?"),
        ("--impala.learnig-rate", "did you mean --impala.learning-rate?"),
        ("--learnig-rate", "did you mean --impala.learning-rate?"),
        ("--impala.double", "did you mean --double?"),
        ("--no-duble", "did you mean --no-double?"),
        ("--lr", "did you mean --impala.learning-rate, or --sac.policy-learning-rate?"),
        ("--sac.lr", "did you mean --sac.policy-learning-rate?"),
        ("--t", ""),
        ("--gravity", ""),
        ("", ""),
    ],
)
def test_guesses_the_name_that_is_like_it(name: str, guess: str):
    assert did_you_mean(name, OPTIONS) == guess


def test_guesses_three_at_most():
    assert did_you_mean("--rate", [f"--{group}.rate" for group in "abcde"]) == (
        "did you mean --a.rate, or --b.rate, or --c.rate?"
    )


def test_prefers_the_group_that_is_named_and_then_what_applies():
    options = ["--sac.learning-rate", "--dqn.learning-rate", "--dqn.double"]
    applicable = ["--sac.learning-rate"]
    assert did_you_mean("--learning-rate", options, applicable) == "did you mean --sac.learning-rate?"
    assert did_you_mean("--dqn.rate", options, applicable) == "did you mean --dqn.learning-rate?"
    assert did_you_mean("--sac.double", options, applicable) == "did you mean --dqn.double?"
