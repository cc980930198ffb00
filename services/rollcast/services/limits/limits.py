"""Declares every limit on the memory and the work that a peer may cause.

An error caused by a limit contains the limit's name in lower case, such as `max_rank`, as `RollcastError.limit`. On the
wire, the metadata of google.rpc.ErrorInfo contain this name as `limit`. docs/reference/limits.md lists all limits.

Constants in capitals are part of the protocol: both sides rely on them. Operators can change the limits in `Limits`.
"""

from dataclasses import dataclass, fields
from typing import Final

from rollcast.services.errors import ConfigurationError

# One message on the wire, in bytes; gRPC's default, made explicit.
MAX_MESSAGE_BYTES: Final = 4 << 20
# The body of one message of a rollout stream, in bytes; larger rollouts take several messages.
MAX_FRAME_BYTES: Final = 1 << 20

# Dimensions of a tensor.
MAX_RANK: Final = 32

# Nesting depth of a space; elements and leaves, over all substeps. Bounds are materialised, about 18 bytes for each
# element; a 1080p RGB frame has 6.2 million elements.
MAX_SPACE_DEPTH: Final = 16
MAX_SPACE_ELEMENTS: Final = 1 << 23
MAX_SPACE_LEAVES: Final = 1024
# Characters of a key in a space.
MAX_KEY_LENGTH: Final = 256
# Agents of a substep.
MAX_AGENTS: Final = 4096

# Environments of one actor. An actor refuses a learner that asks for more.
MAX_ENVS_PER_ACTOR: Final = 65536
# Characters of an actor's name, and of a network's name.
MAX_ACTOR_ID_LENGTH: Final = 128
MAX_NETWORK_LENGTH: Final = 512
# Hidden layers of a policy's network. `MAX_POLICY_BYTES` bounds their sizes.
MAX_HIDDEN_LAYERS: Final = 64

# The largest recurrent size of a policy; its weights alone then have 512 MiB.
MAX_RECURRENT_SIZE: Final = 4096
# Frames that a policy sees at once. Each row of an update has this many frames.
MAX_FRAME_STACK: Final = 64

# Relays between an actor and its learner; relays of one learner at once; parts in one message of a relay.
MAX_RELAYS_IN_A_ROW: Final = 4
MAX_RELAYS: Final = 64
MAX_BUNDLE_PARTS: Final = 4096
# Streams that an actor behind a relay may open a second, and twice as many at once.
MAX_OPENINGS_PER_S: Final = 10

# Names of actors that a learner remembers; beyond that, it forgets the actor that has been gone for longest.
MAX_REMEMBERED_ACTORS: Final = 16384

# Evaluators that may be connected at once, and episodes that an evaluator plays with a policy.
MAX_EVALUATORS: Final = 4
MAX_EVALUATION_EPISODES: Final = 10_000
# Opponents of an evaluated policy: the kept versions, the first version, and random actions.
MAX_EVALUATION_OPPONENTS: Final = 32

# Characters that are kept of the message of a failure or refusal, and of a traceback. Longer texts are cut.
MAX_REASON_LENGTH: Final = 2000
MAX_TRACEBACK_LENGTH: Final = 8000

# Event statistics in a rollout, values of events in an episode, attributes that group a value, characters of a name.
MAX_EVENT_STATISTICS: Final = 256
MAX_VALUES_PER_EPISODE: Final = 1024
MAX_GROUPING: Final = 8
MAX_NAME_LENGTH: Final = 128
# Names of the values that the environments of all clients of an actor report at the end of episodes: half of a
# rollout's statistics. The other half remains for the policy's events.
MAX_EPISODE_VALUE_NAMES: Final = 128

# A policy and one message of it, in bytes, as a subscriber accepts them.
MAX_POLICY_BYTES: Final = 1 << 30
MAX_CHUNK_BYTES: Final = 1 << 20
# A policy that is sent with an acknowledgement, in bytes. A larger policy would delay the acknowledgement.
MAX_CREDITED_POLICY_BYTES: Final = 64 << 10
# The largest ratio of a policy's size to its compressed bytes, if it arrives without a base. For weights it is about 3.
MAX_POLICY_EXPANSION: Final = 16
# Versions that a learner keeps as bases of later deltas, in number and bytes.
MAX_KEPT_POLICIES: Final = 16
MAX_KEPT_POLICY_BYTES: Final = 256 << 20

# A batch of `ReplayService.Sample`, in bytes, on either side; the longest wait for one, in seconds.
MAX_BATCH_BYTES: Final = 256 << 20
MAX_TIMEOUT_S: Final = 3600.0
# Time between two answers of `WatchStatus` and `WatchHistory`, in seconds.
MIN_INTERVAL_S: Final = 0.1
MAX_INTERVAL_S: Final = 3600.0

# The interval between an actor's activity reports that a learner requests, in seconds: for the first actors, and for
# each actor of many or behind a relay. Over a stream's duration, the learner accepts MAX_ACTIVITY_RATE times this rate,
# and ACTIVITIES_AHEAD reports more.
ACTIVITY_INTERVAL_S: Final = 1.0
LONGEST_ACTIVITY_INTERVAL_S: Final = 2.0
MAX_ACTIVITY_RATE: Final = 2
ACTIVITIES_AHEAD: Final = 10

# Deadlines of unary calls, in seconds, as in the contract: of an ordinary call; of a call that returns a whole policy;
# of a call that waits for the running update. A container engine kills an actor 10 s after the request to stop, so the
# actor must end earlier, even during a call.
CALL_TIMEOUT_S: Final = 5.0
POLICY_TIMEOUT_S: Final = 30.0
UPDATE_TIMEOUT_S: Final = 60.0

# The longest wait that a caller may request, in seconds. poll(2) counts milliseconds in 31 bits, which are 24 days.
LONGEST_WAIT_S: Final = 2_000_000.0

# Rollouts that wait for credit in one stream's uplink, on the actor's side.
MAX_WAITING_ROLLOUTS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The configurable limits of a server, for all clients together and for each client.

    `rollcast.services.limits.settings` has the settings.

    Attributes:
        max_actors: The largest number of live actors.
        max_connections: The largest number of open TCP connections.
        max_streams_per_connection: The largest number of open calls on one connection; further calls wait at the
            client.
        max_rollout_bytes: The largest size of one rollout's tensors, in bytes.
        max_bytes_in_flight: The largest size of the received tensors of all incomplete or waiting rollouts, in bytes.
            At the limit, the server stops reading and the actor waits.
        calls_per_second: Calls per second of all clients together, including opened streams; twice this number in a
            burst. Unix sockets and health checks are exempt.
        calls_per_second_per_host: Calls per second from one address.
        max_half_open_calls: The largest number of calls whose request has not arrived. Above it, the server ends the
            oldest of these calls.
        max_half_open_calls_per_host: The same limit for calls from one address.
        request_s: Seconds that a client may take to send the request of its call. For requests that may be large, and
            the first request of a stream, `stalled_stream_s` applies.
        stalled_stream_s: Seconds that a client may take to accept a message, to send a large request, or to continue a
            rollout.
        join_lease_s: Seconds that a joined actor may take to open its stream. Afterwards, another actor may get its
            slot.
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
    request_s: float = 5.0
    stalled_stream_s: float = 15.0
    join_lease_s: float = 60.0

    @property
    def max_streams(self) -> int:
        """The largest number of open streams: two for each actor, and eight for operators and other subscribers."""
        return 2 * self.max_actors + 8

    @property
    def max_calls(self) -> int:
        """The largest number of unary calls in progress, without probes: one for each actor, eight for operators."""
        return self.max_actors + 8

    def check(self) -> None:
        """Checks that the limits are valid.

        Raises:
            ConfigurationError: A limit is not above 0, or the limit of one rollout is above the limit of all rollouts.
        """
        for field in fields(self):
            if not (value := getattr(self, field.name)) > 0:
                raise ConfigurationError(f"{field.name} is {value}; expected a number above 0; raise it")
        if self.max_rollout_bytes > self.max_bytes_in_flight:
            raise ConfigurationError(
                f"max_rollout_bytes is {self.max_rollout_bytes} and max_bytes_in_flight {self.max_bytes_in_flight}; "
                "expected room for at least one rollout; lower the first or raise the second"
            )


DEFAULT_LIMITS: Final = Limits()
