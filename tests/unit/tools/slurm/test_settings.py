import pytest

from rollcast.actor.settings import ActorSettings
from rollcast.learner.settings.learner import ServingSettings
from rollcast.services.errors import ConfigurationError
from rollcast.services.settings.file import encode_settings
from rollcast.tools.slurm.settings import SlurmSettings


def read(*arguments):
    return SlurmSettings.from_command_line("rollcast slurm", arguments)


def written(tmp_path, values):
    file = tmp_path / "settings.yaml"
    file.write_bytes(encode_settings(values))
    return file


class TestLearner:
    def test_has_the_settings_of_the_recipe_and_of_the_command_line(self, tmp_path):
        settings = read("--recipe", "ppo-cartpole", "--seed", "7", "--ppo.n-epochs", "3")
        own = ServingSettings.from_command_line(
            "rollcast learner", ["--config", str(written(tmp_path, settings.learner_values()))]
        )
        assert (own.algorithm, own.seed, own.ppo, own.recipe) == ("ppo", 7, settings.ppo, "ppo-cartpole")
        assert own.ppo.n_epochs == 3

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("--recipe", "sac-pendulum", "--stop-return", "None"), {"stop_return": None}),
            (("--recipe", "ppo-halfcheetah", "--batch-size", "None"), {"batch_size": None}),
            (("--recipe", "ppo-halfcheetah", "--no-normalize-observations"), {"normalize_observations": False}),
            (
                ("--recipe", "ppo-simple-spread", "--env-kwargs", '{"N": 0}'),
                {"env_kwargs": {"N": 0, "local_ratio": 0.5}},
            ),
            (("--recipe", "dqn-lunarlander", "--hidden-sizes", "[]"), {"hidden_sizes": []}),
        ],
    )
    def test_has_the_empty_values_that_replace_those_of_the_recipe(self, arguments, expected, tmp_path):
        file = written(tmp_path, read(*arguments).learner_values())
        own = ServingSettings.from_command_line("rollcast learner", ["--config", str(file)])
        assert own.model_dump(mode="json", include=set(expected)) == expected

    def test_listens_at_any_port_for_all_machines(self):
        assert read().learner_values()["address"] == "0.0.0.0:0"

    def test_waits_for_actors_for_as_long_as_queues_are(self):
        assert read().learner_values()["collect_timeout_s"] == 86_400

    @pytest.mark.parametrize(
        ("arguments", "room"),
        [
            ((), 64),
            (("--actors", "500"), 1000),
            (("--actors", "4000"), 4096),
            (("--actors", "5", "--max-actors", "6"), 6),
            (("--actors", "3", "--deterministic"), 3),
        ],
    )
    def test_admits_all_actors_and_more(self, arguments, room):
        assert read(*arguments).max_actors == room


class TestActors:
    def test_have_the_environment_and_the_way_to_step_it(self, tmp_path):
        settings = read("--env-kwargs", '{"gravity": 5}', "--step-timeout-s", "9", "--network", "mlp")
        own = ActorSettings.from_command_line(
            "rollcast actor", ["--config", str(written(tmp_path, settings.actor_values("evaluate")))]
        )
        assert own.env_kwargs == {"gravity": 5}
        assert (own.step_timeout_s, own.network, own.role) == (9, "mlp", "evaluate")

    def test_may_have_a_partition_and_options_of_their_own(self):
        settings = read(
            *("--partition", "gpu", "--actor-partition", "cpu", "--gpus", "1", "--time", "1-12"),
            *("--sbatch", "--mail-type=END -C fast", "--actor-sbatch=--nice=100"),
        )
        learner, actor = settings.learner_resources(), settings.actor_resources()
        assert (learner.partition, actor.partition) == ("gpu", "cpu")
        assert (learner.gpus, actor.gpus) == ("1", "")
        assert learner.extra == ["--mail-type=END", "-C fast"]
        assert actor.extra == ["--mail-type=END", "-C fast", "--nice=100"]

    def test_may_have_options_with_spaces_in_their_values(self):
        settings = read("--sbatch", "--comment='of the second try' --wckey 'a b' --exclusive")
        assert settings.learner_resources().extra == ['--comment="of the second try"', '--wckey "a b"', "--exclusive"]

    @pytest.mark.parametrize(
        ("given", "written"),
        [
            ("""--comment='say "a b"'""", r'--comment="say \"a b\""'),
            ("--comment=run#7", '--comment="run#7"'),
            (r"--comment='C:\new'", r'--comment="C:\\new"'),
        ],
    )
    def test_may_have_values_that_sbatch_would_read_otherwise(self, given, written):
        assert read(f"--sbatch={given}").learner_resources().extra == [written]


@pytest.mark.parametrize("time", ["4", "3:01", "0:3:01", "0-1", "1-0:0:0", "UNLIMITED", "0", "0:00"])
def test_a_time_limit_leaves_time_to_train(time):
    assert read("--time", time).time == time


@pytest.mark.parametrize(
    ("arguments", "number"),
    [((), 0), (("--eval-interval-s", "60"), 1), (("--eval-interval-s", "60", "--evaluators", "0"), 0)],
)
def test_an_evaluator_comes_with_evaluations(arguments, number):
    assert read(*arguments).n_evaluators() == number


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--actors", "0"), "--actors: '0' is not valid"),
        (("--time", "8h"), "--time: '8h' is not valid: not a time limit of Slurm; expected MINUTES"),
        (("--time", "2:00"), "time is '2:00', 120 s, and signal_s 120; expected more than 180 s, .* longer --time"),
        (("--time", "3"), "time is '3', 180 s"),
        (("--time", "0:3:00"), "180 s"),
        (("--time", "0-0:3"), "180 s"),
        (("--time", "1:00:00", "--signal-s", "3600"), "3600 s, and signal_s 3600"),
        (("--gpus", "two"), "--gpus: 'two' is not valid: not a number of GPUs"),
        (("--learner-mem", "16 GB"), "--learner-mem: '16 GB' is not valid: not a memory"),
        (("--partition", "gpu\n#SBATCH"), "--partition: .* is not valid: not a name"),
        (("--sbatch", "mail-type=END"), "--sbatch: .*: 'mail-type=END' is not an option; expected sbatch options"),
        (("--sbatch=--comment='a",), "a quote is not closed"),
        (
            ("--sbatch", "-C fast --time=2:00"),
            "--sbatch: .* is not valid: '--time=2:00' is set by --time; expected other sbatch options; give --time",
        ),
        (("--sbatch", "'--time=2 0'"), "'--time=\"2 0\"' is set by --time;"),
        (("--learner-sbatch", "--time 2:00"), "--learner-sbatch: .* '--time 2:00' is set by --time;"),
        (("--actor-sbatch=-t 2:00",), "--actor-sbatch: .* '-t 2:00' is set by --time;"),
        (("--sbatch=-t2:00",), "'-t2:00' is set by --time;"),
        (("--sbatch=--signal=B:TERM@10",), "'--signal=B:TERM@10' is set by --signal-s; .* give --signal-s"),
        (("--add-actors", "4"), "--add-actors is given without --run-dir"),
        (
            ("--signal-s", "60"),
            "stop_timeout_s is 90 and signal_s 60; expected the last checkpoint to be written before",
        ),
        (
            ("--tls-cert", "mine.pem"),
            "--tls-cert: rollcast slurm makes certificates, .* of each run itself; .* remove the option",
        ),
        (("--insecure",), "--insecure: rollcast slurm makes"),
        (
            ("--actors", "9", "--max-actors", "8"),
            "--max-actors: 8 are below 9 --actors and 0 evaluators; .* at least 9",
        ),
        (("--env-idd", "x"), "--env-idd"),
    ],
)
def test_refuses_what_cannot_be_right(arguments, match):
    with pytest.raises(ConfigurationError, match=match):
        read(*arguments)


def test_a_certificate_for_clients_in_the_environment_is_not_the_learners(monkeypatch):
    monkeypatch.setenv("ROLLCAST_TLS_CERT", "viewer.pem")
    assert "tls_cert" not in read().learner_values()


# The options of the processes that a run on Slurm does not pass on, and why.
NOT_PASSED_ON = {
    "learner": {
        **dict.fromkeys(
            ("tls_cert", "tls_key", "tls_client_ca", "tokens_file", "tls_server_name"), "made for each run"
        ),
        "insecure": "each run has certificates",
        "address_file": "the run's folder has it",
        "advertised_host": "the learner says which node it got",
        "run_dir": "an argument in the script",
        "resume": "the script says auto",
    },
    "actor": {
        **dict.fromkeys(("tls_ca", "tls_cert", "tls_key", "token", "token_file", "insecure"), "made for each run"),
        "learner_address": "the run's folder has it",
        **dict.fromkeys(
            ("serve_environments", "serve_websockets", "serve_batch_size", "serve_tokens_file"),
            "nobody knows the node to dial before",
        ),
        **dict.fromkeys(
            ("inference_address", "inference_timeout_s", "actor_device"),
            "a submission has no server of central inference",
        ),
        **dict.fromkeys(("serve_tls_cert", "serve_tls_key", "serve_tls_client_ca"), "of --serve-environments"),
        "actor_id": "after the task of the array",
        "role": "after the array",
        "recipe": "what it says is passed on",
        **dict.fromkeys(("connect_timeout_s", "reconnect_timeout_s"), "--patience-s"),
        "wait_for_next_run": "a run is a submission",
        "heartbeat_file": "Slurm checks no health",
        "envs_per_actor": "the learner tells its actors",
        "max_rollout_bytes": "--limits.max-rollout-bytes is both sides'",
        "metrics_address": "the learner's: several actors may share a node",
        "torch_threads": "the learner's: an actor computes on one core",
    },
}


@pytest.mark.parametrize(("process", "settings"), [("learner", ServingSettings), ("actor", ActorSettings)])
def test_every_option_of_the_processes_reaches_them_or_is_made_here(process, settings):
    given = read()
    passed_on = given.learner_values() if process == "learner" else given.actor_values("act")
    lost = settings.model_fields.keys() - passed_on.keys() - NOT_PASSED_ON[process].keys()
    assert not lost, f"{', '.join(sorted(lost))}: pass them on, or say why not"
    assert NOT_PASSED_ON[process].keys() <= settings.model_fields.keys()


def test_form_of_policies_is_the_actors(monkeypatch):
    monkeypatch.setenv("ROLLCAST_POLICY_ENCODING", "delta")
    assert read().actor_values("act")["policy_encoding"] == "delta"
