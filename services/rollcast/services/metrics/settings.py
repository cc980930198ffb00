"""The setting for the address of a process's metrics."""

from rollcast.services.settings.addresses import WebAddress
from rollcast.services.settings.resume_rules import FREE
from rollcast.services.settings.setting import setting
from rollcast.services.settings.settings import ProcessSettings


class MetricsSettings(ProcessSettings):
    """The settings of a process that serves metrics."""

    metrics_address: WebAddress | None = setting(
        None,
        "Serve metrics for Prometheus over HTTP at this address, host:port (port 0: any free port), under "
        "/metrics. They are neither encrypted nor protected by a token. Default: no metrics.",
        FREE,
    )
