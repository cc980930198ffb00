"""The Kubernetes manifests as kubectl builds them, and what a container of theirs gets from them and from secrets."""

import base64
import functools
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rollcast.learner import main
from tests.documents import commands, section_of
from tests.needs import lacks
from tests.processes import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = tuple(sorted(path.parent.name for path in FOLDER.glob("overlays/*/kustomization.yaml")))
# TLS is the last, so that it reaches what the others add
COMPONENTS = ("dashboard", "evaluator", "gpu", "keda", "podmonitor", "relay", "spot", "tls")

Document = dict[str, Any]
# Files of secrets, by the secret's name.
Secrets = Mapping[str, Mapping[str, bytes]]


@functools.cache
def build(kustomization: Path) -> tuple[Document, ...]:
    """Returns the documents of a folder with a kustomization, built by kubectl. Nobody may change them."""
    _needs_kubectl()
    done = subprocess.run(["kubectl", "kustomize", kustomization], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{kustomization}\n{done.stderr}"
    assert not done.stderr, "kubectl warns of what is deprecated"
    loader = yaml.CSafeLoader(done.stdout)  # in C: a tenth of the time
    documents: list[Document] = []
    while loader.check_data():
        documents.append(loader.get_data())
    return tuple(documents)


def build_with(folder: Path, components: Sequence[str]) -> tuple[Document, ...]:
    """Returns the documents of the base with components, as a user's own kustomization in a folder has them."""
    here = Path(os.path.relpath(FOLDER, folder.resolve()))
    own = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(here / "base")],
        "components": [str(here / "components" / name) for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(own))
    return build(folder)


def overlay(name: str) -> tuple[Document, ...]:
    """Returns the documents of an overlay, or of `base`."""
    return build(FOLDER / "base" if name == "base" else FOLDER / "overlays" / name)


def find(documents: Sequence[Document], kind: str, name: str) -> Document:
    """Returns the one document of a kind and a name."""
    (found,) = [document for document in documents if (document["kind"], document["metadata"]["name"]) == (kind, name)]
    return found


def pod(documents: Sequence[Document], component: str) -> Document:
    """Returns the pod of a component, as its StatefulSet or Deployment makes it."""
    kind = "StatefulSet" if component == "learner" else "Deployment"
    spec: Document = find(documents, kind, component)["spec"]["template"]["spec"]
    return spec


def container(documents: Sequence[Document], component: str) -> Document:
    """Returns the only container of a component's pod."""
    (found,) = pod(documents, component)["containers"]
    assert isinstance(found, dict)
    return found


def environment_of(documents: Sequence[Document], component: str) -> dict[str, str]:
    """Returns the environment of a component's container: from its ConfigMaps, then from its own list."""
    values: dict[str, str] = {}
    for source in container(documents, component).get("envFrom", ()):
        values |= find(documents, "ConfigMap", source["configMapRef"]["name"])["data"]
    return values | {variable["name"]: variable["value"] for variable in container(documents, component)["env"]}


def make_secrets(folder: Path) -> Secrets:
    """Runs the commands of docs/howto/kubernetes.md that make certificates and secrets, without a cluster.

    Args:
        folder: The folder in which the commands are typed.

    Returns:
        The secrets, as the cluster would have them.
    """
    _needs_kubectl()
    section = section_of("kubernetes.md", "TLS and tokens")
    secrets: dict[str, dict[str, bytes]] = {}
    for line in commands(section):
        command = shlex.split(line)
        if command[:2] == ["rollcast", "certs"]:
            assert main(["certs", str(folder / command[2]), *command[3:]]) == 0
        elif command[:4] == ["kubectl", "create", "secret", "generic"]:
            asked = [*command, "--dry-run=client", "--output=json"]
            done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            data = json.loads(done.stdout)["data"]
            secrets[command[4]] = {name: base64.b64decode(content) for name, content in data.items()}
        elif command[0] != "kubectl":
            subprocess.run(["bash", "-c", line], cwd=folder, check=True)
    return secrets


def mounted_environment(
    documents: Sequence[Document], component: str, secrets: Secrets, folder: Path
) -> dict[str, str]:
    """Writes the secrets that a component's container mounts, and returns its environment with the paths of these.

    Args:
        documents: The manifests.
        component: The component.
        secrets: The secrets of the cluster.
        folder: The folder that stands for the container's root.
    """
    mounts = {mount["name"]: mount["mountPath"] for mount in container(documents, component)["volumeMounts"]}
    environment = environment_of(documents, component)
    for volume in pod(documents, component)["volumes"]:
        if "secret" not in volume:
            continue
        inside = mounts[volume["name"]]
        outside = folder / inside.lstrip("/")
        outside.mkdir(parents=True)
        for name, content in secrets[volume["secret"]["secretName"]].items():
            (outside / name).write_bytes(content)
        for name, value in environment.items():
            if value.startswith(f"{inside}/"):
                environment[name] = f"{outside}{value.removeprefix(inside)}"
    return environment


def trigger_authentication(documents: Sequence[Document], secrets: Secrets) -> dict[str, bytes]:
    """Returns what KEDA reads for the first trigger of the ScaledObject, by the name of the parameter."""
    trigger = find(documents, "ScaledObject", "actor")["spec"]["triggers"][0]
    authentication = find(documents, "TriggerAuthentication", trigger["authenticationRef"]["name"])
    references = authentication["spec"]["secretTargetRef"]
    return {entry["parameter"]: secrets[entry["name"]][entry["key"]] for entry in references}


def _needs_kubectl() -> None:
    if shutil.which("kubectl") is None:
        lacks("kubectl", "kubectl is not installed (1.27 or newer); it builds manifests and secrets, without a cluster")
