"""The Compose files, the Swarm stack and the Kubernetes manifests say the same as the images and as each other."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from rollcast.actor.settings import ActorSettings
from rollcast.learner.settings.learner import ServingSettings
from rollcast.services.settings.options import options_of, variable_name
from rollcast.tools.dashboard.settings import DashboardSettings
from rollcast.tools.relay.settings import RelaySettings
from tests.manifests import container, environment_of, overlay, pod
from tests.processes import SOURCE_ROOTS

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
TLS = yaml.safe_load((ROOT / "deploy/compose/tls.yml").read_text())
RANKS = yaml.safe_load((ROOT / "deploy/compose/ddp.yml").read_text())
RELAYS = yaml.safe_load((ROOT / "deploy/compose/relay.yml").read_text())
RELAYS_TLS = yaml.safe_load((ROOT / "deploy/compose/relay-tls.yml").read_text())
STACK = yaml.safe_load((ROOT / "deploy/stack.yml").read_text())
# The settings of the process in each service, by its name, and the files of the services.
SETTINGS = {"learner": ServingSettings, "actor": ActorSettings, "relay": RelaySettings, "dashboard": DashboardSettings}
SERVICES = [(COMPOSE, "learner"), (COMPOSE, "actor"), (COMPOSE, "dashboard"), (RELAYS, "relay")]
SERVICES += [(STACK, "learner"), (STACK, "actor")]
# The settings of a process that its container has of its own, and does not take from the shell, with the reasons.
OF_THE_CONTAINER = {
    "settings_exit_code": "restart policies cannot tell wrong settings from a crash",
    **dict.fromkeys(("actor_id", "relay_id"), "after the host, so that each replica has its own"),
    "role": "a service for each",
    "heartbeat_file": "the image's health check looks there",
    **dict.fromkeys(("address_file", "advertised_host", "tls_server_name"), "the network has a name for the service"),
    **dict.fromkeys(("address", "learner_address", "listen_address", "metrics_address"), "in the network of services"),
    "insecure": "that network is this machine's or the stack's own",
    **dict.fromkeys(("token", "token_file", "tokens_file", "serve_tokens_file"), "mounted with their paths"),
    **dict.fromkeys(("tls_ca", "tls_cert", "tls_key", "tls_client_ca"), "mounted with their paths"),
    **dict.fromkeys(("serve_tls_cert", "serve_tls_key", "serve_tls_client_ca"), "mounted with their paths"),
}


def health_check(component):
    """The image's: seconds or times by option, and the command."""
    recipe = (ROOT / component / "Dockerfile").read_text()
    options, command = re.search(r"^HEALTHCHECK (.*)\\\n +CMD (.*)$", recipe, re.MULTILINE).groups()
    return {name: int(number) for name, number in re.findall(r"--([a-z-]+)=(\d+)s?", options)}, command


def variables_of(component):
    """The variables that the process of a service reads."""
    return {variable_name(option.path) for option in options_of(SETTINGS[component])} | {"ROLLCAST_SETTINGS_EXIT_CODE"}


def environment(component):
    """Returns the variables of each deployment."""
    return {
        "compose": COMPOSE["services"][component]["environment"],
        "stack": STACK["services"][component]["environment"],
        "kubernetes": environment_of(overlay("base"), component),
    }


@pytest.mark.parametrize("component", ["learner", "actor"])
class TestAllOfThem:
    def test_probe_with_the_same_numbers(self, component):
        numbers, _ = health_check(component)
        for file in (COMPOSE, TLS, RANKS, RELAYS, STACK):
            assert "healthcheck" not in file["services"].get(component, {}), "the image's is everybody's"
        for name in ("startupProbe", "livenessProbe"):
            probe = container(overlay("base"), component)[name]
            assert (probe["periodSeconds"], probe["timeoutSeconds"]) == (numbers["interval"], numbers["timeout"])
            assert "initialDelaySeconds" not in probe
        assert container(overlay("base"), component)["livenessProbe"]["failureThreshold"] == numbers["retries"]
        start = container(overlay("base"), component)["startupProbe"]
        assert start["failureThreshold"] * start["periodSeconds"] == numbers["start-period"] >= 120

    def test_grant_the_same_time_to_stop(self, component):
        seconds = pod(overlay("base"), component)["terminationGracePeriodSeconds"]
        for file in (COMPOSE, STACK):
            assert file["services"][component]["stop_grace_period"] == f"{seconds}s"

    def test_let_it_write_nowhere_but_to_its_volumes(self, component):
        for file in (COMPOSE, STACK):
            service = file["services"][component]
            assert (service["cap_drop"], service["read_only"], service["init"]) == (["ALL"], True, True)
        assert COMPOSE["services"][component]["tmpfs"] == ["/tmp"]
        assert COMPOSE["services"][component]["security_opt"] == ["no-new-privileges:true"]
        assert {"type": "tmpfs", "target": "/tmp"} in STACK["services"][component]["volumes"]

    def test_set_only_what_there_is(self, component):
        for where, variables in environment(component).items():
            assert variables.keys() <= variables_of(component), where

    def test_are_not_started_again_for_settings_that_cannot_be_right(self, component):
        for where in ("compose", "stack"):
            assert environment(component)[where]["ROLLCAST_SETTINGS_EXIT_CODE"] == "0"


class TestLearner:
    @pytest.mark.parametrize(
        ("given", "algorithm"),
        [
            ({}, "impala"),
            # what is passed on and not set is not set, or empty
            ({"ROLLCAST_ALGORITHM": ""}, "impala"),
            ({"ROLLCAST_ALGORITHM": "sac"}, "sac"),
            ({"ROLLCAST_ENV_ID": "Acrobot-v1"}, ""),
            ({"ROLLCAST_RECIPE": "ppo-cartpole"}, ""),
        ],
    )
    def test_learns_cartpole_by_impala_and_what_is_named_by_the_default(self, given, algorithm, tmp_path):
        service = COMPOSE["services"]["learner"]
        command = [part.replace("$$", "$") for part in (*service["entrypoint"], *service["command"])]
        program = tmp_path / "rollcast"
        program.write_text('#!/bin/sh\necho "$1 $ROLLCAST_ALGORITHM"\n')
        program.chmod(0o755)
        found = subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin", **given}, capture_output=True)
        assert found.stdout.decode() == f"learner {algorithm}\n", found.stderr

    def test_stays_and_serves_its_policy_when_training_has_ended(self):
        for where, variables in environment("learner").items():
            assert "serve" in variables["ROLLCAST_WHEN_FINISHED"], where
            assert "auto" in variables["ROLLCAST_RESUME"], where

    def test_has_time_for_its_last_checkpoint_before_it_is_killed(self):
        grace_s = pod(overlay("base"), "learner")["terminationGracePeriodSeconds"]
        for where, variables in environment("learner").items():
            assert 2 * int(re.search(r"\d+", variables["ROLLCAST_STOP_TIMEOUT_S"])[0]) <= grace_s, where

    def test_never_shares_the_volume_of_a_stack_with_its_successor(self):
        deploy = STACK["services"]["learner"]["deploy"]
        assert (deploy["replicas"], deploy["update_config"]["order"]) == (1, "stop-first")

    def test_is_probed_by_a_script_of_this_tree(self):
        _, command = health_check("learner")
        (script,) = re.fullmatch(r'\["python", "-I", "/opt/venv/\S+/site-packages/(.*)", .*\]', command).groups()
        assert any((root / script).is_file() for root in SOURCE_ROOTS)
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            # the API server fills in the empty name: that of the whole server
            assert container(overlay("base"), "learner")[name]["grpc"] == {"port": 50051}
            # the kubelet speaks no TLS
            assert container(overlay("tls"), "learner")[name]["exec"] == {"command": json.loads(command)}

    def test_gives_the_address_of_a_rank_by_the_name_that_actors_and_certificates_know(self):
        assert environment("actor")["compose"]["ROLLCAST_LEARNER_ADDRESS"] == "learner:50051"
        assert "--host learner" in TLS["services"]["certs"]["command"][0]
        assert RANKS["services"]["learner"]["hostname"] == "learner"


@pytest.mark.parametrize(("file", "component"), SERVICES)
def test_whatever_the_shell_sets_is_passed_on(file, component):
    given = file["services"][component]["environment"]
    own = {variable_name((name,)) for name in OF_THE_CONTAINER}
    assert own <= set.union(*map(variables_of, SETTINGS)), "each of the table is a setting"
    expected = variables_of(component) - own
    lacking = expected - given.keys()
    assert not lacking, f"{', '.join(sorted(lacking))}: write them into the list of what is passed on"
    assert given.keys() <= variables_of(component)
    for name in expected:
        # as it is, or with a default of the file's own
        assert given[name] is None or given[name].startswith(("${" + name + ":-", "${" + name + "-")), name


class TestRelays:
    def test_are_confined_like_a_learner_and_probed_where_its_image_looks(self):
        relay, learner = RELAYS["services"]["relay"], COMPOSE["services"]["learner"]
        confined = ("image", "init", "read_only", "tmpfs", "cap_drop", "security_opt")
        assert {name: relay[name] for name in confined} == {name: learner[name] for name in confined}
        _, command = health_check("learner")
        assert f"localhost:{relay['environment']['ROLLCAST_ADDRESS'].rpartition(':')[2]}" in command

    def test_have_certificates_for_the_name_that_actors_call_and_use_them_as_in_a_cluster(self):
        assert "--host relay" in TLS["services"]["certs"]["command"][0]
        patch = yaml.safe_load((ROOT / "deploy/kubernetes/components/tls/relay.yaml").read_text())
        (of_the_cluster,) = patch["spec"]["template"]["spec"]["containers"]
        expected = {each["name"]: each.get("value", "") for each in of_the_cluster["env"]}
        assert RELAYS_TLS["services"]["relay"]["environment"] == expected


class TestActor:
    def test_is_probed_by_the_same_command(self):
        _, command = health_check("actor")
        for name in ("startupProbe", "livenessProbe"):
            assert container(overlay("base"), "actor")[name]["exec"]["command"] == ["sh", "-c", command]

    def test_keeps_its_name_in_the_stack_when_its_task_is_replaced(self):
        assert "ENV ROLLCAST_ACTOR_ID={host} " in (ROOT / "actor/Dockerfile").read_text()
        assert STACK["services"]["actor"]["hostname"] == "{{.Service.Name}}-{{.Task.Slot}}"

    def test_waits_for_the_next_run_where_it_would_be_started_again(self):
        assert environment("actor")["kubernetes"]["ROLLCAST_WAIT_FOR_NEXT_RUN"] == "true"


@pytest.mark.parametrize("file", [COMPOSE, STACK, TLS])
def test_evaluator_is_an_actor_with_another_role(file):
    evaluator, actor = file["services"]["evaluator"], file["services"]["actor"]
    others = {"environment", "deploy", "profiles"}
    assert {name: value for name, value in evaluator.items() if name not in others} == {
        name: value for name, value in actor.items() if name not in others
    }
    role = {} if file is TLS else {"ROLLCAST_ROLE": "evaluate"}
    assert evaluator["environment"] == actor["environment"] | role


def test_evaluator_starts_only_when_asked_for():
    assert COMPOSE["services"]["evaluator"]["profiles"] == ["evaluate"]
    assert STACK["services"]["evaluator"]["deploy"]["replicas"] == 0


def test_services_that_run_as_root_have_only_the_rights_that_they_use():
    for service, rights in (
        (COMPOSE["services"]["runs-folder"], ["FOWNER"]),
        (TLS["services"]["certs"], ["CHOWN", "DAC_OVERRIDE", "FOWNER"]),
    ):
        assert (service["cap_drop"], service["cap_add"], service["read_only"]) == (["ALL"], rights, True)
        assert service["security_opt"] == ["no-new-privileges:true"]
