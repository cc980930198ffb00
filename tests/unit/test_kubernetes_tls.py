"""The component `tls` beside all others, and the secrets that the documented commands make for it."""

import re

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from tests.manifests import (
    COMPONENTS,
    build_with,
    container,
    environment_of,
    find,
    make_secrets,
    pod,
    trigger_authentication,
)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    return build_with(tmp_path_factory.mktemp("everything"), COMPONENTS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Everything but TLS."""
    return build_with(tmp_path_factory.mktemp("plain"), COMPONENTS[:-1])


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """The folder in which the commands of the docs were typed, and the secrets of the cluster after that."""
    folder = tmp_path_factory.mktemp("typed")
    return folder, make_secrets(folder)


@pytest.fixture
def secrets(typed):
    return typed[1]


class TestTls:
    def test_secrets_of_the_docs_hold_the_files_that_the_settings_name(self, everything, secrets):
        mounted = {"learner": 1, "actor": 1, "evaluator": 1, "scaler": 2, "relay": 2, "dashboard": 1}
        for name, n_secrets in mounted.items():
            spec, inside = pod(everything, name), container(everything, name)
            volumes = {volume["name"]: volume["secret"] for volume in spec["volumes"] if "secret" in volume}
            mounts = {mount["name"]: mount for mount in inside["volumeMounts"]}
            assert len(volumes) == n_secrets
            there = {
                f"{mounts[volume]['mountPath']}/{file}"
                for volume, secret in volumes.items()
                for file in secrets[secret["secretName"]]
            }
            named = {value for value in environment_of(everything, name).values() if re.match(r"/[a-z-]*tls/", value)}
            assert named == there, name
            assert all(mounts[volume]["readOnly"] for volume in volumes)
            assert spec["securityContext"]["fsGroup"] == 10001, "or its user cannot read them"
            assert {secret["defaultMode"] for secret in volumes.values()} == {0o440}

    def test_nobody_is_open_any_longer(self, plain, everything):
        for name in ("learner", "relay", "scaler"):
            assert environment_of(plain, name)["ROLLCAST_INSECURE"] == "true"
            assert "ROLLCAST_INSECURE" not in environment_of(everything, name)

    @pytest.mark.parametrize("component", ["learner", "relay", "scaler"])
    def test_probes_keep_their_numbers(self, component, plain, everything):
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            open_, secure = container(plain, component)[name], container(everything, component)[name]
            assert "grpc" not in secure
            assert secure | {"grpc": open_["grpc"]} == open_ | {"exec": secure["exec"]}
            assert secure["exec"]["command"][-1] == f"localhost:{open_['grpc']['port']}"


class TestConnections:
    """Names that are called, and the authorities that each side knows."""

    @staticmethod
    def names(certificate):
        extension = x509.load_pem_x509_certificate(certificate).extensions
        return extension.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)

    @staticmethod
    def is_from(certificate, authorities):
        def signed(authority):
            try:
                x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(authority)
            except (InvalidSignature, ValueError):
                return False
            return True

        return any(map(signed, x509.load_pem_x509_certificates(authorities)))

    def test_certificates_are_for_the_names_that_are_called(self, everything, secrets):
        for component, server in (
            ("scaler", "learner"),
            ("dashboard", "learner"),
            ("relay", "learner"),
            ("actor", "relay"),
            ("evaluator", "relay"),
        ):
            host, _, _ = environment_of(everything, component)["ROLLCAST_LEARNER_ADDRESS"].partition(":")
            assert host == server
            assert host in self.names(secrets[f"{server}-tls"]["server.pem"])
        (trigger,) = find(everything, "ScaledObject", "actor")["spec"]["triggers"]
        host, _, _ = trigger["metadata"]["scalerAddress"].partition(":")
        assert host in self.names(secrets["scaler-server-tls"]["server.pem"])
        for server in ("learner-tls", "relay-tls", "scaler-server-tls"):
            assert "localhost" in self.names(secrets[server]["server.pem"]), "for the probes"

    def test_each_side_knows_the_authority_of_the_other(self, everything, secrets):
        keda = trigger_authentication(everything, secrets)
        learner, viewer, serving = (secrets[name] for name in ("learner-tls", "viewer-tls", "scaler-server-tls"))
        assert self.is_from(learner["server.pem"], viewer["ca.pem"])
        assert self.is_from(viewer["viewer.pem"], learner["ca.pem"])
        assert self.is_from(serving["server.pem"], keda["caCert"])
        assert self.is_from(keda["tlsClientCert"], serving["ca.pem"])
        assert not self.is_from(keda["tlsClientCert"], learner["ca.pem"]), "the learner is none of KEDA's business"

    def test_actors_of_relays_know_two_authorities_and_the_learner_one(self, secrets):
        learner, relay, actor = (secrets[f"{name}-tls"] for name in ("learner", "relay", "actor"))
        for server in (learner, relay):
            assert self.is_from(server["server.pem"], actor["ca.pem"])
            assert self.is_from(actor["actor.pem"], server["ca.pem"])
        assert not self.is_from(relay["server.pem"], learner["ca.pem"])
        assert relay["tokens"].decode() == f"actor:{actor['actor.token'].decode()}", "no other role"

    def test_who_watches_comes_with_the_token_of_a_viewer(self, secrets):
        token = secrets["viewer-tls"]["viewer.token"].decode().strip()
        assert f"viewer:{token}" in secrets["learner-tls"]["tokens"].decode().splitlines()

    def test_each_key_is_in_one_secret(self, typed):
        folder, secrets = typed
        found = [content for files in secrets.values() for name, content in files.items() if name.endswith(".key")]
        assert len(found) == len(set(found)) == 6
        kept = [path.read_bytes() for path in folder.glob("*/*") if path.stem in ("ca", "operator")]
        assert not [key for key in found if key in kept], "those of authorities and operators stay where they are"

    def test_keda_alone_asks_in_the_open(self, plain):
        (trigger,) = find(plain, "ScaledObject", "actor")["spec"]["triggers"]
        assert "authenticationRef" not in trigger
