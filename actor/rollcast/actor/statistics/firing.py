"""Firing events: the mix-in of environments, wrappers, policies and networks that do."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from rollcast.actor.statistics.declarations import events_of
from rollcast.actor.statistics.episode_aggregator import EpisodeStatsAggregator, firing_function
from rollcast.services.errors import StatisticsError

_Events = TypeVar("_Events")
_ATTRIBUTE = "_rollcast_event_source"


class FiresEvents:
    """A mix-in for whatever fires events.

        class Warehouse(FiresEvents, gymnasium.Env):
            def __init__(self):
                self._delivery = self.events(DeliveryEvents)

            def step(self, action):
                self._delivery.parcel_delivered(zone="north", minutes=12.5)

    Invariant: events reach the aggregator that `fire_at` was last given, and nothing until then; a copy, or what comes
    out of a pickle, starts without one. It needs no constructor.
    """

    def events(self, interface: type[_Events]) -> _Events:
        """What to fire at; may be kept.

        Args:
            interface: A class whose methods are events.

        Returns:
            An object with the interface's events, the same for every call.

        Raises:
            StatisticsError: A declaration cannot be, or two events have one name.
        """
        return cast(_Events, _source_of(self).firer(interface))

    def fire_at(self, aggregator: EpisodeStatsAggregator | None) -> None:
        """Says where events go; called by whoever plays.

        Args:
            aggregator: Where; None: nowhere.

        Raises:
            StatisticsError: Two events have one name.
        """
        _source_of(self).attach(aggregator)


def listen_to(sources: Sequence[FiresEvents]) -> EpisodeStatsAggregator | None:
    """Leads the events of several sources to one aggregator.

    Args:
        sources: Whoever fires.

    Returns:
        The aggregator; None where there is no source.

    Raises:
        StatisticsError: Two of their events have one name.
    """
    if not sources:
        return None
    aggregator = EpisodeStatsAggregator()
    for source in sources:
        source.fire_at(aggregator)
    return aggregator


class EventFirer:
    """The events of an interface, as functions. Whoever has one need not know where they lead."""

    def __init__(self, interface: type) -> None:
        self._interface = interface
        self.lead_to(None)

    def lead_to(self, aggregator: EpisodeStatsAggregator | None) -> None:
        """Says where events go; None: nowhere."""
        functions = _silent(self._interface) if aggregator is None else aggregator.functions_of(self._interface)
        for name, function in functions.items():
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        raise StatisticsError(
            f"{self._interface.__name__} has no event {name!r}; expected one of "
            f"{', '.join(events_of(self._interface))}; correct the name, or decorate the method"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return EventFirer, (self._interface,)


class _EventSource:
    """What one object fires at."""

    def __init__(self) -> None:
        self.firers: dict[type, EventFirer] = {}
        self._aggregator: EpisodeStatsAggregator | None = None

    def firer(self, interface: type) -> EventFirer:
        firer = self.firers.get(interface)
        if firer is None:
            firer = EventFirer(interface)
            if self._aggregator is not None:
                firer.lead_to(self._aggregator)
            self.firers[interface] = firer
        return firer

    def attach(self, aggregator: EpisodeStatsAggregator | None) -> None:
        self._aggregator = aggregator
        for firer in self.firers.values():
            firer.lead_to(aggregator)

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy goes on with the firers that its owner may have kept, and without the aggregator
        return _EventSource, (), {"firers": self.firers}


def _source_of(owner: FiresEvents) -> _EventSource:
    # Past a __setattr__ of its own, and not by way of __dict__: Python 3.11 then reads all of them more slowly.
    source: _EventSource | None = getattr(owner, _ATTRIBUTE, None)
    if source is None:
        source = _EventSource()
        object.__setattr__(owner, _ATTRIBUTE, source)
    return source


def _silent(interface: type) -> dict[str, Callable[..., None]]:
    """The events of an interface, leading nowhere; their arguments are checked all the same."""
    nowhere = EpisodeStatsAggregator()
    return {name: firing_function(event, _drop, nowhere) for name, event in events_of(interface).items()}


def _drop(firing: object) -> None:
    del firing
