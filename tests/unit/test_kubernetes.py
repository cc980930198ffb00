"""Every overlay and every set of components is built by kubectl, and is valid in several versions of Kubernetes."""

import copy
import os
import re

import jsonschema
import kubernetes_validate
import pytest
import yaml

from rollcast.actor.settings import ActorSettings
from rollcast.learner.settings.learner import ServingSettings
from rollcast.services.limits.limits import DEFAULT_LIMITS
from rollcast.services.scaling.bounds import ActorBounds
from rollcast.tools.dashboard.settings import DashboardSettings
from rollcast.tools.relay.settings import RelaySettings
from rollcast.tools.scaling.settings import ScalerSettings
from tests.documents import text_of
from tests.manifests import (
    COMPONENTS,
    FOLDER,
    OVERLAYS,
    build,
    build_with,
    container,
    environment_of,
    find,
    overlay,
    pod,
)

# the newest three, and one that has been out of support for a while
VERSIONS = ("1.37", "1.36", "1.35", "1.29")
WITHOUT_OVERLAY = ("dashboard", "evaluator", "podmonitor", "relay")
# those that have no overlay, and each with TLS, which patches what the others add
SETS = [*((name,) for name in WITHOUT_OVERLAY), *((name, "tls") for name in COMPONENTS[:-1])]
PODS = ("learner", "actor", "evaluator", "scaler", "relay", "dashboard")
# Kinds of KEDA and of Prometheus' operator, which are not Kubernetes': what we use of them
SCALED_OBJECT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["scaleTargetRef", "triggers"],
    "properties": {
        "scaleTargetRef": {"properties": {"name": {"type": "string"}}, "additionalProperties": False},
        "pollingInterval": {"type": "integer"},
        "cooldownPeriod": {"type": "integer"},
        "minReplicaCount": {"type": "integer"},
        "maxReplicaCount": {"type": "integer"},
        "advanced": {
            "properties": {
                "horizontalPodAutoscalerConfig": {
                    "properties": {"behavior": {"type": "object"}},
                    "additionalProperties": False,
                }
            },
            "additionalProperties": False,
        },
        "triggers": {
            "items": {
                "properties": {
                    "type": {"enum": ["external", "external-push"]},
                    "metadata": {"additionalProperties": {"type": "string"}, "required": ["scalerAddress"]},
                    "authenticationRef": {"properties": {"name": {"type": "string"}}, "additionalProperties": False},
                },
                "additionalProperties": False,
            }
        },
    },
}
TRIGGER_AUTHENTICATION = {
    "type": "object",
    "additionalProperties": False,
    "required": ["secretTargetRef"],
    "properties": {
        "secretTargetRef": {
            "items": {
                "required": ["parameter", "name", "key"],
                # those of the external trigger
                "properties": {"parameter": {"enum": ["caCert", "tlsClientCert", "tlsClientKey"]}},
            }
        }
    },
}
POD_MONITOR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["selector", "podMetricsEndpoints"],
    "properties": {
        "selector": {"properties": {"matchLabels": {"type": "object"}}, "additionalProperties": False},
        "podMetricsEndpoints": {"items": {"properties": {"port": {"type": "string"}}, "additionalProperties": False}},
    },
}
OWN_KINDS = {
    "ScaledObject": ("keda.sh/v1alpha1", SCALED_OBJECT),
    "TriggerAuthentication": ("keda.sh/v1alpha1", TRIGGER_AUTHENTICATION),
    "PodMonitor": ("monitoring.coreos.com/v1", POD_MONITOR),
}
SPOT_LABELS = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}


def check(documents, version):
    for document in documents:
        if document["kind"] in OWN_KINDS:
            version_of_kind, schema = OWN_KINDS[document["kind"]]
            assert document["apiVersion"] == version_of_kind
            jsonschema.validate(document["spec"], schema)
        else:
            kubernetes_validate.validate(document, version, strict=True)


@pytest.fixture(params=["base", *OVERLAYS])
def documents(request):
    return overlay(request.param)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    return build_with(tmp_path_factory.mktemp("everything"), COMPONENTS)


def test_every_component_has_an_overlay_or_needs_none():
    found = {path.parent.name for path in FOLDER.glob("components/*/kustomization.yaml")}
    assert found == set(COMPONENTS)
    assert set(OVERLAYS) == found - set(WITHOUT_OVERLAY)


def test_overlays_are_valid(documents):
    check(documents, VERSIONS[0])


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_everything_is_valid_in_earlier_versions(everything, version):
    check(everything, version)


def test_validation_refuses_a_field_that_does_not_exist(documents):
    wrong = copy.deepcopy(find(documents, "StatefulSet", "learner"))
    wrong["spec"]["strategy"] = {"type": "Recreate"}
    with pytest.raises(kubernetes_validate.ValidationError):
        check([wrong], VERSIONS[0])


@pytest.mark.slow
@pytest.mark.parametrize("components", SETS, ids="+".join)
def test_components_go_together(tmp_path, components):
    documents = build_with(tmp_path, components)
    check(documents, VERSIONS[0])
    others = {"dashboard": "dashboard", "evaluator": "evaluator", "keda": "scaler", "relay": "relay"}
    for name in ("learner", "actor", *(others[component] for component in components if component in others)):
        assert ("ROLLCAST_TLS_CA" in environment_of(documents, name)) == ("tls" in components)
    assert ("nvidia.com/gpu" in container(documents, "learner")["resources"]["limits"]) == ("gpu" in components)
    assert ("affinity" in pod(documents, "actor")) == ("spot" in components)


def test_sets_only_what_there_is(everything):
    pods = {
        "learner": ServingSettings,
        "actor": ActorSettings,
        "evaluator": ActorSettings,
        "scaler": ScalerSettings,
        "relay": RelaySettings,
        "dashboard": DashboardSettings,
    }
    for name, settings in pods.items():
        known = {f"ROLLCAST_{field.upper()}" for field in settings.model_fields}
        # of the exec probes
        assert environment_of(everything, name).keys() <= known | {"ROLLCAST_TLS_CA"}, name


# Addresses, files and what belongs to them: they fit the services, volumes and ports of the manifests.
WIRED = {
    *("ROLLCAST_LEARNER_ADDRESS", "ROLLCAST_ADDRESS", "ROLLCAST_METRICS_ADDRESS", "ROLLCAST_INSECURE", "ROLLCAST_ROLE"),
    *("ROLLCAST_TLS_CA", "ROLLCAST_TLS_CERT", "ROLLCAST_TLS_KEY", "ROLLCAST_TLS_CLIENT_CA", "ROLLCAST_TOKEN_FILE"),
    *("ROLLCAST_TOKENS_FILE", "ROLLCAST_SERVE_TLS_CERT", "ROLLCAST_SERVE_TLS_KEY", "ROLLCAST_SERVE_TLS_CLIENT_CA"),
    *("ROLLCAST_LISTEN_ADDRESS", "ROLLCAST_DEVICE"),
}


def test_what_a_config_map_may_set_is_in_no_pod_where_it_would_win(everything):
    for name in PODS:
        assert {entry["name"] for entry in container(everything, name).get("env", ())} <= WIRED, name


def changed(tmp_path, components, *changes):
    """Builds the manifests with changes of config maps, `name: VARIABLE=value`."""
    folder = tmp_path / "own"
    folder.mkdir()
    build_with(folder, components)
    (tmp_path / "changed").mkdir()
    maps = (change.split(": ") for change in changes)
    generators = [{"name": name, "behavior": "merge", "literals": [literal]} for name, literal in maps]
    text = yaml.safe_dump({"resources": ["../own"], "configMapGenerator": generators})
    (tmp_path / "changed/kustomization.yaml").write_text(text)
    return build(tmp_path / "changed")


def test_settings_of_actors_are_changed_by_a_config_map(tmp_path):
    documents = changed(
        tmp_path, ("evaluator",), "actor: ROLLCAST_WAIT_FOR_NEXT_RUN=false", "learner: ROLLCAST_STOP_TIMEOUT_S=90"
    )
    for name in ("actor", "evaluator"):
        assert environment_of(documents, name)["ROLLCAST_WAIT_FOR_NEXT_RUN"] == "false"
        assert environment_of(documents, name)["ROLLCAST_CONNECT_TIMEOUT_S"] == "600"
    assert environment_of(documents, "learner")["ROLLCAST_STOP_TIMEOUT_S"] == "90"


def test_learner_is_one_pod_with_a_volume_of_its_own_and_an_address(documents):
    learner = find(documents, "StatefulSet", "learner")["spec"]
    service = find(documents, "Service", learner["serviceName"])["spec"]
    assert (learner["replicas"], service["clusterIP"], service["publishNotReadyAddresses"]) == (1, "None", True)
    labels = learner["template"]["metadata"]["labels"]
    assert learner["selector"]["matchLabels"] == service["selector"] == labels
    (claim,) = learner["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container(documents, "learner")["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == "/runs"


def test_pods_find_each_other_by_services(documents, everything):
    def address_of(documents, name):
        service = find(documents, "Service", name)["spec"]
        (port,) = service["ports"]
        assert service["selector"] == pod_labels(documents, name)
        assert {"name": port["targetPort"], "containerPort": port["port"]} in container(documents, name)["ports"]
        return f"{name}:{port['port']}"

    assert environment_of(documents, "actor")["ROLLCAST_LEARNER_ADDRESS"] == address_of(documents, "learner")
    for name in ("actor", "evaluator"):
        assert environment_of(everything, name)["ROLLCAST_LEARNER_ADDRESS"] == address_of(everything, "relay")
    for name in ("relay", "scaler", "dashboard"):
        assert environment_of(everything, name)["ROLLCAST_LEARNER_ADDRESS"] == address_of(everything, "learner")


def test_every_volume_that_is_mounted_is_there(everything):
    for name in PODS:
        volumes = {volume["name"] for volume in pod(everything, name)["volumes"]}
        if name == "learner":
            volumes |= {"runs"}
        assert {mount["name"] for mount in container(everything, name)["volumeMounts"]} == volumes, name


def test_pods_keep_the_restricted_standard(everything):
    for name in PODS:
        spec, inside = pod(everything, name), container(everything, name)
        assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert inside["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= inside["resources"]["requests"].keys()
        assert "memory" in inside["resources"]["limits"]


def pod_labels(documents, name):
    kind = "StatefulSet" if name == "learner" else "Deployment"
    return find(documents, kind, name)["spec"]["template"]["metadata"]["labels"]


def test_budget_and_policies_select_the_pods_that_they_mean(everything):
    for kind, name, path in (
        ("PodDisruptionBudget", "actor", "selector"),
        ("NetworkPolicy", "learner", "podSelector"),
        ("NetworkPolicy", "relay", "podSelector"),
    ):
        assert find(everything, kind, name)["spec"][path]["matchLabels"] == pod_labels(everything, name)


def test_prometheus_finds_all_pods_with_metrics_by_the_monitor_as_by_their_annotations(everything):
    monitor = find(everything, "PodMonitor", "rollcast")["spec"]
    for name in ("learner", "actor", "evaluator", "relay", "scaler"):
        assert monitor["selector"]["matchLabels"].items() <= pod_labels(everything, name).items()
        ports = {port["name"]: port["containerPort"] for port in container(everything, name)["ports"]}
        assert monitor["podMetricsEndpoints"] == [{"port": "metrics"}]
        kind = "StatefulSet" if name == "learner" else "Deployment"
        annotations = find(everything, kind, name)["spec"]["template"]["metadata"]["annotations"]
        assert annotations["prometheus.io/port"] == str(ports["metrics"])


def test_who_may_reach_the_learner_may_reach_its_relays(everything):
    learner, relay = (find(everything, "NetworkPolicy", name)["spec"]["ingress"] for name in ("learner", "relay"))
    assert relay == learner


def test_only_port_forward_reaches_the_page_which_has_no_login(everything):
    assert environment_of(everything, "dashboard")["ROLLCAST_LISTEN_ADDRESS"] == "localhost:8080"
    command = container(everything, "dashboard")["livenessProbe"]["exec"]["command"]
    assert "http://localhost:8080/healthz" in command[-1]


def test_evaluator_is_an_actor_with_another_role():
    base = yaml.safe_load((FOLDER / "base/actor.yaml").read_text())
    evaluator = yaml.safe_load((FOLDER / "components/evaluator/evaluator.yaml").read_text())
    role = {"name": "ROLLCAST_ROLE", "value": "evaluate"}
    evaluator["spec"]["template"]["spec"]["containers"][0]["env"].remove(role)
    assert evaluator["spec"].pop("replicas") == 1
    del base["spec"]["replicas"]
    for labels in (
        evaluator["metadata"]["labels"],
        evaluator["spec"]["selector"]["matchLabels"],
        evaluator["spec"]["template"]["metadata"]["labels"],
    ):
        assert labels["app.kubernetes.io/component"] == evaluator["metadata"]["name"] == "evaluator"
        labels["app.kubernetes.io/component"] = "actor"
    evaluator["metadata"]["name"] = "actor"
    assert evaluator == base


def test_changed_setting_replaces_the_pods_that_have_it(tmp_path):
    before, after = overlay("base"), changed(tmp_path, (), "environment: ROLLCAST_ENV_ID=Acrobot-v1")
    for name in ("learner", "actor"):
        assert environment_of(after, name)["ROLLCAST_ENV_ID"] == "Acrobot-v1"
        assert container(after, name)["envFrom"][0] != container(before, name)["envFrom"][0]


def test_kustomization_of_the_docs_is_built(tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", text_of("kubernetes.md"), re.DOTALL)
    own = yaml.safe_load(block)
    here = os.path.relpath(FOLDER.parent, tmp_path.resolve())
    for name in ("resources", "components"):
        own[name] = [f"{here}/{path}" for path in own[name]]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
    documents = build(tmp_path)
    check(documents, VERSIONS[0])
    for name in ("learner", "actor", "evaluator"):
        assert environment_of(documents, name)["ROLLCAST_ATARI"] == "true"
        assert container(documents, name)["image"].startswith("registry.example.org/rollcast-")
        assert environment_of(documents, name)["ROLLCAST_TLS_CA"] == "/tls/ca.pem"
    assert environment_of(documents, "learner")["ROLLCAST_RESUME"] == "auto", "what is merged keeps the rest"


class TestSpot:
    def test_actors_take_the_spot_machines_of_each_cloud(self):
        spec = pod(overlay("spot"), "actor")
        rules = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        terms = [term["matchExpressions"] for term in rules["nodeSelectorTerms"]]
        assert terms == [[{"key": key, "operator": "In", "values": [value]}] for key, value in SPOT_LABELS.items()], (
            "alternatives"
        )
        assert {(taint["key"], taint["value"]) for taint in spec["tolerations"]} == set(SPOT_LABELS.items())
        assert spec["terminationGracePeriodSeconds"] == 30

    def test_learner_stays_away_from_all_of_them(self):
        spec = pod(overlay("spot"), "learner")
        rules = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = rules["nodeSelectorTerms"]
        assert term["matchExpressions"] == [
            {"key": key, "operator": "NotIn", "values": [value]} for key, value in SPOT_LABELS.items()
        ]
        assert "tolerations" not in spec


def test_gpu_is_the_learners_alone():
    documents = overlay("gpu")
    assert environment_of(documents, "learner")["ROLLCAST_DEVICE"] == "cuda"
    assert container(documents, "learner")["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in container(documents, "actor")["resources"]["limits"]


class TestKeda:
    def test_asks_the_scaler_by_its_service(self):
        documents = overlay("keda")
        (trigger,) = find(documents, "ScaledObject", "actor")["spec"]["triggers"]
        (port,) = find(documents, "Service", "scaler")["spec"]["ports"]
        assert trigger == {"type": "external", "metadata": {"scalerAddress": f"scaler.default:{port['port']}"}}
        (inside,) = [one for one in container(documents, "scaler")["ports"] if one["name"] == "grpc"]
        assert inside["containerPort"] == port["port"]
        assert environment_of(documents, "scaler")["ROLLCAST_ADDRESS"] == f"0.0.0.0:{port['port']}"
        ActorBounds.from_metadata(trigger["metadata"])

    def test_nobody_else_sets_the_number_of_actors(self):
        documents = overlay("keda")
        target = find(documents, "ScaledObject", "actor")["spec"]["scaleTargetRef"]["name"]
        assert "replicas" not in find(documents, "Deployment", target)["spec"]

    def test_limits_are_those_of_scaler_and_learner(self):
        scaled = find(overlay("keda"), "ScaledObject", "actor")["spec"]
        fields = ScalerSettings.model_fields
        assert scaled["maxReplicaCount"] == fields["max_actors"].default == DEFAULT_LIMITS.max_actors
        assert scaled["minReplicaCount"] == 0 < fields["min_actors"].default, "none at the end, and only then"

    def test_scaler_runs_the_command_of_the_learners_image(self):
        inside = container(overlay("keda"), "scaler")
        assert inside["image"] == container(overlay("keda"), "learner")["image"]
        assert inside["args"] == ["scaler"]
