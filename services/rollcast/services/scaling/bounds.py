"""Reads the bounds on the number of actors from the metadata of a ScaledObject's trigger."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from rollcast.services.errors import InvalidInputError
from rollcast.services.limits.texts import quoted
from rollcast.services.settings.suggestions import did_you_mean

_MIN, _MAX = "minActors", "maxActors"
# KEDA sends all metadata of a trigger, including its own keys for the connection to the scaler.
_KEDAS_OWN: Final = frozenset(
    {"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsCertFile", "tlsClientCert", "tlsClientKey"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorBounds:
    """The smallest and the largest number of actors of one ScaledObject; None: no bound."""

    fewest: int | None = None
    most: int | None = None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Self:
        """Reads a trigger's metadata.

        Raises:
            InvalidInputError: A name is unknown, a value is not a whole number of at least 1, or the lower bound
                exceeds the upper bound.
        """
        for name in metadata:
            if name not in _KEDAS_OWN and name not in (_MIN, _MAX):
                guess = did_you_mean(name, (_MIN, _MAX, *_KEDAS_OWN))
                raise InvalidInputError(
                    f"the trigger's metadata have {name!r}; expected {_MIN}, {_MAX} or those of KEDA's external trigger"
                    f"; {guess or 'omit it'}"
                )
        fewest, most = _number(metadata, _MIN), _number(metadata, _MAX)
        if fewest is not None and most is not None and fewest > most:
            raise InvalidInputError(
                f"the trigger's {_MIN} is {fewest} and its {_MAX} {most}; expected {_MIN} to be at most {_MAX}; "
                "correct one of them"
            )
        return cls(fewest=fewest, most=most)

    def check_within(self, own: Self) -> None:
        """Checks that these bounds and the scaler's own bounds overlap.

        Args:
            own: The scaler's bounds.

        Raises:
            InvalidInputError: No number of actors is within both bounds.
        """
        if self.fewest is not None and own.most is not None and self.fewest > own.most:
            raise InvalidInputError(
                f"the trigger's {_MIN} is {self.fewest}; expected at most {own.most}, the scaler's --max-actors; lower "
                "the first, or raise the second"
            )
        if self.most is not None and own.fewest is not None and self.most < own.fewest:
            raise InvalidInputError(
                f"the trigger's {_MAX} is {self.most}; expected at least {own.fewest}, the scaler's --min-actors; "
                "raise the first, or lower the second"
            )

    def clamp(self, n_actors: int) -> int:
        """Returns the nearest number within the bounds. 0 stays 0, because training has ended."""
        if n_actors == 0:
            return 0
        if self.most is not None:
            n_actors = min(n_actors, self.most)
        return n_actors if self.fewest is None else max(n_actors, self.fewest)


NO_BOUNDS: Final = ActorBounds()


def _number(metadata: Mapping[str, str], name: str) -> int | None:
    text = metadata.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and int(text) >= 1):
        raise InvalidInputError(
            f"the trigger's {name} is {quoted(text)}; expected a whole number from 1 to 999999, in quotes; correct it"
        )
    return int(text)
