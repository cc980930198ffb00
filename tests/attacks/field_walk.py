"""Sends every field of every request of every RPC with what only an attacker sends there, and measures what is left."""

import importlib
import itertools
import pkgutil
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import rollcast.keda
import rollcast.v1
from rollcast.services.client.channel import make_channel
from rollcast.services.rpcs import OTHER_RPC, RPCS
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity
from tests.attacks.fields import Sizes, spoilt
from tests.attacks.fleet import OPERATOR, TOKENS, Figures, Fleet
from tests.attacks.walker import Walker
from tests.processes import DEADLINE_S

# The bounds on what all changes of one RPC leave behind, of all processes together. A thread of the server that has
# parsed 4 MB keeps some of it for the next message, and there are more threads with each stream.
MAX_GROWTH_BYTES: Final = 256 << 20
MAX_LINES: Final = 3000
# It ends a process: after all others.
STOP: Final = "rollcast.v1.LearnerService.Stop"
# A call that has neither answered nor ended within so many seconds hangs.
_HANGS_S: Final = 30.0
# A stream that is asked for what does not come waits, as it should.
_WAITS_S: Final = 0.5
_MAX_DETAIL: Final = 2200
# Errors in words: others say that the server has met what it does not know.
_REFUSALS: Final = {
    getattr(grpc.StatusCode, name)
    for name in (
        *("INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED", "NOT_FOUND", "ALREADY_EXISTS", "ABORTED"),
        *("UNAVAILABLE", "UNIMPLEMENTED"),
    )
}


@dataclass
class Walked:
    """The outcome of the changed requests of one RPC.

    Attributes:
        server: Who was asked.
        method: The RPC's full name.
        before: The fleet before it.
        outcomes: How often each came: a status code, or "waits".
        slowest: The seconds of the request that took longest, and what was changed in it.
        faults: What should not have been.
        steps_per_s: Steps a second of the honest actors meanwhile.
        after: The fleet after it; None: a process has ended by it, as it should.
    """

    server: str
    method: str
    before: Figures
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")
    faults: list[str] = field(default_factory=list)
    steps_per_s: float = 0.0
    after: Figures | None = None


def served_methods(address: str, security: ClientSecurity = PLAIN_CLIENT) -> list[MethodDescriptor]:
    """Returns every RPC that a server says it serves."""
    for package in (rollcast.v1, rollcast.keda):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    with make_channel(address, security) as channel:
        request = reflection_pb2.ServerReflectionRequest(list_services="*")
        (response,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))
    pool = descriptor_pool.Default()
    services = [pool.FindServiceByName(service.name) for service in response.list_services_response.service]
    return [method for service in services for method in service.methods]


def growth(before: Figures, after: Figures) -> tuple[int, int]:
    """Returns by how many bytes the process that has grown most has grown, and how many lines all have logged."""
    bytes_of, lines = after.resident_bytes, after.n_lines
    return (
        max(bytes_of[name] - n_bytes for name, n_bytes in before.resident_bytes.items()),
        sum(lines.values()) - sum(before.n_lines.values()),
    )


def walk(
    fleet: Fleet, sizes: Sizes, *, share: float = 1.0, seed: int = 0, only: str = "", asks_all: bool = True
) -> Iterator[Walked]:
    """Walks over every RPC of every server.

    Args:
        sizes: How large is too large.
        share: The part of the changes that are sent, drawn by the seed.
        only: A part of the names of RPCs, with their server's before; empty: all.
        asks_all: After each RPC, every member is asked for what people and machines ask for. False: only the server,
            but after its last RPC.
    """
    drawn = random.Random(seed)
    todo = [(server, method) for server in fleet.servers for method in served_methods(fleet.address(server), OPERATOR)]
    todo.sort(key=_ends)
    before = fleet.figures()
    next_servers = [server for server, _ in todo[1:]] + [""]
    for (server, method), next_server in zip(todo, next_servers, strict=True):
        if only in f"{server}: {method.full_name}":
            walked = _walk_method(fleet, server, method, sizes, lambda: drawn.random() < share, before)
            if not _ends((server, method)):
                walked.after = fleet.figures(of="" if asks_all or next_server != server else server)
            yield walked
            before = walked.after or before


def _ends(asked: tuple[str, MethodDescriptor]) -> bool:
    """Returns whether a call ends the process that is asked: a relay refuses."""
    server, method = asked
    return server != "relay" and method.full_name == STOP


def _walk_method(
    fleet: Fleet, server: str, method: MethodDescriptor, sizes: Sizes, is_drawn: Callable[[], bool], before: Figures
) -> Walked:
    ends = _ends((server, method))
    walked = Walked(server, method.full_name, before=before)
    began, steps = time.monotonic(), 0 if ends else fleet.env_steps()
    address = fleet.address(server)
    walker = Walker(address, OPERATOR, address_of_learner=fleet.address("replay" if server == "replay" else "learner"))
    try:
        with make_channel(address, _least(method)) as channel:
            for what, requests in _changed(walker, method, sizes, is_drawn):
                _send(channel, method, what, requests, walked)
                if ends:
                    break
        if not ends and server != "scaler":
            _refused_by_role(address, method, sizes, walked)
    finally:
        walker.close()
    if not ends:
        walked.steps_per_s = (fleet.env_steps() - steps) / (time.monotonic() - began)
    elif (code := fleet.members[server].process.wait(DEADLINE_S)) != 0:
        walked.faults.append(f"{server} ended with {code}; expected 0")
    return walked


def _least(method: MethodDescriptor) -> ClientSecurity:
    """The security of the least that may make a call."""
    role = RPCS.get(f"/{method.containing_service.full_name}/{method.name}", OTHER_RPC).role
    return OPERATOR if role is None else ClientSecurity(token=TOKENS[role.value])


def _changed(
    walker: Walker, method: MethodDescriptor, sizes: Sizes, is_drawn: Callable[[], bool]
) -> Iterator[tuple[str, list[bytes]]]:
    """Yields changed requests, each with what comes before it on its stream."""
    via_relay = "RelayService" in method.full_name

    def fresh(make: Callable[[], Message]) -> Message:
        if method.client_streaming and method.containing_service.name in ("RolloutService", "RelayService"):
            walker.join(via_relay=via_relay)
        return make()

    for make in walker.bases(method):
        honest: tuple[str, Message] = ("honest", fresh(make))
        changed = spoilt(lambda make=make: fresh(make), walker, sizes, is_drawn)  # type: ignore[misc]  # mypy cannot infer it with a default
        for what, message in itertools.chain([honest], changed):
            before = walker.before(method, message)
            yield what, [one.SerializeToString() for one in (*before, message)]
            if what == "honest":
                # a field that the contract does not have: protobuf keeps it
                unknown = b"\xfa\x7f" + _varint(sizes.n_bytes) + bytes(sizes.n_bytes)
                yield "with an unknown field", [*(one.SerializeToString() for one in before), unknown]


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes((*encoded, number))


def _send(channel: grpc.Channel, method: MethodDescriptor, what: str, requests: list[bytes], walked: Walked) -> None:
    path = f"/{method.containing_service.full_name}/{method.name}"
    may_wait = method.server_streaming and not method.client_streaming
    began = time.monotonic()
    call = channel.stream_stream(path)(iter(requests), timeout=_WAITS_S if may_wait else _HANGS_S)
    try:
        if may_wait:
            next(call, None)
            call.cancel()
        else:
            for _ in call:
                pass
        walked.outcomes["OK"] += 1
    except grpc.RpcError as error:
        code = error.code()
        waits = may_wait and code is grpc.StatusCode.DEADLINE_EXCEEDED
        walked.outcomes["waits" if waits else code.name] += 1
        if not waits and code not in _REFUSALS:
            walked.faults.append(f"{what}: {code.name}: {error.details()[:300]}")
        if len(error.details() or "") > _MAX_DETAIL:
            walked.faults.append(f"{what}: an error of {len(error.details())} characters")
    walked.slowest = max(walked.slowest, (time.monotonic() - began, what))


def _refused_by_role(address: str, method: MethodDescriptor, sizes: Sizes, walked: Walked) -> None:
    """Calls with the largest request as each role that may not, and as nobody."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    needed = RPCS[path].role
    if needed is None:
        return
    nobody: list[tuple[str, ClientSecurity]] = [("nobody", PLAIN_CLIENT)]
    for role, security in nobody + [(role, ClientSecurity(token=token)) for role, token in TOKENS.items()]:
        if role in (needed.value, "operator"):
            continue
        with make_channel(address, security) as channel:
            call = channel.stream_stream(path)(iter([bytes(sizes.n_bytes)]), timeout=_HANGS_S)
            try:
                next(call, None)
                walked.faults.append(f"{role} may call it")
            except grpc.RpcError as error:
                walked.outcomes[error.code().name] += 1
                if error.code() not in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
                    walked.faults.append(f"as {role}: {error.code().name}: {error.details()[:300]}")
