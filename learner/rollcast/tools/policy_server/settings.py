"""The settings of `rollcast serve-policy`. Imports neither torch nor grpc."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from rollcast.services.limits.settings import ServerLimitSettings, TimeoutSeconds
from rollcast.services.metrics.settings import MetricsSettings
from rollcast.services.policies.policies import AUTO_NETWORK
from rollcast.services.security.settings import ServerSecuritySettings
from rollcast.services.server.settings import AnnouncementSettings
from rollcast.services.settings.addresses import ListeningAddress
from rollcast.services.settings.numbers import Seed
from rollcast.services.settings.settings import LogLevel


class ServePolicySettings(ServerSecuritySettings, AnnouncementSettings, ServerLimitSettings, MetricsSettings):
    """Serves the policy of a run: answers Act, with one forward pass for all calls that wait."""

    first_options: ClassVar = (
        *("run", "address", "saved_policy", "follow", "network", "seed", "max_actors", "tls_cert", "tls_key"),
        *("tokens_file", "insecure", "metrics_address", "log_level"),
    )

    run: CliPositionalArg[Path] = Field(description="The run's folder, or one of its .safetensors files.")
    address: ListeningAddress = Field(
        "localhost:50051", description="The address to listen on: host:port (port 0: any free port) or unix:/path."
    )
    saved_policy: Literal["best", "last"] = Field(
        "best", description="The policy of the run to serve: best (highest mean return) or last (newest)."
    )
    follow: bool = Field(False, description="Serve each newer policy that the run saves, while it trains.")
    follow_interval_s: TimeoutSeconds = Field(1.0, description="With --follow: seconds between two checks of the file.")
    network: str = Field(
        AUTO_NETWORK,
        description="Your own network of the policy, as package.module:factory. rollcast does not import a network "
        "that only the file names.",
    )
    seed: Seed = Field(0, description="The seed of sampled actions.")
    log_level: LogLevel = Field("INFO", description="Least severe messages to log, on stderr.")
