"""Fires events: a mix-in for environments, wrappers, policies and networks."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from rollcast.actor.statistics.declarations import events_of
from rollcast.actor.statistics.episode_aggregator import EpisodeStatsAggregator, firing_function
from rollcast.services.errors import StatisticsError

_Events = TypeVar("_Events")
_ATTRIBUTE = "_rollcast_event_source"


class FiresEvents:
    """A mix-in for classes that fire events.

        class Warehouse(FiresEvents, gymnasium.Env):
            def __init__(self):
                self._delivery = self.events(DeliveryEvents)

            def step(self, action):
                self._delivery.parcel_delivered(zone="north", minutes=12.5)

    Invariant: the aggregator of the last `fire_at` receives the events. Events before the first `fire_at` are dropped.
    A copy or an unpickled object starts without an aggregator. The mix-in needs no constructor.
    """

    def events(self, interface: type[_Events]) -> _Events:
        """Returns an object whose methods fire the interface's events. The caller may keep this object.

        Args:
            interface: A class whose methods are events.

        Returns:
            The same object for every call with this interface.

        Raises:
            StatisticsError: If a declaration is wrong, or two events have the same name.
        """
        return cast(_Events, _source_of(self).firer(interface))

    def fire_at(self, aggregator: EpisodeStatsAggregator | None) -> None:
        """Sets the aggregator that receives all later events. The code that steps the environments calls this.

        Args:
            aggregator: The aggregator; None: drop events.

        Raises:
            StatisticsError: If two events have the same name.
        """
        _source_of(self).attach(aggregator)


def listen_to(sources: Sequence[FiresEvents]) -> EpisodeStatsAggregator | None:
    """Sends the events of several sources to one new aggregator.

    Args:
        sources: The objects that fire events.

    Returns:
        The aggregator; None if there is no source.

    Raises:
        StatisticsError: If two events of the sources have the same name.
    """
    if not sources:
        return None
    aggregator = EpisodeStatsAggregator()
    for source in sources:
        source.fire_at(aggregator)
    return aggregator


class EventFirer:
    """An object with a method for each event of an interface. `lead_to` sets the aggregator of the events."""

    def __init__(self, interface: type) -> None:
        self._interface = interface
        self.lead_to(None)

    def lead_to(self, aggregator: EpisodeStatsAggregator | None) -> None:
        """Sets the aggregator that receives all later events; None: drop events."""
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
    """The firers of one object, one `EventFirer` for each interface."""

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
        # A copy keeps the firers, which its owner may hold, and drops the aggregator.
        return _EventSource, (), {"firers": self.firers}


def _source_of(owner: FiresEvents) -> _EventSource:
    # object.__setattr__ passes by a __setattr__ of the owner. Touching __dict__ would slow all attributes in Python
    # 3.11.
    source: _EventSource | None = getattr(owner, _ATTRIBUTE, None)
    if source is None:
        source = _EventSource()
        object.__setattr__(owner, _ATTRIBUTE, source)
    return source


def _silent(interface: type) -> dict[str, Callable[..., None]]:
    """Returns functions for an interface's events that check their arguments and drop them."""
    nowhere = EpisodeStatsAggregator()
    return {name: firing_function(event, _drop, nowhere) for name, event in events_of(interface).items()}


def _drop(firing: object) -> None:
    del firing
