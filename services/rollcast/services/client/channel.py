"""Makes gRPC channels to a learner, with the options that long streams need."""

from typing import Final

import grpc

from rollcast.services.address import parse_address
from rollcast.services.limits.limits import MAX_MESSAGE_BYTES
from rollcast.services.rendezvous import read_rendezvous
from rollcast.services.security.bearer import BearerInterceptor
from rollcast.services.security.credentials import channel_credentials
from rollcast.services.security.security import PLAIN_CLIENT, ClientSecurity

# A dead peer is noticed within KEEPALIVE_TIME + KEEPALIVE_TIMEOUT. Most of that is the timeout: a live peer answers
# pings in gRPC's own threads, but may have to wait for a core. The server must allow pings this often, or connections
# die with too_many_pings: `listening.MIN_PING_INTERVAL_MS` is lower.
KEEPALIVE_TIME_MS: Final = 2_000
KEEPALIVE_TIMEOUT_MS: Final = 7_000

# The options that both ends of a connection need.
COMMON_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # Otherwise gRPC waits for a minute for the answer to a ping, whatever the line above sets.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_OPTIONS: Final = (
    *COMMON_OPTIONS,
    # A restarted learner serves again within seconds; gRPC would wait for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    # The time limit of one attempt to connect.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Two clients in one process share no connection: each has its own flow-control window.
    ("grpc.use_local_subchannel_pool", 1),
    # A proxy is for the outside world, not for a learner; compose networks often set http_proxy.
    ("grpc.enable_http_proxy", 0),
)


def make_channel(address: str, security: ClientSecurity = PLAIN_CLIENT) -> grpc.Channel:
    """Makes a channel, which connects at its first use. The caller closes it.

    Args:
        address: "host:port", "unix:/path", or "file:/path" of a file that contains the address. The file is read at
            once.
        security: Certificates and token; their files are read at once. A unix socket needs neither.

    Raises:
        LearnerUnreachableError: The address file does not exist.
        ConfigurationError: The address is malformed, a file cannot be used, or a token would be sent without
            encryption.
    """
    options: list[tuple[str, int | str]] = list(_OPTIONS)
    parsed = parse_address(address)
    if parsed.rendezvous is not None:
        found = read_rendezvous(parsed.rendezvous)
        parsed = parse_address(found.address)
        if found.server_name:
            # its machine was not known when the certificate was made
            options.append(("grpc.ssl_target_name_override", found.server_name))
    if parsed.path is not None:
        # gRPC would send the percent-encoded path as :authority, which other languages' servers refuse.
        options.append(("grpc.default_authority", "localhost"))
        return grpc.insecure_channel(parsed.text, options=options)
    token = security.token_for(parsed.text)
    credentials = channel_credentials(security)
    if credentials is None:
        channel = grpc.insecure_channel(parsed.text, options=options)
    else:
        channel = grpc.secure_channel(parsed.text, credentials, options=options)
    return channel if token is None else grpc.intercept_channel(channel, BearerInterceptor(token))
