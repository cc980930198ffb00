"""`rollcast scaler`, asked over KEDA's contract about learners that train, end, or do not answer."""

import contextlib
import re
import sys
import threading

import grpc
import pytest

from rollcast.keda import external_scaler_pb2 as messages
from rollcast.services.client import health_probe
from rollcast.services.errors import ConfigurationError, NotReadyError, RollcastError
from rollcast.services.limits.limits import Limits
from rollcast.services.scaling.bounds import ActorBounds
from rollcast.services.scaling.service import EXTERNAL_SCALER
from rollcast.services.server.scaler import make_scaler_server
from rollcast.tools.certificates import make_certificates
from rollcast.tools.scaling.command import scaler
from rollcast.tools.scaling.settings import ScalerSettings
from tests.integration.test_metrics_endpoints import scrape
from tests.keda import Keda
from tests.manifests import build_with, container, find, make_secrets, mounted_environment, trigger_authentication
from tests.processes import free_port, running, wait_until

# a window that is soon full
QUICK = {"ROLLCAST_WINDOW_S": "1", "ROLLCAST_INTERVAL_S": "0.1", "ROLLCAST_COOLDOWN_S": "1"}


class Wanted:
    """The number of a scaler, as a test sets it; an exception is raised."""

    def __init__(self, number: int | RollcastError) -> None:
        self.number = number

    def wanted(self) -> int:
        if isinstance(self.number, RollcastError):
            raise self.number
        return self.number

    def wait_for_change(self, wanted: int, timeout_s: float) -> None:
        threading.Event().wait(min(timeout_s, 0.02))


@pytest.fixture
def source():
    return Wanted(3)


@pytest.fixture
def served(source):
    server = make_scaler_server("127.0.0.1:0", source, bounds=ActorBounds(fewest=2, most=64))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def keda(served):
    with Keda(served.address) as client:
        yield client


class TestContract:
    def test_replicas_are_the_wanted_actors(self, keda, source):
        assert keda.is_active()
        assert keda.metric() == 3
        assert keda.replicas(1) == 3
        source.number = 11
        assert keda.replicas(3) == 11

    def test_nobody_is_wanted_after_the_end(self, keda, source):
        source.number = 0
        assert not keda.is_active()
        assert keda.metric() == 0
        assert keda.replicas(5) == 0

    def test_activity_is_streamed_at_once_and_at_every_change(self, keda, source):
        stream = keda.stream_is_active()
        assert next(stream) is True
        source.number = 5  # still active: nothing is sent
        source.number = 0
        assert next(stream) is False
        source.number = 1
        assert next(stream) is True

    def test_stream_ends_when_the_scaler_stops(self, keda, served):
        stream = keda.stream_is_active()
        assert next(stream) is True
        served.drain()
        assert list(stream) == []

    def test_names_and_numbers_are_those_of_kedas_contract(self):
        """The bytes on the wire: KEDA's client was not made from our file."""
        asked = messages.ScaledObjectRef(name="n", namespace="s", scalerMetadata={"k": "v"})
        assert asked.SerializeToString() == b"\x0a\x01n\x12\x01s\x1a\x06\x0a\x01k\x12\x01v"
        request = messages.GetMetricsRequest(scaledObjectRef=messages.ScaledObjectRef(), metricName="m")
        assert request.SerializeToString() == b"\x0a\x00\x12\x01m"
        value = messages.MetricValue(metricName="m", metricValue=2, metricValueFloat=2.0)
        assert value.SerializeToString() == b"\x0a\x01m\x10\x02\x19\x00\x00\x00\x00\x00\x00\x00@"
        spec = messages.MetricSpec(metricName="m", targetSize=1, targetSizeFloat=1.0)
        assert spec.SerializeToString() == b"\x0a\x01m\x10\x01\x19\x00\x00\x00\x00\x00\x00\xf0?"
        assert messages.IsActiveResponse(result=True).SerializeToString() == b"\x08\x01"
        assert EXTERNAL_SCALER == "externalscaler.ExternalScaler"

    def test_health_says_that_it_serves(self, served):
        assert health_probe.probe(served.address) is None
        assert health_probe.probe(served.address, EXTERNAL_SCALER) is None


class TestRefusals:
    def test_unknown_metric(self, keda):
        with pytest.raises(grpc.RpcError) as caught:
            keda.metric("queue_length")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "'queue_length'; expected 'wanted_actors'" in caught.value.details()

    @pytest.mark.parametrize("call", [Keda.is_active, Keda.metric, lambda keda: list(keda.stream_is_active())])
    def test_bad_metadata(self, served, call):
        with Keda(served.address, metadata={"maxActors": "many"}) as keda, pytest.raises(grpc.RpcError) as caught:
            call(keda)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "maxActors is 'many'; expected a whole number" in caught.value.details()

    @pytest.mark.parametrize("call", [Keda.is_active, Keda.metric, lambda keda: list(keda.stream_is_active())])
    def test_unknown_number(self, keda, source, call):
        source.number = NotReadyError("the learner has not answered for 61 s")
        with pytest.raises(grpc.RpcError) as caught:
            call(keda)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "has not answered for 61 s" in caught.value.details()

    @pytest.mark.parametrize(
        ("metadata", "message"),
        [
            ({"minActors": "65"}, "minActors is 65; expected at most 64, the scaler's --max-actors"),
            ({"maxActors": "1"}, "maxActors is 1; expected at least 2, the scaler's --min-actors"),
        ],
    )
    def test_bounds_beyond_the_scalers(self, served, metadata, message):
        with Keda(served.address, metadata=metadata) as keda, pytest.raises(grpc.RpcError) as caught:
            keda.metric()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert message in caught.value.details()

    def test_too_many_streams_are_told_of_no_option_that_the_scaler_lacks(self, served):
        with contextlib.ExitStack() as stack, pytest.raises(grpc.RpcError) as caught:
            keda = stack.enter_context(Keda(served.address))
            streams = [keda.stream_is_active() for _ in range(25)]
            for stream in streams:
                next(stream)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "24 streams are open already" in caught.value.details()
        assert "--" not in caught.value.details()

    def test_too_many_calls_are_told_of_no_option_that_the_scaler_lacks(self, source, monkeypatch):
        monkeypatch.setattr("rollcast.services.server.scaler._LIMITS", Limits(calls_per_second_per_host=1.0))
        server = make_scaler_server("127.0.0.1:0", source)
        server.start()
        try:
            with Keda(server.address) as keda, pytest.raises(grpc.RpcError) as caught:
                for _ in range(1000):
                    keda.is_active()
        finally:
            server.stop()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "made more than 1 calls a second" in caught.value.details()
        assert "--" not in caught.value.details()

    def test_bounds_of_a_scaled_object_hold_for_it_alone(self, served, keda):
        with Keda(served.address, metadata={"maxActors": "2"}) as bounded:
            assert bounded.metric() == 2
        assert keda.metric() == 3


@contextlib.contextmanager
def scaler_of(learner: str, metadata: dict[str, str] | None = None, **variables: str):
    """Runs `rollcast scaler` for a learner, and yields its process and KEDA."""
    address = f"localhost:{free_port()}"
    settings = {"ROLLCAST_LEARNER_ADDRESS": learner, "ROLLCAST_ADDRESS": address} | QUICK | variables
    with running("learner", "scaler", **settings) as process, Keda(address, metadata=metadata) as keda:
        yield process, keda


def answer_of(keda):
    """Returns the metric's value, or the code of the error."""
    try:
        return keda.metric()
    except grpc.RpcError as error:
        return error.code()


def test_manifests_with_tls_connect_keda_the_scaler_and_the_learner(tmp_path):
    """With the secrets of the docs' commands, the environments of the pods, and KEDA's TriggerAuthentication."""
    (tmp_path / "own").mkdir()
    documents, secrets = build_with(tmp_path / "own", ("keda", "tls")), make_secrets(tmp_path)
    (trigger,) = find(documents, "ScaledObject", "actor")["spec"]["triggers"]
    host, _, _ = trigger["metadata"]["scalerAddress"].partition(":")
    learner, scaler = (f"localhost:{free_port()}" for _ in range(2))
    addresses = {
        "learner": {
            "ROLLCAST_ADDRESS": learner,
            "ROLLCAST_METRICS_ADDRESS": f"localhost:{free_port()}",
            "ROLLCAST_RUN_DIR": str(tmp_path / "run"),
        },
        "scaler": {"ROLLCAST_ADDRESS": scaler, "ROLLCAST_LEARNER_ADDRESS": learner},
    }
    variables = {
        name: mounted_environment(documents, name, secrets, tmp_path / name) | own for name, own in addresses.items()
    }
    given = trigger_authentication(documents, secrets)
    credentials = grpc.ssl_channel_credentials(given["caCert"], given["tlsClientKey"], given["tlsClientCert"])
    with (
        running("learner", "learner", **variables["learner"]),
        running("learner", "scaler", **variables["scaler"]),
        # it compares the scaler's certificate with the name that KEDA calls
        Keda(scaler, credentials=credentials, host=host) as keda,
    ):
        wait_until(lambda: answer_of(keda) == 1, "the fewest actors")
        probe = container(documents, "scaler")["livenessProbe"]["exec"]["command"]
        own = {name: str(tmp_path / "scaler") + path for name, path in (w.split("=") for w in probe if "=" in w)}
        assert health_probe.probe(scaler, environment=own) is None
        assert health_probe.probe(scaler) is not None, "nobody is answered in the open"


class TestCommand:
    def test_says_that_no_learner_serves_there(self, served):
        with scaler_of(served.address) as (_, keda):
            wait_until(
                lambda: re.search(r"answered UNIMPLEMENTED.*correct --learner-address", details_of(keda)), "the reason"
            )
            assert answer_of(keda) is grpc.StatusCode.UNAVAILABLE

    def test_has_the_bounds_and_the_metrics_of_its_settings(self, served):
        port = free_port()
        variables = {"ROLLCAST_MAX_ACTORS": "8", "ROLLCAST_METRICS_ADDRESS": f"localhost:{port}"}
        with scaler_of(served.address, {"minActors": "9"}, **variables) as (_, keda):
            assert "minActors is 9; expected at most 8, the scaler's --max-actors" in details_of(keda)
            wait_until(lambda: ("rollcast_scaler_learner_answers",) in scrape(port), "its metrics")

    def test_follows_a_file_of_the_address_and_says_that_the_token_is_refused_until_another_takes_its_place(
        self, tmp_path
    ):
        make_certificates(tmp_path)
        file, token = tmp_path / "address", tmp_path / "token"
        learner = {
            "ROLLCAST_ADDRESS": "localhost:0",
            "ROLLCAST_ADDRESS_FILE": str(file),
            "ROLLCAST_TOKENS_FILE": str(tmp_path / "tokens"),
            "ROLLCAST_RUN_DIR": str(tmp_path / "run"),
        }
        token.write_text("wrong-token-of-16-characters")
        with scaler_of(f"file:{file}", ROLLCAST_TOKEN_FILE=str(token)) as (_, keda):
            wait_until(lambda: str(file) in details_of(keda), "the reason")
            assert answer_of(keda) is grpc.StatusCode.UNAVAILABLE
            with running("learner", "learner", **learner):
                wait_until(lambda: answer_of(keda) is grpc.StatusCode.UNAUTHENTICATED, "the refusal")
                assert "give the scaler another --token-file" in details_of(keda)
                token.unlink()
                wait_until(lambda: str(token) in details_of(keda), "the reason")
                token.write_bytes((tmp_path / "actor.token").read_bytes())
                wait_until(lambda: answer_of(keda) is grpc.StatusCode.PERMISSION_DENIED, "the refusal of its role")
                token.write_bytes((tmp_path / "viewer.token").read_bytes())
                wait_until(lambda: answer_of(keda) == 1, "the fewest actors")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--learner-address", "learner"), "'learner' cannot be used; expected 'host:port'"),
            (("--address", "nowhere"), "'nowhere' cannot be used; expected 'host:port'"),
            (("--address", "0.0.0.0:0"), "has no TLS.*--serve-tls-cert and --serve-tls-key"),
            (("--serve-tls-cert", "cert.pem"), "give --serve-tls-key"),
            (("--serve-tls-client-ca", "ca.pem"), "give --serve-tls-cert and --serve-tls-key"),
            (("--serve-tls-cert", __file__, "--serve-tls-key", __file__), "serve_tls_cert .* cannot be used"),
            (("--tls-ca", "/nonexistent"), "tls_ca '/nonexistent' cannot be used"),
            (("--token-file", "/nonexistent"), "'/nonexistent' cannot be read"),
            (
                ("--learner-address", "learner.example.org:1", "--token", "0123456789abcdef"),
                "'learner.example.org:1' without TLS",
            ),
            (("--min-actors", "3", "--max-actors", "2"), "min_actors is 3 and max_actors 2"),
            (("--up-above", "0.1", "--down-below", "0.1"), "down_below is 0.1 and up_above 0.1"),
            (("--max-actors", "0"), "max_actors|max-actors"),
        ],
    )
    def test_settings_that_cannot_be_right_are_refused(self, options, message):
        with pytest.raises(ConfigurationError, match=message):
            scaler(ScalerSettings.from_command_line("rollcast scaler", options), sys.stdout)


def details_of(keda):
    """Returns the words of the error that the metric's call ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        keda.metric()
    return caught.value.details()
