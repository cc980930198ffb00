"""`docker-compose up` as a user meets it, watched from outside through the gRPC API."""

import dataclasses
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
from rollcast.services.status.status import ActorState, Phase
from tests.browser import chromium, watcher
from tests.documents import commands, section_of
from tests.e2e.conftest import ENDLESS, KILL, TAG, own_name, wait_until
from tests.e2e.watch import Watch
from tests.processes import ROOT, environment

endless = pytest.mark.parametrize("compose", [ENDLESS], indirect=True)


@endless
def test_actors_and_the_learner_come_and_go_while_it_trains(compose):
    """One stack for everything, since each start of a learner takes its time; begun and ended as the page says."""
    section = section_of("containers.md", "Compose")
    up, scale, logs, down = (shlex.split(command) for command in commands(section)[:4])
    (status,) = re.findall(r"`docker compose exec (learner rollcast status [^`]*)`", section)
    compose.run(*up[2:], timeout_s=300)
    with Watch(compose.address()) as watch:
        watch.wait_for_training(2)
        wait_until(lambda: compose.is_healthy("learner") and compose.is_healthy("actor"), "health")
        first = watch.incarnations()
        assert set(first) == {actor.id[:12] for actor in compose.containers("actor")}, "an actor is named as its host"

        compose.run(*scale[2:])
        watch.wait_for_training(4)
        watch.wait_for_progress()

        def shows_all_actors():
            # a test has no terminal
            shown = compose.run("exec", "-T", *status.split())
            assert re.search(r"^phase +training", shown), shown
            return len(re.findall(r"^\d.* streaming ", shown, re.MULTILINE)) == 4

        # on a busy machine an actor may have lost its connection for a moment
        wait_until(shows_all_actors, "four streaming actors in the table")

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
        survivor.exec_run(KILL)
        actors = {victim.id[:12]: 2, survivor.id[:12]: 2}
        wait_until(lambda: watch.incarnations() == actors, "the engine's restart")
        watch.wait_for_progress()

        # updates after the checkpoint are lost
        saved = watch.client.status()
        _, version = watch.client.save_checkpoint()

    (learner,) = compose.containers("learner")
    learner.exec_run(KILL)
    wait_until(lambda: learner.reload() or learner.attrs["RestartCount"] == 1, "the engine's restart")
    wait_until(lambda: learner.reload() or learner.health == "healthy", "the learner")
    # the engine takes another free port when it starts a container again
    with Watch(compose.address()) as watch:
        watch.wait_for_training(2)
        assert watch.incarnations() == actors, "the same processes"
        watch.wait_for_progress()
        trained = watch.client.status()
        assert trained.env_steps > saved.env_steps, "it goes on from the checkpoint"
        assert trained.policy_version > version
        assert trained.policy_lag_mean >= 0, "nothing that was played for the learners before"

    compose.run("stop")
    assert compose.exit_codes() == {"runs-folder": [0], "learner": [0], "actor": [0, 0]}
    (run,) = compose.runs.glob("[!.]*")
    # -f follows until Ctrl-C
    assert f"look at it     rollcast evaluate runs/{run.name}" in compose.run(
        *(word for word in logs[2:] if word != "-f")
    )
    compose.run(*down[2:])
    wait_until(lambda: compose.leftovers() == [], "nothing of it to be left")
    policy = RunDirectory.open(run).read_policy("last")
    assert policy.policy_version >= trained.policy_version, "the run stays, and what was learnt until `stop` is saved"


def test_up_teaches_cartpole_and_the_learner_goes_on_serving_what_is_saved(compose):
    """With nothing set."""
    compose.up(n_actors=0)
    with Watch(compose.address()) as watch:
        wait_until(lambda: watch.phase() is Phase.TRAINING, "the learner")
        # on a quick machine, two actors solve it before one has looked
        watch.client.pause()
        compose.up(n_actors=2)
        wait_until(lambda: len(watch.incarnations()) == 2, "both actors")
        action, version = watch.client.act({"": np.zeros((3, 4), np.float32)}, deterministic=True)
        assert set(action) <= {0, 1}
        assert (action.shape, version >= 1) == ((3,), True), "it serves before training ends"
        watch.client.resume()
        watch.wait_for_the_end()
        assert watch.client.is_serving()
        compose.wait_for_the_end(actor=[0, 0])
        # who comes later finds nothing to do, and is not started again
        compose.up(n_actors=3)
        compose.wait_for_the_end(actor=[0, 0, 0])
        action, version = watch.client.act({"": np.zeros((3, 4), np.float32)})
        assert action.shape == (3,)
        trained = watch.client.status()
        watch.client.stop()
    compose.wait_for_the_end(learner=[0])
    output = compose.run("logs", "--no-color")
    assert re.search(r"learner.*\| mean return +4\d\d\.\d \(solved: 475 over 100 episodes\)", output)
    assert "Traceback" not in output
    assert "ERROR" not in output

    (run,) = compose.runs.glob("[!.]*")
    assert RunDirectory.open(run).read_policy("last").policy_version >= trained.policy_version


class TestImages:
    @staticmethod
    def run_python(engine, image, program):
        return engine.containers.run(
            image, ["-c", program], entrypoint="python", remove=True, network_mode="none", stderr=True
        ).decode()

    def test_nobody_is_root_and_the_actor_has_no_learner_and_no_torch(self, engine, images):
        found = (
            "import os, importlib.util as u; import rollcast.actor.acting.process\n"
            "print(os.getuid(), *(u.find_spec(name) is not None for name in ('rollcast.learner', 'torch')))"
        )
        assert self.run_python(engine, images["rollcast-actor"], found) == "10001 False False\n"
        assert self.run_python(engine, images["rollcast-learner"], found) == "10001 True True\n"

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


def test_settings_choose_what_the_same_stack_learns(compose):
    # the actors wait for a learner that is healthy, and never start
    with_settings(compose, ROLLCAST_ENV_ID="NoSuch-v1").run("up", "-d", "--no-build", check=False)
    compose.wait_for_the_end(learner=[0])
    (learner,) = compose.containers("learner", ended=True)
    assert learner.attrs["RestartCount"] == 0, "settings that cannot be right are not tried again"
    assert compose.run("logs", "--no-color", "learner").count("'NoSuch-v1' names no environment") == 1

    settings = {"ROLLCAST_RECIPE": "dqn-cartpole", "ROLLCAST_TOTAL_STEPS": "4000", "ROLLCAST_RUN_DIR": "/runs/dqn"}
    chosen = with_settings(compose, **settings, ROLLCAST_WHEN_FINISHED="exit")
    chosen.up(n_actors=0)
    with Watch(compose.address()) as watch:
        wait_until(lambda: watch.phase() is Phase.TRAINING, "the learner")
        # training would end before one has looked
        watch.client.pause()
        chosen.up(n_actors=2)
        wait_until(lambda: len(watch.incarnations()) == 2, "both actors")
        assert {info.n_envs for info in watch.client.actors()} == {4}, "as they hear from the learner"
        watch.client.resume()
    compose.wait_for_the_end(learner=[0], actor=[0, 0])
    *_, last = [json.loads(line) for line in (compose.runs / "dqn" / "metrics.jsonl").read_text().splitlines()]
    assert last["replay/samples_per_insert"] > 0, "batches from the replay buffer"


def with_settings(compose, **settings):
    """The same project with further settings."""
    return dataclasses.replace(compose, environment=compose.environment | settings)


# The learner asks the first actor for the spaces: only actors need the environment then.
@pytest.mark.parametrize(
    "compose",
    [
        ENDLESS
        | {"OVERRIDE": "deploy/compose/tls.yml", "ROLLCAST_SPACES_FROM": "first_actor", "ROLLCAST_DASHBOARD_PORT": "0"}
    ],
    indirect=True,
)
def test_mutual_tls_by_one_override_file(compose, tmp_path):
    compose.run("--profile", "dashboard", "up", "-d", "--no-build", "--scale", "actor=1")
    certs = tmp_path / "certs"

    def holder_of(role):
        return ClientSecurity(
            tls_ca=certs / "ca.pem",
            tls_cert=certs / f"{role}.pem",
            tls_key=certs / f"{role}.key",
            token_file=certs / f"{role}.token",
        )

    with Watch(compose.address(), holder_of("operator")) as watch:
        watch.wait_for_training(1)
        wait_until(lambda: compose.is_healthy("learner") and compose.is_healthy("actor"), "health")
        for stranger in (PLAIN_CLIENT, ClientSecurity(tls_ca=certs / "ca.pem")):
            with Watch(compose.address(), stranger) as nobody, pytest.raises(LearnerUnreachableError):
                nobody.client.status()
        with Watch(compose.address(), holder_of("actor")) as actor, pytest.raises(PermissionDeniedError):
            actor.client.stop()

        wait_until(lambda: compose.is_healthy("dashboard"), "the health of the page")
        with chromium() as browser, watcher(browser) as seen:
            seen.open(f"http://{compose.address('dashboard', 8080)}/")
            seen.wait_for_text(".phase", "TRAINING")
            (actor,) = watch.incarnations()
            seen.page.wait_for_selector(f'tr[data-actor="{actor}"]')
            assert not seen.page.locator("[data-action=stop]").is_visible(), "the page is a viewer's"
            assert seen.complaints == []
        # its file system is read-only, and it writes nothing
        (page,) = compose.containers("dashboard")
        assert "Traceback" not in page.logs().decode()

        # another authority: nothing restarts, what is connected stays, and who comes next needs its certificates
        first = watch.incarnations()
        for file in certs.iterdir():
            file.unlink()
        compose.run("up", "--no-build", "--no-deps", "certs")
        with Watch(compose.address(), holder_of("operator")) as renewed:
            wait_until(lambda: renewed.incarnations() == first, "the learner to have the new certificates")
            compose.up(n_actors=2)
            renewed.wait_for_training(2)
            renewed.wait_for_progress()
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
