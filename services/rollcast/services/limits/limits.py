"""Every limit on what a peer may make us hold or do, declared once.

An error that a limit is the reason of carries its name in lower case, `max_rank`, as `RollcastError.limit` and, over
the wire, as `limit` in the metadata of its google.rpc.ErrorInfo. docs/operations.md has the table.

What is written in capitals is part of the contract: both sides rely on it. What an operator may change is in `Limits`.
"""

from dataclasses import dataclass, fields
from typing import Final

from rollcast.services.errors import ConfigurationError

# One message on the wire, in bytes; the default of gRPC, made explicit.
MAX_MESSAGE_BYTES: Final = 4 << 20
# The body of one message of a rollout stream, in bytes; larger rollouts travel in several.
MAX_FRAME_BYTES: Final = 1 << 20

# Dimensions of a tensor.
MAX_RANK: Final = 32

# How deep a space may be nested; its elements and leaves, over all substeps. Bounds are materialised, some 18 bytes an
# element; a 1080p RGB frame has 6.2 million elements.
MAX_SPACE_DEPTH: Final = 16
MAX_SPACE_ELEMENTS: Final = 1 << 23
MAX_SPACE_LEAVES: Final = 1024
# Agents of a substep.
MAX_AGENTS: Final = 4096

# Environments of one actor. A learner that asks for more is not believed.
MAX_ENVS_PER_ACTOR: Final = 65536
# Characters of an actor's name, and of a network's.
MAX_ACTOR_ID_LENGTH: Final = 128
MAX_NETWORK_LENGTH: Final = 512
# Hidden layers of a policy's network; their sizes are bounded by what it weighs, `MAX_POLICY_BYTES`.
MAX_HIDDEN_LAYERS: Final = 64

# Names of actors that a learner remembers; beyond that, the one that has been gone for longest is forgotten.
MAX_REMEMBERED_ACTORS: Final = 16384

# What a rollout may hold of statistics.
MAX_EVENT_STATISTICS: Final = 256
MAX_VALUES_PER_EPISODE: Final = 1024
MAX_GROUPING: Final = 8
MAX_NAME_LENGTH: Final = 128

# A policy, and one message of it, in bytes: what a subscriber takes.
MAX_POLICY_BYTES: Final = 1 << 30
MAX_CHUNK_BYTES: Final = 1 << 20

# A batch of `ReplayService.Sample`, in bytes, on either side; and the wait for one, in seconds.
MAX_BATCH_BYTES: Final = 256 << 20
MAX_TIMEOUT_S: Final = 3600.0
# Between two answers of `WatchStatus`, in seconds.
MIN_INTERVAL_S: Final = 0.1
MAX_INTERVAL_S: Final = 3600.0

# Deadlines of unary calls, in seconds, as the contract has them: of every call; of one that brings a whole policy; of
# one that waits for the running update to end. An actor that is told to stop has to end within the 10 s after which an
# engine kills it, whatever call it is in.
CALL_TIMEOUT_S: Final = 5.0
POLICY_TIMEOUT_S: Final = 30.0
UPDATE_TIMEOUT_S: Final = 60.0

# Rollouts that wait for credit in one stream's uplink, on the actor's side.
MAX_WAITING_ROLLOUTS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server gives to all its clients together, and to each.

    `rollcast.services.limits.settings` is how it is set.

    Attributes:
        max_actors: Actors that may be alive at once.
        max_connections: TCP connections that are open at once.
        max_streams_per_connection: Calls that are open on one connection; further ones wait at the client.
        max_rollout_bytes: The tensors of one rollout, in bytes.
        max_bytes_in_flight: The tensors of all rollouts that are being put together or wait to be taken, in bytes, as
            far as they have come. A rollout for which there is no room is not read further: its actor is held back.
        calls_per_second: Calls of all clients, streams that are opened included; twice as many in a burst. A unix
            socket and health checks are exempt.
        calls_per_second_per_host: Those from one address.
        max_half_open_calls: Calls whose request has not come; above that the oldest of them is ended.
        max_half_open_calls_per_host: Those from one address.
        request_s: How long a client may take to send its request after it has made a call, in seconds. Requests that
            may be large, and the first of a stream of requests, have `stalled_stream_s`.
        stalled_stream_s: How long a client may take to take one message, to send a request that may be large, or to go
            on with a rollout that it has begun, in seconds.
        join_lease_s: How long an actor that has joined may take to open its stream before its slot is another's.
    """

    max_actors: int = 64
    max_connections: int = 1024
    max_streams_per_connection: int = 100
    max_rollout_bytes: int = 512 << 20
    max_bytes_in_flight: int = 2 << 30
    calls_per_second: float = 2000.0
    calls_per_second_per_host: float = 1000.0
    max_half_open_calls: int = 512
    max_half_open_calls_per_host: int = 256
    request_s: float = 1.0
    stalled_stream_s: float = 15.0
    join_lease_s: float = 60.0

    @property
    def max_streams(self) -> int:
        """Streams that are open at once: two an actor, and eight for operators and foreign subscribers."""
        return 2 * self.max_actors + 8

    @property
    def max_calls(self) -> int:
        """Unary calls that are answered at once, probes not counted: one an actor, and eight for operators."""
        return self.max_actors + 8

    def check(self) -> None:
        """Looks whether they can be right.

        Raises:
            ConfigurationError: One is not above 0, or a rollout could be larger than all together may be.
        """
        for field in fields(self):
            if not (value := getattr(self, field.name)) > 0:
                raise ConfigurationError(f"{field.name} is {value}; expected a number above 0; raise it")
        if self.max_rollout_bytes > self.max_bytes_in_flight:
            raise ConfigurationError(
                f"max_rollout_bytes is {self.max_rollout_bytes} and max_bytes_in_flight {self.max_bytes_in_flight}; "
                "expected room for one rollout at least; lower the one or raise the other"
            )


DEFAULT_LIMITS: Final = Limits()
