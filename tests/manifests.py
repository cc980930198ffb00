"""The Kubernetes manifests as kubectl builds them, and what a container of theirs gets from them."""

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.processes import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = tuple(sorted(path.parent.name for path in FOLDER.glob("overlays/*/kustomization.yaml")))
# TLS is the last, so that it reaches what the others add
COMPONENTS = ("evaluator", "gpu", "keda", "spot", "tls")

Document = dict[str, Any]


@functools.cache
def build(kustomization: Path) -> tuple[Document, ...]:
    """Returns the documents of a folder with a kustomization, built by kubectl. Nobody may change them."""
    if shutil.which("kubectl") is None:
        reason = "kubectl is not installed (1.27 or newer); it builds the manifests, without a cluster"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; CI must have it", pytrace=False)
        pytest.skip(reason)
    done = subprocess.run(["kubectl", "kustomize", kustomization], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{kustomization}\n{done.stderr}"
    assert not done.stderr, "kubectl warns of what is deprecated"
    return tuple(yaml.safe_load_all(done.stdout))


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
