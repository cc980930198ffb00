import errno
import fcntl
import json
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml
from pydantic import BaseModel

from rollcast.actor.environments.make import EnvironmentFactory
from rollcast.actor.vector.make import probe_spaces
from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.checkpoints.resuming import resumed_settings
from rollcast.learner.checkpoints.store import CheckpointStore
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.runs.lock import lock
from rollcast.learner.settings.learner import ServingSettings
from rollcast.learner.settings.train import TrainSettings
from rollcast.learner.training.run_keeper import WRITE_TIMEOUT_S, RunKeeper
from rollcast.learner.training.training_run import training_run
from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.resume_rules import FREE, resume_rule, why_not
from rollcast.services.settings.setting import setting
from rollcast.services.status.status import Phase
from tests.unit.learner.checkpoints.resumable_runs import OPTIONS, resumed, settings_for, train

pytestmark = pytest.mark.slow

TIC_TAC_TOE = '{"env_type": "aec", "id": "classic/tictactoe-v3"}'


def policy_of(run_dir):
    return RunDirectory(run_dir).read_policy("last")


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """A run of IMPALA that was stopped after its first checkpoint, for `copied`."""
    run_dir = tmp_path_factory.mktemp("stopped") / "run"
    train(settings_for(run_dir, "impala"), n_casts=10)
    return run_dir


@pytest.fixture(scope="module")
def ended_run(stopped_run, tmp_path_factory):
    """A run of IMPALA that has come to its end, later than the other was stopped, for `copied`."""
    run_dir = tmp_path_factory.mktemp("ended") / "run"
    train(settings_for(run_dir, "impala"))
    return run_dir


def copied(run, run_dir):
    return Path(shutil.copytree(run, run_dir))


def records(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("algorithm", "options", "stop_after"),
    [
        ("impala", ("--recurrence", "lstm"), 16),
        ("ppo", ("--normalize-observations", "--ppo.normalize-rewards"), 9),
        ("examples.own_algorithm:ActorCritic", ("--normalize-observations",), 9),
        (
            "dqn",
            (
                *("--total-steps", "100", "--normalize-observations", "--deterministic"),
                *("--replay.removal", "lowest_priority", "--replay.capacity", "64"),
            ),
            17,
        ),
        # draws from torch's global generator
        ("impala", ("--network", "tests.networks:Forgetful", "--deterministic"), 9),
        ("appo", ("--frame-stack", "3", "--normalize-observations", "--appo.normalize-rewards"), 9),
        ("tests.unit.learner.algorithms.own_algorithms:OwnDqn", (), 17),
        (
            "sac",
            (
                *("--env-id", "Pendulum-v1", "--normalize-observations"),
                *("--replay.sampler", "prioritized", "--replay.capacity", "50"),
            ),
            17,
        ),
        # more updates: actors that are in step get fewer policies
        (
            "r2d2",
            (
                *("--total-steps=100", "--deterministic", "--recurrence=gru"),
                *("--replay.capacity=12", "--replay.samples-per-insert=40"),
            ),
            17,
        ),
        (
            "dqn",
            (
                *("--total-steps", "100", "--env-id", "pettingzoo:make", "--env-kwargs", TIC_TAC_TOE),
                *("--agent-policies", "separate"),
            ),
            17,
        ),
    ],
)
def test_a_run_that_was_interrupted_has_the_bits_of_one_that_was_not(tmp_path, algorithm, options, stop_after):
    whole = train(settings_for(tmp_path / "whole", algorithm, *options))
    train(settings_for(tmp_path / "other", algorithm, *options), n_casts=stop_after)
    expected = policy_of(tmp_path / "whole")
    assert policy_of(tmp_path / "other").env_steps < expected.env_steps
    part = train(resumed(tmp_path / "other"))
    found = policy_of(tmp_path / "other")
    assert (found.env_steps, found.policy_version) == (expected.env_steps, expected.policy_version)
    assert found.mean_return == expected.mean_return
    for name, array in expected.state.items():
        np.testing.assert_array_equal(found.state[name], array, strict=True)
    before, after = whole.control.status(), part.control.status()
    for name in ("env_steps", "updates", "episodes", "mean_return", "policy_version", "policy_lag_mean"):
        assert getattr(after, name) == getattr(before, name), name
    if before.replay is not None and after.replay is not None:
        for name in ("size", "inserted", "sampled", "difference"):
            assert getattr(after.replay, name) == getattr(before.replay, name), name
    counts = [actors.get_epoch_stats_aggregator().state()[0] for actors in (whole.actors, part.actors)]
    assert counts[0] == counts[1], "cumulative statistics"


@pytest.fixture(scope="module")
def run_of_many_episodes(tmp_path_factory):
    """A run that has come to its end after 100 episodes, each of 5 steps and the return 15."""
    run_dir = tmp_path_factory.mktemp("episodes") / "run"
    train(settings_for(run_dir, "impala", "--env-id", "tests.environments:CountingEnv"))
    return run_dir


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ((), {"--total-steps": r"640 \(6\d\d env steps\)"}),
        (("--total-steps", "320"), {"--total-steps": r"320 \(6\d\d env steps\)"}),
        (("--total-steps", "700", "--stop-return", "14"), {"--stop-return": r"14 \(mean return 15\.0\)"}),
        (
            ("--stop-return", "14"),
            {"--stop-return": r"14 \(mean return 15\.0\)", "--total-steps": r"640 \(6\d\d env steps\)"},
        ),
        (("--total-steps", "700"), {}),
    ],
)
def test_a_run_that_had_reached_its_end_says_at_which_limit(run_of_many_episodes, tmp_path, options, limits):
    said = []
    train(resumed(copied(run_of_many_episodes, tmp_path / "run"), *options), announce=said.append)
    reached = " and ".join(f"{option} {values}" for option, values in limits.items())
    expected = f"the run had already reached {reached}; to train it further, raise {' and '.join(limits)}"
    lines = [line for line in said if "already reached" in line]
    assert len(lines) == bool(limits)
    assert all(re.fullmatch(expected, line) for line in lines), lines


def test_a_run_by_the_former_default_goes_on_by_it_if_no_algorithm_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Path("runs/before")
    train(settings_for(run, "impala"), n_casts=9)
    given = f"--hidden-sizes 8 --device cpu --torch-threads 1 --actor-kind sequential {OPTIONS['impala']}".split()

    def by(*options: str) -> tuple[str, str | None]:
        found = TrainSettings.from_command_line("rollcast train", [*given, *options])
        return found.algorithm, found.resume

    assert by() == ("ppo", None)
    assert by("--resume", "auto") == ("impala", str(run))
    assert by("--resume", "auto", "--algorithm", "ppo") == ("ppo", None)
    assert by("--resume", str(run)) == ("impala", str(run))
    # of a time when there was no other
    settings = RunDirectory(run).read_settings()
    del settings["algorithm"]
    RunDirectory(run).write_settings(settings)
    assert by("--resume", str(run)) == ("impala", str(run))
    train(resumed(run))
    assert RunDirectory(run).read_settings()["algorithm"] == "impala"


def test_metrics_go_on_in_the_same_file(tmp_path):
    train(settings_for(tmp_path / "run", "impala", "--log-interval-s", "1e-9"), n_casts=10)
    checkpoint = CheckpointStore(tmp_path / "run" / "checkpoints", keep=1).newest()
    assert checkpoint is not None
    assert checkpoint[1].n_updates == 5
    assert records(tmp_path / "run")[-1]["env_steps"] > checkpoint[1].env_steps
    train(resumed(tmp_path / "run"))
    steps = [record["env_steps"] for record in records(tmp_path / "run")]
    assert steps == sorted(set(steps)), "what was made twice is written once"
    assert steps[-1] >= 640
    assert len(list((tmp_path / "run" / "tensorboard").glob("events*"))) == 2


def test_a_resume_that_is_refused_leaves_the_metrics_as_they_were(tmp_path):
    run_dir = tmp_path / "run"
    train(settings_for(run_dir, "impala", "--deterministic"), n_casts=9)
    with (run_dir / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"env_steps": 1000000}\n')
    before = records(run_dir)

    def make_actors(policy, serving):
        return RemoteDistributedActors(policy, 8, 4, envs_per_actor=2, serving=serving)

    spaces = probe_spaces(EnvironmentFactory("CartPole-v1"))
    with (
        pytest.raises(ConfigurationError, match="--resume with --deterministic, and actors in other processes"),
        training_run(resumed(run_dir), spaces, make_actors, n_local_actors=0),
    ):
        pass
    assert records(run_dir) == before


def test_a_run_that_has_ended_ends_at_once_unless_more_is_asked_for(tmp_path):
    first = train(settings_for(tmp_path / "run", "impala"))
    policy = (tmp_path / "run" / "policy_last.safetensors").read_bytes()
    again = train(resumed(tmp_path / "run"))
    before, after = first.control.status(), again.control.status()
    assert (after.env_steps, after.policy_version) == (before.env_steps, before.policy_version)
    assert again.actors.n_actors_alive == 0, "nobody was started"
    assert (tmp_path / "run" / "policy_last.safetensors").read_bytes() == policy
    more = train(resumed(tmp_path / "run", "--total-steps", "900"))
    assert more.control.status().env_steps >= 900
    assert yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())["total_steps"] == 900


@pytest.mark.parametrize("keep", ["1", "3"])
def test_a_damaged_checkpoint_is_passed_over_and_removed(tmp_path, keep):
    train(settings_for(tmp_path / "run", "impala", "--keep-checkpoints", "3"), n_casts=15)
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep=1)
    assert [path.name for path in store.all()] == ["00000005", "00000010"]
    (store.all()[-1] / "algorithm.safetensors").write_bytes(b"")
    assert train(resumed(tmp_path / "run", "--keep-checkpoints", keep), n_casts=2).control.status().updates == 6
    assert [path.name for path in store.all()] == ["00000005"]
    train(resumed(tmp_path / "run"))
    newest = store.newest()
    assert newest is not None
    assert newest[1].has_ended


def test_before_the_first_checkpoint_a_run_begins_again(tmp_path):
    train(settings_for(tmp_path / "run", "impala"), n_casts=3)
    run = train(resumed(tmp_path / "run"))
    assert run.control.status().env_steps >= 640


def test_settings_are_those_of_the_run(tmp_path):
    begun = settings_for(tmp_path / "run", "impala", "--seed", "7", "--impala.discount", "0.9")
    RunDirectory.create(tmp_path, "run").write_settings(begun.model_dump(mode="json", exclude={"resume"}))
    found = resumed(tmp_path / "run", "--total-steps", "5000", "--seed", "7")
    assert (found.seed, found.impala.discount, found.total_steps) == (7, 0.9, 5000)
    assert (found.run_dir, found.hidden_sizes) == (tmp_path / "run", (8,))
    with pytest.raises(ConfigurationError) as raised:
        resumed(tmp_path / "run", "--seed", "8", "--impala.discount", "0.99", "--n-actors", "3")
    assert "--impala.discount is 0.99 and the run's is 0.9, which stays because" in str(raised.value)
    assert "--seed is 8 and the run's is 7, which stays because" in str(raised.value)
    assert "n-actors" not in str(raised.value)
    with pytest.raises(
        ConfigurationError, match=r"settings that this command does not know: actor_kind, .*the command that started it"
    ):
        ServingSettings.from_command_line("rollcast learner", ["--resume", str(tmp_path / "run")])
    with pytest.raises(ConfigurationError, match=r"nowhere' is not a run: the folder does not exist; expected"):
        resumed(tmp_path / "nowhere")


def settings_with_rules(kind, prefix=()):
    """Finds every setting of a process, those inside of others by their path."""
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from settings_with_rules(field.annotation, (*prefix, name))
        else:
            yield ".".join((*prefix, name)), resume_rule(field)


@pytest.mark.parametrize("kind", [TrainSettings, ServingSettings])
def test_every_setting_says_whether_a_resumed_run_may_change_it(kind):
    rules = dict(settings_with_rules(kind))
    assert len(rules) > 100
    assert not [name for name, rule in rules.items() if rule is None]
    for name in ("hidden_sizes", "network", "algorithm", "env_id", "replay.entry", "replay.capacity", "initial_policy"):
        assert len(why_not(rules[name])) > 20, name
    for name in (
        *("impala.learning_rate", "impala.entropy_cost", "impala.learning_rate_schedule", "dqn.epsilon", "batch_size"),
        *("sac.critic_learning_rate", "limits.max_connections", "envs_per_actor", "log_interval_s", "total_steps"),
    ):
        assert not why_not(rules[name]), name


@pytest.mark.parametrize(
    ("algorithm", "changed"),
    [
        ("impala", ("--impala.learning-rate", "0.0003", "--batch-size", "6", "--envs-per-actor", "2")),
        ("dqn", ("--dqn.learning-rate", "0.0003", "--dqn.n-epsilons", "3", "--batch-size", "20", "--n-actors", "3")),
    ],
)
def test_a_run_goes_on_with_changed_settings_and_keeps_their_history(tmp_path, algorithm, changed):
    run_dir = tmp_path / "run"
    train(
        settings_for(run_dir, algorithm, "--limits.max-connections", "77"), n_casts=9 if algorithm == "impala" else 17
    )
    before = RunDirectory(run_dir).read_settings()
    said = []
    run = train(resumed(run_dir, *changed), announce=said.append)
    assert run.control.status().phase is Phase.FINISHED
    after = RunDirectory(run_dir).read_settings()
    (entry,) = RunDirectory(run_dir).read_history()
    assert 0 < entry["env_steps"] < run.control.status().env_steps
    options = dict(zip(changed[::2], changed[1::2], strict=True))
    assert {"--" + name.replace("_", "-") for name in entry["changed"]} == options.keys()
    for name, (old, new) in entry["changed"].items():
        *outer, last = name.split(".")
        holder_before, holder_after = (values[outer[0]] if outer else values for values in (before, after))
        assert (holder_before[last], holder_after[last]) == (old, new)
        assert any(f"{name} {old} -> {new}" in line for line in said)
    assert after["limits"]["max_connections"] == 77, "what is not given stays the run's"
    assert any("not bit-identical" in line for line in said), "checkpoints by updates had promised the same bits"
    train(resumed(run_dir, "--total-steps", "700", "--log-level", "ERROR"), n_casts=2)
    history = RunDirectory(run_dir).read_history()
    assert [set(entry["changed"]) for entry in history][1:] == [{"log_level", "total_steps"}]


def said_by(run_dir: Path, *options: str) -> list[str]:
    """The messages of a run that is resumed."""
    said: list[str] = []
    train(resumed(run_dir, *options), n_casts=2, announce=said.append)
    return said


def test_nothing_is_said_of_bits_where_only_what_is_written_changes(tmp_path, stopped_run):
    said = said_by(copied(stopped_run, tmp_path / "run"), "--log-interval-s", "9")
    assert [line for line in said if "changed" in line] == ["changed settings: log_interval_s 2.0 -> 9.0"]


def test_another_total_says_what_becomes_of_the_schedules_that_follow_it(tmp_path, stopped_run):
    begun = settings_for(stopped_run, "impala")
    said = said_by(copied(stopped_run, tmp_path / "run"), "--total-steps", "2560")
    (steps,) = [int(found[1]) for line in said if (found := re.search(r"([0-9]+) env steps", line))]
    assert 0 < steps < 640
    before, now = (begun.impala.schedules()["learning_rate"](steps / total) for total in (640, 2560))
    assert [line for line in said if "schedules" in line] == [
        f"schedules follow total_steps, and continue from other values: impala.learning_rate {before:.3g} -> {now:.3g}"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--hidden-sizes", "9"),
            r"--hidden-sizes is \[9\] and the run's is \[8\], which stays because the checkpoint",
        ),
        (("--impala.optimizer", "rmsprop"), "--impala.optimizer is 'rmsprop' .* the state of that optimiser"),
        (("--replay.entry", "rollouts"), "--replay.entry is 'rollouts' .* in the layout that it had"),
        (("--env-id", "Acrobot-v1"), "--env-id is 'Acrobot-v1' .* another task"),
        (
            ("--algorithm", "dqn"),
            "--algorithm is 'dqn' .* of that algorithm.*start another run from its policy with --initial-policy",
        ),
    ],
)
def test_a_change_that_cannot_be_is_refused_by_name_with_its_reason(tmp_path, options, message):
    begun = settings_for(tmp_path / "run", "impala")
    RunDirectory.create(tmp_path, "run").write_settings(begun.model_dump(mode="json", exclude={"resume"}))
    with pytest.raises(ConfigurationError, match=message):
        resumed(tmp_path / "run", *options)


def test_auto_finds_the_newest_run_of_these_settings_that_has_not_ended(tmp_path, monkeypatch, stopped_run, ended_run):
    monkeypatch.chdir(tmp_path)

    def auto(*options: str) -> TrainSettings:
        arguments = ["--algorithm", "impala", "--hidden-sizes", "8", "--n-rollout-steps", "8", "--envs-per-actor", "3"]
        arguments += ["--batch-size", "4", "--actor-kind", "sequential", "--checkpoint-interval-updates", "5"]
        return TrainSettings.from_command_line("rollcast train", [*arguments, "--resume", "auto", *options])

    assert auto().resume is None
    assert auto().run_dir is None
    copied(stopped_run, tmp_path / "runs" / "first")
    assert auto().resume == "runs/first"
    assert str(auto("--total-steps", "640").run_dir) == "runs/first"
    assert auto("--n-actors", "7").resume == "runs/first"
    assert auto("--seed", "1").resume is None, "another configuration"
    assert auto("--env-kwargs", '{"sutton_barto_reward": true}').resume is None, "another environment"
    copied(ended_run, tmp_path / "runs" / "ended")
    train(settings_for(tmp_path / "runs" / "early", "impala"), n_casts=2)
    assert auto().resume == "runs/first", "not one that has ended, nor one without a checkpoint"
    with RunDirectory(tmp_path / "runs" / "first").locked():
        assert auto().resume is None, "somebody trains in it"


def test_auto_finds_a_run_whose_rollouts_were_shorter_for_its_number_of_actors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def of(*options: str) -> TrainSettings:
        return TrainSettings.from_command_line("rollcast train", ["--envs-per-actor", "64", *options])

    begun = of("--n-actors", "8")
    assert begun.n_rollout_steps == 32
    run = RunDirectory.create(Path("runs"), "first")
    run.write_settings(begun.model_dump(mode="json", exclude={"resume"}))
    run.log_path.mkdir()
    (run.log_path / "1.log").touch()
    again = of("--n-actors", "2", "--resume", "auto")
    assert (again.resume, again.n_rollout_steps, again.n_actors) == ("runs/first", 32, 2)
    assert of("--n-rollout-steps", "128", "--resume", "auto").resume is None


def found(settings: TrainSettings, runs: Path) -> Path | None:
    """Returns the run that `--resume auto` finds."""
    resume = resumed_settings(settings, TrainSettings(), for_sizes=lambda settings: settings, runs=runs)["resume"]
    return None if resume is None else Path(resume)


LAKE = ("--env-id", "FrozenLake-v1", "--env-kwargs")


def test_a_run_goes_on_in_an_environment_with_other_arguments(tmp_path):
    train(settings_for(tmp_path / "run", "impala", *LAKE, '{"is_slippery": true}'), n_casts=9)
    said = []
    run = train(resumed(tmp_path / "run", "--env-kwargs", '{"reward_schedule": [7, 7, 7]}'), announce=said.append)
    assert any(
        "changed settings: env_kwargs {'is_slippery': True} -> {'reward_schedule': [7, 7, 7]}" in line for line in said
    )
    assert RunDirectory(tmp_path / "run").read_settings()["env_kwargs"] == {"reward_schedule": [7, 7, 7]}
    assert run.control.status().mean_return > 1.0, "no episode of the first environment has such a return"


def test_other_arguments_that_make_other_spaces_are_refused(tmp_path):
    train(settings_for(tmp_path / "run", "impala", *LAKE, '{"map_name": "4x4"}'), n_casts=9)
    with pytest.raises(ConfigurationError, match="64"):
        train(resumed(tmp_path / "run", "--env-kwargs", '{"map_name": "8x8"}'))
    assert RunDirectory(tmp_path / "run").read_settings()["env_kwargs"] == {"map_name": "4x4"}


def refuse_to_lock(descriptor, kind):
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("locks_files", [True, False])
def test_searches_at_the_same_time_find_the_same_run(tmp_path, monkeypatch, stopped_run, locks_files):
    if not locks_files:
        monkeypatch.setattr(fcntl, "flock", refuse_to_lock)
    given = settings_for(copied(stopped_run, tmp_path / "runs" / "run"), "impala")
    settings = given.model_copy(update={"run_dir": None, "resume": "auto"})
    start = threading.Barrier(4)

    def search(_):
        start.wait()
        return [found(settings, tmp_path / "runs") for _ in range(10)]

    with ThreadPoolExecutor(4) as ranks:
        assert [*ranks.map(search, range(4))] == [[tmp_path / "runs" / "run"] * 10] * 4


def test_a_search_that_hangs_is_waited_for_so_long_only(tmp_path, monkeypatch, stopped_run):
    given = settings_for(copied(stopped_run, tmp_path / "runs" / "run"), "impala")
    settings = given.model_copy(update={"run_dir": None, "resume": "auto"})
    monkeypatch.setattr("rollcast.learner.checkpoints.resuming._SEARCH_S", 0.1)
    with lock(tmp_path / "runs"):
        with pytest.raises(ConfigurationError, match=r"another process has been looking for a run .*--run-dir"):
            found(settings, tmp_path / "runs")
    assert found(settings, tmp_path / "runs") == tmp_path / "runs" / "run"


class SettingsThatServe(TrainSettings):
    when_finished: str = setting("serve", "Its end.", FREE)


def test_auto_finds_a_run_that_has_ended_where_its_policy_is_to_be_served(tmp_path, ended_run):
    settings = settings_for(copied(ended_run, tmp_path / "runs" / "first"), "impala")
    anywhere = settings.model_copy(update={"run_dir": None, "resume": "auto"})
    assert found(anywhere, tmp_path / "runs") is None
    serving = SettingsThatServe(**anywhere.model_dump(mode="json"))
    assert found(serving, tmp_path / "runs") == tmp_path / "runs" / "first"


def test_saving_may_take_as_long_as_is_said_where_the_run_was_stopped(tmp_path, monkeypatch):
    seen = []
    save = RunKeeper.save_policies
    monkeypatch.setattr(
        RunKeeper, "save_policies", lambda self, timeout_s: seen.append(timeout_s) or save(self, timeout_s)
    )
    options = ("--stop-timeout-s", "8")
    train(settings_for(tmp_path / "stopped", "impala", *options), n_casts=2)
    train(settings_for(tmp_path / "ended", "impala", *options))
    assert seen == [4.0, WRITE_TIMEOUT_S], "as much again for the checkpoint; an end has all the time that a disk takes"


@pytest.mark.parametrize("name", ["stage", "commit"])
def test_training_goes_on_when_a_checkpoint_cannot_be_written(tmp_path, monkeypatch, caplog, name):
    method, calls = getattr(CheckpointStore, name), iter(range(100))

    def fail_once(self, *arguments, **options):
        if next(calls) == 1:
            raise OSError("no space left on device")
        return method(self, *arguments, **options)

    monkeypatch.setattr(CheckpointStore, name, fail_once)
    train(settings_for(tmp_path / "run", "impala", "--keep-checkpoints", "9"))
    names = [path.name for path in CheckpointStore(tmp_path / "run" / "checkpoints", keep=1).all()]
    assert names[:2] == ["00000005", "00000015"]
    assert (
        "the checkpoint after 10 updates is not written: no space left on device; the previous one is kept"
        in caplog.text
    )


def test_training_goes_on_when_the_best_policy_cannot_be_written(tmp_path, monkeypatch, caplog):
    write, failed = RunDirectory.write_policy, []

    def fail_once(self, name, policy):
        if name == "best" and not failed:
            failed.append(name)
            raise OSError("no space left on device")
        write(self, name, policy)

    monkeypatch.setattr(RunDirectory, "write_policy", fail_once)
    monkeypatch.setattr("rollcast.learner.training.run_keeper._BEST_POLICY_INTERVAL_S", 0.0)
    run = train(settings_for(tmp_path / "run", "impala", "--total-steps", "4800"))
    assert "the best policy is not written: no space left on device" in caplog.text
    assert run.run_directory.read_policy("best").mean_return is not None, "and is, when the next is due"


def test_checkpoints_by_time_change_nothing(tmp_path):
    for name, seconds in (("often", 1e-9), ("never", 1e9)):
        settings = settings_for(tmp_path / name, "impala")
        changes = {"checkpoint_interval_updates": None, "checkpoint_interval_s": seconds}
        train(settings.model_copy(update=changes))
    often, never = policy_of(tmp_path / "often"), policy_of(tmp_path / "never")
    for key, array in never.state.items():
        np.testing.assert_array_equal(often.state[key], array, strict=True)


@pytest.mark.parametrize("how", ["folder", "auto"])
def test_a_run_that_was_killed_between_two_renames_has_its_checkpoint(tmp_path, monkeypatch, stopped_run, how):
    monkeypatch.chdir(tmp_path)
    copied(stopped_run, tmp_path / "runs" / "run")
    (checkpoint,) = CheckpointStore(tmp_path / "runs" / "run" / "checkpoints", keep=1).all()
    checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}.replaced"))
    found = resumed(Path("runs/run")) if how == "folder" else settings_for(Path("runs/run"), "impala", "--resume=auto")
    assert train(found, n_casts=2).control.status().updates == 6
