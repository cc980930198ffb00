"""Every call of ours has a deadline, or is a stream that keepalive looks after; none is tried again by itself."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.client.health_probe import probe
from rollcast.services.errors import RollcastError
from rollcast.services.limits.limits import CALL_TIMEOUT_S
from rollcast.services.rpcs import RPCS
from tests.client_calls import CALLS, client_of
from tests.documents import PAGES

# The part of a deadline that a slow machine may have used before the call arrives.
SLACK_S = 10.0
ROOT = Path(__file__).parents[2]
DOCS, PROTOS = PAGES["protocol.md"], ROOT / "proto/rollcast/v1"
# Streams that live as long as whoever opened them. A batch of Sample has a deadline of its own in the request.
ENDLESS = {"StreamRollouts", "StreamBundles", "SubscribePolicy", "WatchStatus", "WatchHistory", "Sample"}


DEADLINES = {
    method.removeprefix("/rollcast.v1."): rpc.deadline_s
    for method, rpc in RPCS.items()
    # Actors serve these two. rollcast itself never calls EnvironmentService: environments in any language do.
    if method.startswith("/rollcast.v1.") and "EnvironmentService" not in method and "InferenceService" not in method
}


class Unavailable(grpc.GenericRpcHandler):
    """Answers every call with UNAVAILABLE, and notes its method and deadline."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float | None]] = []

    def service(self, handler_call_details):
        def refuse(_requests, context):
            self.asked.append((handler_call_details.method, context.time_remaining()))
            context.abort(grpc.StatusCode.UNAVAILABLE, "not there")

        return grpc.stream_stream_rpc_method_handler(refuse)


@pytest.fixture
def nobody() -> Iterator[tuple[Unavailable, str]]:
    handler = Unavailable()
    with ThreadPoolExecutor(4) as executor:
        server = grpc.server(executor, handlers=(handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield handler, f"127.0.0.1:{port}"
        server.stop(0).wait(10.0)


def test_every_rpc_is_tested_and_documented():
    assert set(DEADLINES) == set(CALLS)
    assert {name.partition("/")[2] for name, deadline_s in DEADLINES.items() if deadline_s is None} == ENDLESS
    table = DOCS.read_text().partition("## Calls and deadlines")[2]
    documented = {
        name: float(seconds[1]) if (seconds := re.match(r" (\d+) s", deadline)) else None
        for names, deadline in re.findall(r"^\|([^|]*)\|([^|]*)\|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert documented == {name.partition("/")[2]: deadline_s for name, deadline_s in DEADLINES.items()}


def _without_comment_marks(proto):
    return re.sub(r"^\s*// ?", "", proto, flags=re.MULTILINE)


@pytest.mark.parametrize("service", ["rollout", "relay", "policy", "learner", "replay"])
def test_proto_comments_have_the_same_deadlines(service):
    source = (PROTOS / f"{service}.proto").read_text()
    above, body = re.search(r"(.*?)^service \w+ \{(.*?)^\}", source, re.MULTILINE | re.DOTALL).groups()
    head, *calls = re.split(r"^  rpc ", _without_comment_marks(body), flags=re.MULTILINE)
    comments = [head, *(call.partition(";")[2] for call in calls[:-1])]
    deadlines = {name.partition("/")[2]: seconds for name, seconds in DEADLINES.items()}
    common = re.search(r"use\sa\sdeadline\sof\s(\d+)\ss", _without_comment_marks(above), re.IGNORECASE)
    for comment, call in zip(comments, calls, strict=True):
        name = re.match(r"\w+", call)[0]
        said = re.search(r"use\sa\sdeadline\sof\s(\d+)\ss", comment, re.IGNORECASE) or common
        assert (float(said[1]) if said else None) == deadlines.get(name) or name in ENDLESS, name


@pytest.mark.parametrize("name", CALLS)
def test_each_call_has_its_deadline_and_one_attempt(nobody, name):
    handler, address = nobody
    deadline_s = DEADLINES[name]
    with client_of(name, address) as client, pytest.raises(RollcastError):
        CALLS[name](client)
    ((method, remaining_s),) = handler.asked
    assert method == f"/rollcast.v1.{name}"
    if deadline_s is None:
        # gRPC has a number for no deadline
        assert remaining_s is None or remaining_s > 1e6
    else:
        # the server's clock begins where the call arrives, and gRPC rounds up
        assert deadline_s - SLACK_S < remaining_s <= deadline_s + 1.0


# A container's probe gives a loaded machine longer than a client that can ask again.
@pytest.mark.parametrize(
    ("ask", "deadline_s"),
    [(lambda address: probe(address), 10.0), (lambda address: health_of(address), CALL_TIMEOUT_S)],
)
def test_health_checks_have_a_deadline_and_one_attempt(nobody, ask, deadline_s):
    handler, address = nobody
    ask(address)
    ((method, remaining_s),) = handler.asked
    assert method == "/grpc.health.v1.Health/Check"
    assert 0.0 < remaining_s <= deadline_s + 1.0


def health_of(address):
    with LearnerClient(address) as learner, pytest.raises(RollcastError):
        learner.is_serving()
