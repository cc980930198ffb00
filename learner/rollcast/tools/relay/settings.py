"""The settings of `rollcast relay`. Imports neither torch nor grpc."""

import os
import re
import socket
from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, Field

from rollcast.services.address import split_addresses
from rollcast.services.limits.limits import MAX_ACTOR_ID_LENGTH
from rollcast.services.limits.settings import ServerLimitSettings, TimeoutSeconds
from rollcast.services.metrics.settings import MetricsSettings
from rollcast.services.policies.policies import PolicyEncodingName
from rollcast.services.security.settings import RelayingSecuritySettings
from rollcast.services.server.settings import AnnouncementSettings
from rollcast.services.settings.addresses import ListeningAddress, ServerAddresses
from rollcast.services.settings.settings import LogLevel

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def _checked_name(name: str) -> str:
    """Expands a name and checks it; pydantic turns the ValueError into its own error."""
    expanded = name.replace("{host}", socket.gethostname()).replace("{pid}", str(os.getpid()))
    if len(expanded) > MAX_ACTOR_ID_LENGTH or not _NAME.fullmatch(expanded):
        raise ValueError(
            f"relay_id is {expanded[:160]!r}; expected 1 to {MAX_ACTOR_ID_LENGTH} characters of [A-Za-z0-9._-]; choose "
            "another name"
        )
    return expanded


class RelaySettings(RelayingSecuritySettings, AnnouncementSettings, ServerLimitSettings, MetricsSettings):
    """Connects actors to a learner: fetches each policy once, and forwards rollouts in bundles."""

    first_options: ClassVar = (
        *("learner_address", "address", "relay_id", "max_actors", "wait_for_next_run", "connect_timeout_s"),
        *("reconnect_timeout_s", "policy_encoding", "bundle_wait_s", "tls_ca", "token_file", "serve_tls_cert"),
        *("serve_tls_key", "tokens_file", "insecure", "metrics_address", "log_level"),
    )

    learner_address: ServerAddresses = Field(
        "localhost:50051",
        description="The learner's address, or another relay's: host:port, unix:/path, or file:/path of its "
        "--address-file. Separate several addresses with commas: the relay tries them in this order.",
    )
    address: ListeningAddress = Field(
        "localhost:50053", description="The address to listen on: host:port (port 0: any free port) or unix:/path."
    )
    relay_id: Annotated[str, AfterValidator(_checked_name)] = Field(
        "{host}-{pid}",
        description="This relay's name, which the learner shows beside its actors; {host} and {pid} are replaced by "
        "the host's name and the process id.",
    )
    connect_timeout_s: TimeoutSeconds = Field(60.0, description="Seconds to wait for the learner at the start.")
    reconnect_timeout_s: TimeoutSeconds = Field(600.0, description="Seconds to wait for a lost learner.")
    wait_for_next_run: bool = Field(
        False,
        description="After training, wait for the learner's next run and relay for it, instead of ending with exit "
        "code 0.",
    )
    policy_encoding: PolicyEncodingName = Field(
        "full",
        description="Encoding of policies from the learner; the weights are the same, and this relay's actors choose "
        "their own encoding. full: all bytes; bfloat16: half the bytes; delta: the compressed difference to the "
        "previous policy, for low-bandwidth links. bfloat16 and delta save most with a learner that has "
        "--policy-rounding bfloat16.",
    )
    bundle_wait_s: Annotated[float, Field(ge=0, le=1)] = Field(
        0.02,
        description="Longest time, in seconds, that a rollout waits for other rollouts that share its message.",
    )
    tokens_file: Path | None = Field(
        None,
        description="Require that actors send a token from this file. Each line is ROLE:TOKEN, with the role actor, "
        "viewer or operator. The file is read again when it changes. Default: no token required.",
    )
    log_level: LogLevel = Field("INFO", description="Least severe messages to log, on stderr.")

    @property
    def required_tokens(self) -> Path | None:
        """See `RelayingSecuritySettings.required_tokens`."""
        return self.tokens_file

    def learner_addresses(self) -> tuple[str, ...]:
        """Returns the learner's addresses, in the order in which they are tried.

        Raises:
            ConfigurationError: No address is given, one is given twice, or one is malformed.
        """
        return split_addresses(self.learner_address)
