"""Every command and snippet of README and docs, typed in a fresh shell: an empty home, no variables, `.venv` activated.

Hosts and ports stand for this machine and a free port, and variables make runs small; the rest is typed as it stands.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rollcast.actor.statistics import events
from rollcast.services import Phase
from tests.certificates import security_of
from tests.documents import PAGES, ROOT, blocks, commands, text_of
from tests.integration.test_tutorials import play
from tests.processes import ended, status_of, wait_until
from tests.shell import Shell
from tests.transcript import Entry, session

# on an idle machine the longest takes 15 s
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The commands that a test below types, by how they begin.
TYPED = {
    "examples": (
        "rollcast train --network examples.own_network",
        "rollcast train --env-id examples.batched_simulator",
    ),
    "learner": (
        "rollcast learner --address 0.0.0.0:50051 --insecure",
        "rollcast actor --learner-address LEARNER_HOST:50051",
        "rollcast status --address localhost:50051 --watch",
        "rollcast status --address localhost:50051",
        "rollcast status --address localhost:50051 --actors --json-output",
        "rollcast top --address localhost:50051 --once",
        "buf curl --protocol grpc http://localhost:50051/rollcast.v1.LearnerService/GetStatus",
        "buf curl --protocol grpc http://localhost:50051/rollcast.v1.LearnerService/SaveCheckpoint",
        "buf curl --protocol grpc http://localhost:50051/rollcast.v1.PolicyService/Act",
        "buf curl --protocol grpc http://localhost:50051/rollcast.v1.LearnerService/Stop",
    ),
    "algorithms": (
        "rollcast record --env-id CartPole-v1 --policy runs/expert",
        "rollcast train --env-id CartPole-v1 --algorithm dqn",
        "rollcast train --env-id rollcast.actor.environments.action_mask:make",
        "rollcast train --algorithm examples.own_algorithm",
    ),
    "recipes": (
        "rollcast train --recipe ppo-cartpole --run-dir runs/cartpole0",
        "rollcast train --recipe ppo-cartpole --seed 1",
        "rollcast ls",
        "rollcast recipes",
        "rollcast compare runs/cartpole0 runs/cartpole1",
        "rollcast plot runs/cartpole0 runs/cartpole1",
    ),
    "checkpoints": (
        "rollcast train --env-id CartPole-v1 --run-dir runs/mine",
        "rollcast train --resume runs/mine",
        "rollcast export runs/mine",
        "rollcast train --initial-policy runs/mine",
        "rollcast learner --resume auto",
        "rollcast learner --when-finished serve",
    ),
    "environments": (
        "rollcast train --env-id mpe2.simple_spread_v3",
        "rollcast train --env-id pettingzoo:make",
        "rollcast train --env-id ALE/Pong-v5 --atari",
    ),
    "evaluation": ("rollcast train --eval-opponents 3",),
    "tls": (
        "rollcast certs certs",
        "rollcast learner --address 0.0.0.0:50051 --tls-cert",
        "rollcast actor --learner-address learner.example.org:50051",
        "rollcast status --address learner.example.org:50051",
    ),
}
# The others, by how they begin, and why none types them.
NOT_TYPED = {
    "rollcast learner --address 0.0.0.0:0 --insecure --address-file": "tests/integration/test_address_file.py types it",
    "rollcast actor --learner-address file:learner.address": "likewise",
    "rollcast learner --address 0.0.0.0:50051 --insecure --max-actors": "tests/integration/test_relays.py types it",
    "rollcast relay --learner-address localhost:50051": "likewise",
    "rollcast actor --learner-address RELAY_HOST:50053": "likewise",
    "rollcast learner --durable --run-dir runs/mine": "likewise, with a learner that is killed",
    "rollcast learner --resume runs/mine": "likewise",
    "rollcast train --serve-environments localhost:50052": "test_environments_elsewhere.py trains so",
    "rollcast learner --spaces-from first_actor --env-id my-game --run-dir runs/games": "likewise",
    "rollcast actor --serve-environments localhost:50052": "likewise",
    "python clients/python/cartpole.py": "likewise",
    "rollcast actor --serve-environments 0.0.0.0:50052": "tests/unit/services/server/test_environments.py serves so",
    "rollcast actor --learner-address localhost:50051 --serve-environments": "test_central_inference.py types it",
    "rollcast actor --learner-address localhost:50051 --inference-address": "likewise",
    "rollcast train --metrics-address localhost:9464": "tests/integration/test_metrics_endpoints.py types it",
    "curl -s http://localhost:9464/metrics": "likewise",
    "rollcast train --dashboard": "is typed, and opened in a browser, in tests/integration/test_dashboard.py",
    "rollcast learner --policy-rounding bfloat16": "tests/integration/test_policy_encodings.py types it",
    "rollcast actor --policy-encoding delta": "tests/integration/test_policy_encodings.py types it",
    "rollcast dashboard ": "is typed, and opened in a browser, in tests/integration/test_dashboard.py",
    "torchrun --nproc-per-node 2": "is typed, with a rank that is killed, in tests/integration/test_ranks.py",
    "rollcast actor --env-id CartPole-v1 --learner-address localhost:50051": "likewise",
    "rollcast track runs/mine": "tests/integration/test_trackers.py types it",
    "rollcast train --track trackio": "tests/integration/test_trackers.py trains so, and resumes",
    "make chaos": "takes minutes; its options are checked in tests/unit/test_readme.py",
    "make simulate": "tests/integration/test_simulation.py runs the program",
    "make fuzz": "takes a quarter of an hour; tests/unit/fuzz runs the program",
    "python -m tests.fuzz": "needs a message that the fuzzer has kept",
    "make soak": "takes half an hour; its options are checked in tests/unit/test_readme.py",
    "rollcast train --env-id CartPole-v1 --eval-interval-steps 5000": "has smaller twins in test_evaluation.py",
    "export COMPOSE_FILE=docker-compose.yml:deploy/compose/ddp.yml": "is for the containers after it: tests/e2e",
    "export COMPOSE_FILE=docker-compose.yml:deploy/compose/relay.yml": "is for the containers after it: tests/e2e",
    "export ROLLCAST_EVAL_INTERVAL_STEPS": "is for the containers after it: tests/e2e",
    "rollcast doctor ": "needs something that is wrong: tests/integration/test_doctor_command.py",
    "rollcast certs cluster": "is for the secrets after it: tests/unit/test_kubernetes_tls.py",
    "rollcast certs keda": "is for the secrets after it: tests/unit/test_kubernetes_tls.py",
    "rollcast certs relays": "is for the secrets after it: tests/unit/test_kubernetes_tls.py",
    "cat cluster/ca.pem ": "is for the secrets after it: tests/unit/test_kubernetes_tls.py",
    "grep '^actor:' ": "is for the secrets after it: tests/unit/test_kubernetes_tls.py",
    "docker ": "needs an engine: tests/e2e",
    "kubectl ": "needs a cluster; tests/unit/test_kubernetes*.py build manifests and secrets, and validate them",
    "rollcast top --address LEARNER_HOST": "draws until q is pressed: tests/integration/test_top_command.py",
    "rollcast serve-policy ": "tests/integration/test_serve_policy.py types it",
    "rollcast slurm ": "needs a cluster: tests/e2e/test_slurm.py",
    "scancel ": "needs a cluster: tests/e2e/test_slurm.py",
    "tensorboard ": "serves until it is ended; a dependency of this project",
}
# Snippets in Python that no test runs as they stand, by how they begin, and why.
NOT_RUN = {
    '"""Asks a running learner': "is examples/client.py: tests/integration/test_examples.py",
    "from rollcast.learner import DockerDistributedActors": "needs an engine: tests/e2e runs examples/containers.py",
    "from stable_baselines3 import PPO": "tests/integration/test_remote_vec_env.py trains so",
    "from rollcast.learner import RemoteDistributedActors": "is examples/remote_actors.py: test_examples.py",
    "actors.get_stats_value": "needs actors that play: tests/integration/test_structured_training.py and the warehouse",
}
# A setting in front of one of the README's commands, which then ends sooner; its first run trains to the end.
SOONER = {
    "rollcast learner --address localhost:50051 --algorithm impala --run-dir runs/far > learner.log &": (
        "ROLLCAST_STOP_RETURN=60"
    ),
}
LONG = {"ROLLCAST_TOTAL_STEPS": "1000000000", "ROLLCAST_STOP_RETURN": "1e9"}


def begins(command: str, start: str) -> bool:
    """Returns True if a command is meant; a command that is named as a whole means no longer one."""
    named = itertools.chain(NOT_TYPED, *TYPED.values())
    whole = {other for other in named if other != start and other.startswith(start)}
    return command.startswith(start) and not any(command.startswith(longer) for longer in whole)


# README and tutorials are sessions, typed as a whole: the README below, the tutorials in test_tutorials.py.
TEXTS = [
    page.read_text(encoding="utf-8")
    for page in PAGES.values()
    if page.name != "README.md" and page.parent.name != "tutorials"
]
SHOWN = {command for text in TEXTS for command in commands(text)}
SNIPPETS = [block for text in TEXTS for block in blocks(text, "python")]


def test_every_command_is_typed_here_or_has_a_reason():
    typed = [start for starts in TYPED.values() for start in starts]
    for command in SHOWN:
        matches = [start for start in typed if begins(command, start)]
        matches += [start for start in NOT_TYPED if command.startswith(start)]
        assert len(matches) == 1, f"{command}: put it into TYPED, or into NOT_TYPED with its reason"
    for start in (*typed, *NOT_TYPED):
        assert any(command.startswith(start) for command in SHOWN), f"no page shows {start}"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with Shell(tmp_path) as shell:
        yield shell


def shown(scenario: str) -> list[str]:
    """The commands of a scenario, as a page shows them."""
    return [next(command for command in SHOWN if begins(command, start)) for start in TYPED[scenario]]


def test_samples_of_the_readme_run_in_their_order_in_one_shell(tmp_path: Path):
    steps = session(text_of("README.md"))
    assert all(isinstance(step, Entry) and not step.terminal for step in steps), "one shell"
    assert {step.typed for step in steps} >= SOONER.keys()
    # a README has no room to say again and again that numbers differ
    play([replace(step, differs=True) for step in steps], tmp_path, SOONER)


@pytest.mark.parametrize("scenario", ["examples", "environments"])
def test_environments_and_networks_are_trained(scenario: str, tmp_path: Path):
    with Shell(tmp_path, is_warm=scenario != "examples") as shell:
        # an update with the images of more steps takes seconds, and a batch is what the actors bring
        small = {"ROLLCAST_N_ROLLOUT_STEPS": "32"}
        n_envs = {command: re.search(r"--envs-per-actor (\d+)", command) for command in shown(scenario)}
        batches = {command: {"ROLLCAST_BATCH_SIZE": n[1]} if n else {} for command, n in n_envs.items()}
        first, *_ = [shell.run(command, **small, **batch) for command, batch in batches.items()]
        (look,) = re.findall(r"^look at it     (rollcast evaluate runs/.*)", first, re.MULTILINE)
        assert "mean return" in shell.run(f"{look} --n-episodes 1")


def test_games_are_rated(shell: Shell):
    (command,) = shown("evaluation")
    # the page's run takes a minute, and several on a busy machine
    for long, short in (("interval-steps 10000", "interval-steps 1000"), ("total-steps 60000", "total-steps 2000")):
        assert long in command
        command = command.replace(long, short)
    printed = shell.run(command)
    assert re.search(r"^evaluation +-?[0-9.]+, best of [1-9]", printed, re.MULTILINE)


def test_learner_is_joined_watched_steered_and_stopped(shell: Shell):
    learn, act, watch, status, as_json, top, get, save, answer, stop = shown("learner")
    with shell.running(learn, **LONG) as learner, shell.running(act) as actor:
        wait_until(lambda: status_of(shell.address).updates, "training")
        with shell.running(watch) as watching:
            assert "phase" in shell.run(status)
            assert len(json.loads(shell.run(as_json))["actors"]) == 1
            assert re.search(r"^learner +[A-Zwz.]+ training ", shell.run(top), re.MULTILINE)
            assert json.loads(shell.run(get))["status"]["phase"] == "PHASE_TRAINING"
            assert (shell.folder / json.loads(shell.run(save))["path"]).is_dir()
            assert json.loads(shell.run(answer))["action"]["shape"] == ["1"]
            assert json.loads(shell.run(stop)) == {}
            assert ended(learner) == 0
            assert ended(actor) == 0
            assert ended(watching) in (0, 1), "the learner may be gone before its last word is asked for"


def test_recording_is_made_and_trained_on(shell: Shell):
    record, learn, masked, own = shown("algorithms")
    shell.run("rollcast train --run-dir runs/expert")
    assert "expert.rollouts" in shell.run(record)
    # few samples for each entry, or it catches up with all of the recording first
    assert "entries of 200 rollouts" in shell.run(learn, ROLLCAST_REPLAY__SAMPLES_PER_INSERT="0.1")
    shell.run(masked)
    shell.run(own)
    (reader,) = [block for block in SNIPPETS if "parse_length_prefixed" in block]
    (shell.folder / "reader.py").write_text(reader)
    assert shell.run("python reader.py expert.rollouts").count(": rollout [16, 4], returns") == 200


def test_run_is_resumed_and_its_policy_begins_another(shell: Shell):
    train, resume, export, begin, auto, serve = shown("checkpoints")
    shell.run(train)
    assert "resuming runs/mine" in shell.run(resume, ROLLCAST_TOTAL_STEPS="2000")
    assert "10,000 observations, largest difference" in shell.run(export)
    (snippet,) = [block for block in SNIPPETS if "onnxruntime.InferenceSession(" in block]
    (shell.folder / "play.py").write_text(snippet)
    shell.run("python play.py")
    shell.run(begin)
    with shell.running("rollcast actor"):
        assert "mean return" in shell.run(auto)
    with shell.running(serve):
        wait_until(lambda: status_of(shell.address).phase is Phase.FINISHED, "the run that has ended is served again")


def test_recipe_is_trained_with_two_seeds_and_their_curve_is_drawn(shell: Shell):
    first, second, ls, recipes, compare, plot = shown("recipes")
    assert re.search(r"^ppo-cartpole +ppo +CartPole-v1$", shell.run(recipes), re.MULTILINE)
    for train in (first, second):
        # a batch as the recipe has it: its minibatches have 256 steps
        assert "mean return" in shell.run(train, ROLLCAST_BATCH_SIZE="8")
    assert shell.run(ls).count("finished") == 2
    assert re.search(r"^seed +0 +1$", shell.run(compare), re.MULTILINE)
    assert "ppo CartPole-v1 (median and quartiles of 2 runs)" in shell.run(plot)
    assert (shell.folder / "curves.svg").read_text().startswith("<?xml")


def test_mutual_tls_admits_clients_with_certificates(shell: Shell):
    certs, learn, act, status = shown("tls")
    shell.run(certs)
    viewer = security_of(shell.folder / "certs", "viewer")
    (snippet,) = [block for block in SNIPPETS if "ClientSecurity(" in block]
    with shell.running(learn, **LONG) as learner, shell.running(act) as actor:
        wait_until(lambda: status_of(shell.address, viewer).updates, "training")
        assert "training" in shell.run(status)
        (shell.folder / "look.py").write_text(shell.here(snippet))
        assert "LearnerStatus(phase=<Phase.TRAINING" in shell.run("python look.py")
        for process in (actor, learner):
            assert ended(process, signal.SIGTERM) == 0


class TestSnippets:
    def test_every_snippet_runs_here_or_has_a_reason(self):
        run = (
            "parse_length_prefixed",
            "ClientSecurity(",
            "onnxruntime.InferenceSession(",
            "ToolBench",
            "make_fastest_vector_env",
        )
        run += ('"action_mask": MultiBinary', "class DeliveryEvents", "class Corridor")
        for block in SNIPPETS:
            matches = [mark for mark in run if mark in block] + [mark for mark in NOT_RUN if block.startswith(mark)]
            assert len(matches) == 1, f"run it, or say why not:\n{block}"

    def test_structured_environment_snippet_is_played(self):
        (program,) = [block for block in SNIPPETS if "ToolBench" in block]
        names: dict[str, object] = {}
        exec(program, names)
        bench = names["ToolBench"]()
        turn = bench.reset(seed=0)
        while turn.observations:
            turn = bench.step({who: bench.spaces[who.substep_key].action.sample() for who in turn.observations})
        assert len(turn.ended) == 2

    def test_snippets_of_spaces_and_vectors_run(self):
        names = {"np": np, **vars(gymnasium.spaces)}
        for mark in ('"action_mask": MultiBinary', "make_fastest_vector_env"):
            (program,) = [block for block in SNIPPETS if mark in block]
            exec(program, names)
        assert names["observation_space"]["action_mask"].n == names["action_space"].n

    def test_event_snippet_declares_events(self):
        (program,) = [block for block in SNIPPETS if "class DeliveryEvents" in block]
        names = {**vars(events), "gymnasium": gymnasium}
        exec(textwrap.dedent(f"from rollcast.actor.statistics.firing import FiresEvents\n{program}"), names)
        assert callable(names["DeliveryEvents"].parcel_delivered)
        assert issubclass(names["Warehouse"], gymnasium.Env)


def test_make_without_write_access_has_advice(tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        ["make", "train", f"VENV={tmp_path}/file/.venv", f"PYTHON={sys.executable}"],
        cwd=ROOT,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "expected a folder that can be written to" in done.stderr
    assert "make VENV=$HOME/rollcast-venv" in done.stderr
