"""The settings of `rollcast scaler`. Imports neither torch nor grpc."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from rollcast.services.limits.settings import TimeoutSeconds
from rollcast.services.metrics.settings import MetricsSettings
from rollcast.services.security.settings import RelayingSecuritySettings
from rollcast.services.settings.addresses import ListeningAddress, ServerAddress
from rollcast.services.settings.numbers import AtLeastOne
from rollcast.services.settings.settings import LogLevel
from rollcast.tools.scaling.controller import ScalingRules

_Share = Annotated[float, Field(gt=0, lt=1)]


class ScalerSettings(RelayingSecuritySettings, MetricsSettings):
    """Tells KEDA how many actors a learner needs, from the waits of the learner and its actors."""

    first_options: ClassVar = (
        *("learner_address", "address", "min_actors", "max_actors", "up_above", "down_below", "token_file", "tls_ca"),
        *("insecure", "metrics_address", "log_level"),
    )

    learner_address: ServerAddress = Field(
        "localhost:50051",
        description="The learner's address: host:port, unix:/path, or file:/path of its --address-file.",
    )
    address: ListeningAddress = Field(
        "localhost:50052", description="The address to listen on: host:port (port 0: any free port) or unix:/path."
    )
    min_actors: AtLeastOne = Field(
        1, description="Fewest actors during training. After training, the scaler requests 0."
    )
    max_actors: AtLeastOne = Field(64, description="Most actors. The learner has its own --max-actors.")
    up_above: _Share = Field(
        0.1, description="Add actors if the trainer waits for them for more than this share of its time."
    )
    down_below: _Share = Field(
        0.02,
        description="Remove actors if the trainer waits for less than this share of its time, and actors wait for "
        "the trainer. It must be below --up-above.",
    )
    max_growth: Annotated[float, Field(gt=1, le=10)] = Field(
        2.0, description="Largest factor by which one step raises the number of actors."
    )
    window_s: TimeoutSeconds = Field(
        15.0,
        description="Seconds of waiting times that a decision uses. After a learner's start, the scaler waits this "
        "long for actors to reconnect before it decides.",
    )
    cooldown_s: TimeoutSeconds = Field(60.0, description="Seconds between a change and the next step down.")
    retry_s: TimeoutSeconds = Field(
        1800.0,
        description="Seconds until the scaler retries a number of actors that was too small or brought no gain.",
    )
    hold_s: TimeoutSeconds = Field(
        60.0, description="Seconds for which the wanted number stays the same if the learner does not answer."
    )
    interval_s: TimeoutSeconds = Field(1.0, description="Seconds between two requests to the learner.")
    timeout_s: TimeoutSeconds = Field(5.0, description="Seconds to wait for the learner's answer.")
    log_level: LogLevel = Field("INFO", description="Least severe messages to log, on stderr.")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        """Refuses bounds that cross; pydantic turns the ValueError into its own error."""
        if self.min_actors > self.max_actors:
            raise ValueError(
                f"min_actors is {self.min_actors} and max_actors {self.max_actors}; expected min_actors to be at most "
                "max_actors; correct one of them"
            )
        if self.down_below >= self.up_above:
            raise ValueError(
                f"down_below is {self.down_below} and up_above {self.up_above}; expected down_below to be below "
                "up_above, so that there is a band in which nothing changes; correct one of them"
            )
        return self

    def rules(self) -> ScalingRules:
        """Returns the rules of the controller."""
        return ScalingRules(
            min_actors=self.min_actors,
            max_actors=self.max_actors,
            up_above=self.up_above,
            down_below=self.down_below,
            max_growth=self.max_growth,
            cooldown_s=self.cooldown_s,
            retry_s=self.retry_s,
        )
