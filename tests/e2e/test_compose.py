"""`docker-compose up` as a user meets it, watched from outside through the gRPC API."""

import json
import os
import re
import shlex
import shutil
import subprocess

import docker
import numpy as np
import pytest

from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.errors import LearnerUnreachableError, PermissionDeniedError
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity
from rollcast.services.status.status import ActorState
from tests.documents import commands, section_of
from tests.e2e.conftest import ENDLESS, TAG, own_name
from tests.e2e.watch import Watch
from tests.processes import ROOT, environment, rollcast, wait_until

endless = pytest.mark.parametrize("compose", [ENDLESS], indirect=True)

# Mean return that an agent reaches only by learning: an untrained policy makes 22, one that always pushes one way 9.
LEARNT = 195


@endless
def test_actors_come_and_go_while_it_trains(compose):
    compose.up(n_actors=2)
    with Watch(compose.address()) as watch:
        watch.wait_for_training(2)
        watch.wait_for_progress()
        wait_until(lambda: compose.is_healthy("learner") and compose.is_healthy("actor"), "health")
        first = watch.incarnations()
        assert set(first) == {actor.id[:12] for actor in compose.containers("actor")}, "an actor is named as its host"

        compose.up(n_actors=4)
        watch.wait_for_training(4)
        watch.wait_for_progress()

        compose.up(n_actors=2)
        wait_until(lambda: watch.incarnations() == first, "the first two to be left")
        assert set(watch.incarnations(ActorState.LEFT).values()) == {1}, "drained, not torn away"
        watch.wait_for_progress()

        # by an operator: stays dead until it is wanted again
        victim, survivor = compose.containers("actor")
        victim.kill("SIGKILL")
        wait_until(lambda: victim.id[:12] in watch.incarnations(ActorState.LOST), "the learner to notice")
        watch.wait_for_progress()
        compose.up(n_actors=2)
        wait_until(lambda: watch.incarnations() == first | {victim.id[:12]: 2}, "a second incarnation in its slot")

        # by itself, as when memory runs out: comes back
        survivor.exec_run(["sh", "-c", "kill -9 $(cat /proc/1/task/1/children)"])
        wait_until(lambda: watch.incarnations() == {victim.id[:12]: 2, survivor.id[:12]: 2}, "the engine's restart")
        watch.wait_for_progress()


@pytest.mark.parametrize(
    "compose", [{"ROLLCAST_STOP_RETURN": "1e9", "ROLLCAST_TOTAL_STEPS": "1000000000"}], indirect=True
)
def test_what_was_learnt_is_served_saved_and_plays(compose, tmp_path):
    compose.up(n_actors=2)
    with Watch(compose.address()) as watch:
        watch.wait_for_training(2)
        action, version = watch.client.act({"": np.zeros((3, 4), np.float32)}, deterministic=True)
        assert action.shape == (3,)
        assert set(action) <= {0, 1}
        assert version >= 1
        wait_until(lambda: (watch.client.status().mean_return or 0) > 400, "a mean return of 400", 120)
        trained = watch.client.status()
        watch.client.stop()
    wait_until(lambda: compose.exit_codes() == {"runs-folder": [0], "learner": [0], "actor": [0, 0]}, "exit codes 0")

    (run,) = compose.runs.glob("[!.]*")
    saved = RunDirectory.open(run).read_policy("last")
    assert saved.policy_version >= trained.policy_version
    assert f"look at it     rollcast evaluate runs/{run.name}" in compose.run("logs", "--no-color", "learner")
    figures = tmp_path / "evaluation.json"
    done = rollcast("evaluate", run, "--n-episodes", 20, "--summary-json", figures)
    assert done.returncode == 0, done.stderr
    assert json.loads(figures.read_text())["mean"] > LEARNT

    compose.run("down")
    assert compose.leftovers() == []


@endless
def test_a_learner_that_comes_back_finds_its_actors(compose):
    compose.up(n_actors=2)
    address = compose.address()
    # the engine takes another free port when it starts a container again
    with Watch(address) as watch:
        watch.wait_for_training(2)
        actors = watch.incarnations()

    compose.run("restart", "learner")
    with Watch(compose.address()) as watch:
        watch.wait_for_training(2)
        assert watch.incarnations() == actors, "the same processes"
        watch.wait_for_progress()
        _, version = watch.client.save_checkpoint()
        saved = watch.client.status()

    (learner,) = compose.containers("learner")
    # not `docker kill`, after which the engine leaves it dead
    learner.exec_run(["sh", "-c", "kill -9 $(cat /proc/1/task/1/children)"])
    wait_until(lambda: learner.reload() or learner.attrs["RestartCount"] == 1, "the engine's restart")
    wait_until(lambda: learner.reload() or learner.health == "healthy", "the learner")
    with Watch(compose.address()) as watch:
        watch.wait_for_training(2)
        assert watch.incarnations() == actors
        watch.wait_for_progress()
        trained = watch.client.status()
        assert trained.env_steps > saved.env_steps, "it goes on from the checkpoint"
        assert trained.policy_version > version
        assert trained.policy_lag_mean >= 0, "nothing that was played for the learners before"

    compose.run("stop")
    assert compose.exit_codes() == {"runs-folder": [0], "learner": [0], "actor": [0, 0]}
    (run,) = compose.runs.glob("[!.]*")
    policy = RunDirectory.open(run).read_policy("last")
    assert policy.policy_version >= trained.policy_version, "drained: the policy is saved"


def test_up_teaches_cartpole_and_the_learner_goes_on_serving(compose):
    """With nothing set."""
    compose.up(n_actors=2)
    with Watch(compose.address()) as watch:
        watch.wait_for_the_end(120)
        assert watch.client.is_serving()
        wait_until(lambda: compose.exit_codes()["actor"] == [0, 0], "the actors' end")
        # who comes later finds nothing to do, and is not started again
        compose.up(n_actors=3)
        wait_until(lambda: compose.exit_codes()["actor"] == [0, 0, 0], "the newcomer's end")
        action, _ = watch.client.act({"": np.zeros((3, 4), np.float32)})
        assert action.shape == (3,)
    compose.run("stop", "learner")
    assert compose.exit_codes() == {"runs-folder": [0], "learner": [0], "actor": [0, 0, 0]}
    output = compose.run("logs", "--no-color")
    assert re.search(r"learner.*\| mean return +4\d\d\.\d \(solved: 475 over 100 episodes\)", output)
    assert "Traceback" not in output
    assert "ERROR" not in output


@endless
def test_the_commands_of_the_page_work_as_they_are_typed(compose):
    typed = [shlex.split(command) for command in commands(section_of("containers.md", "Compose"))[:4]]
    assert [" ".join(command[:3]) for command in typed] == [
        "docker compose up",
        "docker compose up",
        "docker compose logs",
        "docker compose down",
    ]
    up, scale, logs, down = typed
    (status,) = re.findall(
        r"`docker compose exec (learner rollcast status [^`]*)`", section_of("containers.md", "Compose")
    )
    compose.run(*up[2:], timeout_s=300)
    compose.run(*scale[2:])
    # a test has no terminal
    wait_until(
        lambda: (
            len(re.findall(r"^\d.* streaming ", shown := compose.run("exec", "-T", *status.split()), re.MULTILINE)) == 4
            and re.search(r"^phase +training", shown)
        ),
        "four actors in the table",
        60,
    )
    # -f follows until Ctrl-C
    assert "batches have" in compose.run(*(word for word in logs[2:] if word != "-f"))
    compose.run(*down[2:])
    assert compose.leftovers() == []
    assert len(list(compose.runs.glob("[!.]*"))) == 1, "the run stays"


@pytest.mark.parametrize("compose", [{"ROLLCAST_ENV_ID": "NoSuch-v1"}], indirect=True)
def test_settings_that_cannot_be_right_are_not_tried_again(compose):
    # the actors wait for a learner that is healthy, and never start
    compose.run("up", "-d", "--no-build", check=False)
    wait_until(lambda: compose.exit_codes()["learner"] == [0], "the learner to give up")
    (learner,) = compose.containers("learner", ended=True)
    assert learner.attrs["RestartCount"] == 0
    assert compose.run("logs", "--no-color", "learner").count("'NoSuch-v1' names no environment") == 1


class TestImages:
    @pytest.mark.parametrize("name", ["rollcast-actor", "rollcast-learner"])
    def test_nobody_is_root(self, engine, images, name):
        output = engine.containers.run(images[name], ["-u"], entrypoint="id", remove=True, network_mode="none")
        assert output.decode().strip() == "10001"

    @staticmethod
    def run_python(engine, image, program):
        return engine.containers.run(
            image, ["-c", program], entrypoint="python", remove=True, network_mode="none", stderr=True
        ).decode()

    def test_the_actor_has_no_learner_and_no_torch(self, engine, images):
        found = "import rollcast.actor.acting.process, importlib.util as u; print(u.find_spec('{}'))"
        for module in ("rollcast.learner", "torch"):
            assert self.run_python(engine, images["rollcast-actor"], found.format(module)) == "None\n"

    def test_the_actor_adds_at_most_200_mb_to_its_base_image(self, engine, images):
        base = engine.images.get("python:3.11-slim-bookworm").attrs["Size"]
        assert engine.images.get(images["rollcast-actor"]).attrs["Size"] - base < 200_000_000

    def test_a_network_for_images_needs_the_extra_torch(self, engine, images, actor_image_with_torch):
        program = (
            "import gymnasium, numpy\n"
            "from rollcast.actor import make_policy\n"
            "from rollcast.services import PolicySpec, SubstepSpaces\n"
            "images = gymnasium.spaces.Box(0, 255, (36, 36, 1), numpy.uint8)\n"
            "spaces = {'0': SubstepSpaces(observation=images, action=gymnasium.spaces.Discrete(2))}\n"
            "print(type(make_policy(spaces, PolicySpec(), seed=0)).__name__)"
        )
        with pytest.raises(docker.errors.ContainerError) as refused:
            self.run_python(engine, images["rollcast-actor"], program)
        assert (
            "the CNN for images needs torch, which this Python does not have; expected the extra 'torch'; install it: "
            "docker build --network=host -f actor/Dockerfile --build-arg EXTRAS=torch -t rollcast-actor ."
        ) in refused.value.stderr.decode()
        assert self.run_python(engine, actor_image_with_torch, program) == "TorchActingPolicy\n"

    def test_the_learner_image_is_the_whole_command(self, engine, images):
        output = engine.containers.run(images["rollcast-learner"], ["--version"], remove=True, network_mode="none")
        assert output.decode().startswith("rollcast ")


def off_policy(algorithm, env_id, total_steps, **more):
    return {
        "ROLLCAST_ALGORITHM": algorithm,
        "ROLLCAST_ENV_ID": env_id,
        "ROLLCAST_TOTAL_STEPS": str(total_steps),
        "ROLLCAST_WHEN_FINISHED": "exit",
        **more,
    }


def learn_off_policy(compose, envs_per_actor):
    """Trains to the end, with actors that hear from the learner how many environments, and returns the run's folder."""
    compose.up(n_actors=2)
    with Watch(compose.address()) as watch:
        watch.wait_for_training(2)
        wait_until(lambda: watch.client.status().replay.sampled > 0, "batches from the replay buffer")
        watch.wait_for_progress()
        assert {info.n_envs for info in watch.client.actors()} == {envs_per_actor}
    ended = {"runs-folder": [0], "learner": [0], "actor": [0, 0]}
    wait_until(lambda: compose.exit_codes() == ended, "the end of training", 500)
    (run,) = compose.runs.glob("[!.]*")
    return run


# 30 batches. Each waits for the trajectories that the learner has given out places for, those of dead actors, too.
@pytest.mark.parametrize(
    "compose",
    [{"ROLLCAST_RECIPE": "ppo-acrobot", "ROLLCAST_TOTAL_STEPS": "61440", "ROLLCAST_WHEN_FINISHED": "exit"}],
    indirect=True,
)
def test_a_recipe_of_ppo_learns_from_the_newest_policy_only_though_actors_die(compose):
    compose.up(n_actors=3)
    with Watch(compose.address()) as watch:
        watch.wait_for_training(3)
        victim = compose.containers("actor")[0]
        victim.kill("SIGKILL")
        watch.wait_for_progress()
        # so that training does not end before the actor is back
        watch.client.pause()
        compose.up(n_actors=3)
        wait_until(lambda: watch.incarnations().get(victim.id[:12]) == 2, "a second incarnation in its slot")
        watch.client.resume()
    wait_until(lambda: compose.exit_codes()["learner"] == [0], "the end of training", 300)
    printed = compose.run("logs", "--no-color", "learner")
    assert re.search(r"policy +version \d+, lag of the run: mean 0\.00, max 0", printed)
    assert float(re.search(r"mean return +(-[\d.]+)", printed)[1]) > -300, "far above the -500 of an untrained policy"


# Random actions return about -1200; two runs reached -213 and -216. An update with the default's batches, four times as
# large, takes longer.
@pytest.mark.parametrize(
    "compose",
    [
        off_policy(
            "sac",
            "Pendulum-v1",
            4_000,
            ROLLCAST_BATCH_SIZE="64",
            ROLLCAST_REPLAY__SAMPLES_PER_INSERT="64",
        )
    ],
    indirect=True,
)
def test_sac_is_a_setting_of_the_same_stack(compose, tmp_path):
    run = learn_off_policy(compose, envs_per_actor=1)
    figures = tmp_path / "evaluation.json"
    done = rollcast("evaluate", run, "--n-episodes", 20, "--summary-json", figures)
    assert done.returncode == 0, done.stderr
    assert json.loads(figures.read_text())["mean"] > -600


# Random actions return 22. One policy may be worse than the last; the mean of 100 training episodes is steadier.
@pytest.mark.parametrize(
    "compose", [off_policy("dqn", "CartPole-v1", 150_000, ROLLCAST_STOP_RETURN="150")], indirect=True
)
def test_dqn_is_a_setting_of_the_same_stack(compose):
    learn_off_policy(compose, envs_per_actor=4)
    assert "(solved: 150 over 100 episodes)" in compose.run("logs", "--no-color", "learner")


@pytest.mark.parametrize(
    "compose",
    [
        # the learner asks the first actor for the spaces: only actors have the environment then
        {
            **ENDLESS,
            "ROLLCAST_EVAL_INTERVAL_S": "1",
            "ROLLCAST_EVAL_EPISODES": "3",
            "ROLLCAST_SPACES_FROM": "first_actor",
        },
    ],
    indirect=True,
)
def test_evaluator_is_a_profile_of_the_same_stack(compose):
    compose.run("--profile", "evaluate", "up", "-d", "--no-build")
    with Watch(compose.address()) as watch:

        def evaluations():
            evaluation = watch.client.status().evaluation
            return 0 if evaluation is None else evaluation.evaluations

        watch.wait_for_training(2)
        wait_until(evaluations, "an evaluation")
        wait_until(lambda: compose.is_healthy("evaluator"), "health")
        assert len(watch.incarnations()) == 2, "it is no actor"
        (evaluator,) = compose.containers("evaluator")
        # by itself, as when memory runs out: comes back
        evaluator.exec_run(["sh", "-c", "kill -9 $(cat /proc/1/task/1/children)"])
        wait_until(lambda: evaluator.reload() or evaluator.attrs["RestartCount"] == 1, "the engine's restart")
        before = evaluations()
        # the one under way may have been reported before it was killed
        wait_until(lambda: evaluations() > before + 1, "more evaluations")
        watch.client.stop()
    ended = {"runs-folder": [0], "learner": [0], "actor": [0, 0], "evaluator": [0]}
    wait_until(lambda: compose.exit_codes() == ended, "exit codes 0")


@pytest.mark.parametrize(
    "compose",
    [{**ENDLESS, "OVERRIDE": "deploy/compose/tls.yml"}],
    indirect=True,
)
def test_mutual_tls_by_one_override_file(compose, tmp_path):
    compose.up(n_actors=2)
    certs = tmp_path / "certs"

    def holder_of(role):
        return ClientSecurity(
            tls_ca=certs / "ca.pem",
            tls_cert=certs / f"{role}.pem",
            tls_key=certs / f"{role}.key",
            token_file=certs / f"{role}.token",
        )

    with Watch(compose.address(), holder_of("operator")) as watch:
        watch.wait_for_training(2)
        watch.wait_for_progress()
        wait_until(lambda: compose.is_healthy("learner") and compose.is_healthy("actor"), "health")
        for stranger in (PLAIN_CLIENT, ClientSecurity(tls_ca=certs / "ca.pem")):
            with Watch(compose.address(), stranger) as nobody, pytest.raises(LearnerUnreachableError):
                nobody.client.status()
        with Watch(compose.address(), holder_of("actor")) as actor, pytest.raises(PermissionDeniedError):
            actor.client.stop()

        # another authority: nothing restarts, what is connected stays, and who comes next needs its certificates
        first = watch.incarnations()
        for file in certs.iterdir():
            file.unlink()
        compose.run("up", "--no-build", "--no-deps", "certs")
        with Watch(compose.address(), holder_of("operator")) as renewed:
            assert renewed.incarnations() == first
            compose.up(n_actors=3)
            renewed.wait_for_training(3)
            assert first.items() <= renewed.incarnations().items()
    held = compose.containers("actor")[0].exec_run(["ls", "/tls"]).output.decode().split()
    assert held == ["actor.key", "actor.pem", "actor.token", "ca.pem"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users, which needs root")
def test_certificates_belong_to_whoever_has_the_checkout(compose_command, images, tmp_path):
    for name in ("docker-compose.yml", "deploy/compose/tls.yml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        os.chown(tmp_path / name, 12345, 12346)
    command = [*compose_command, "-p", own_name()]
    for file in ("docker-compose.yml", "deploy/compose/tls.yml"):
        command += ["-f", tmp_path / file]
    options = {
        "cwd": tmp_path,
        "env": environment() | {"ROLLCAST_TAG": TAG},
        "capture_output": True,
        "check": True,
        "timeout": 60,
    }
    try:
        subprocess.run([*command, "up", "--no-build", "--no-deps", "certs"], **options)
    finally:
        subprocess.run([*command, "down", "--volumes"], **options)
    made = [tmp_path / "certs", *(tmp_path / "certs").iterdir()]
    assert tmp_path / "certs" / "operator.key" in made
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(12345, 12346)}
