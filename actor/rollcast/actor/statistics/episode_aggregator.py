"""Reduces the events of an episode: step by step, then over the episode."""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from rollcast.actor.statistics.declarations import EpisodeChain, EventDeclaration, events_of
from rollcast.actor.statistics.events import EpisodeEvents
from rollcast.actor.statistics.reductions import Accumulator, Statistic
from rollcast.services.errors import StatisticsError
from rollcast.services.limits.limits import MAX_EVENT_STATISTICS, MAX_VALUES_PER_EPISODE
from rollcast.services.rollouts.statistics import EventValue, name_problem

# The number of the step, then the event's attributes.
Firing: TypeAlias = tuple[Any, ...]
Group: TypeAlias = tuple[str, ...]

# Firings are reduced after this many steps, so that an endless episode does not fill the memory.
_STEPS_A_FOLD = 1024

# Reductions that give 0 for an episode without firings. All other reductions give no value.
_OF_NOTHING = ("sum", "count")


class EpisodeStatsAggregator:
    """The events fired in one episode, and their statistics.

    Firing only stores values. The aggregator reduces them at the end of the episode, and every 1024 steps. Only one
    thread uses an aggregator.

    Attributes:
        n_steps: The number of steps that have ended.
    """

    def __init__(self) -> None:
        self.n_steps = 0
        self._fired: dict[str, _FiredEvent] = {}
        self._functions: dict[type, dict[str, Callable[..., None]]] = {}

    def functions_of(self, interface: type) -> dict[str, Callable[..., None]]:
        """Returns the functions that fire the events of an interface.

        Args:
            interface: A class whose methods are events.

        Returns:
            A function for each event, with the event's parameters; the same functions in every call.

        Raises:
            StatisticsError: If a declaration is wrong, or the name of an event is taken.
        """
        if interface in self._functions:
            return self._functions[interface]
        declared = events_of(interface)
        reserved = events_of(EpisodeEvents)
        for name, declaration in declared.items():
            if name in self._fired or name in reserved:
                other = self._fired[name].declaration.where if name in self._fired else f"EpisodeEvents.{name}"
                raise StatisticsError(
                    f"the event {declaration.where} has the name of {other}; expected another name; rename one event"
                )
        fired = {name: _FiredEvent(declaration) for name, declaration in declared.items()}
        n_statistics = sum(len(event.declaration.chains) for event in (*self._fired.values(), *fired.values()))
        if n_statistics > MAX_EVENT_STATISTICS:
            raise StatisticsError(
                f"{interface.__name__} has {n_statistics} statistics of episodes; expected at most "
                f"{MAX_EVENT_STATISTICS}; declare fewer"
            )
        self._fired.update(fired)
        functions = {
            name: firing_function(event.declaration, event.firings.append, self) for name, event in fired.items()
        }
        self._functions[interface] = functions
        return functions

    def end_step(self) -> None:
        """Ends the step: later events belong to the next step."""
        self.n_steps += 1
        if not self.n_steps % _STEPS_A_FOLD:
            self.fold()

    def fold(self) -> None:
        """Reduces the stored events. Call this method between two steps.

        Raises:
            StatisticsError: If an event was fired with a value that cannot be reduced.
        """
        for event in self._fired.values():
            event.fold()

    def end_episode(self) -> tuple[EventValue, ...]:
        """Returns the statistics of the episode, and starts another episode.

        Raises:
            StatisticsError: See `fold`. Also if a reduction gave no finite number, or there are too many values.
        """
        values: list[EventValue] = []
        for event in self._fired.values():
            event.end_episode(values)
        if len(values) > MAX_VALUES_PER_EPISODE:
            raise StatisticsError(
                f"an episode's events have {len(values)} values; expected at most {MAX_VALUES_PER_EPISODE}; "
                "group the events by an attribute with fewer values"
            )
        return tuple(values)

    def clear(self) -> None:
        """Drops the episode."""
        for event in self._fired.values():
            event.clear()


def firing_function(
    declaration: EventDeclaration, keep: Callable[[Firing], None], aggregator: EpisodeStatsAggregator
) -> Callable[..., None]:
    """Makes the function that fires an event. The function has the event's parameters, so Python checks the arguments.

    Args:
        declaration: The event.
        keep: Called with every firing.
        aggregator: Provides the number of the current step.
    """
    # The source holds parameter names and nothing else, as in the constructors of dataclasses. Binding arguments by
    # hand would take five times as long as all the rest, in every step of every environment.
    names: dict[str, Any] = {"__keep": keep, "__aggregator": aggregator}
    parameters: list[str] = []
    for place, parameter in enumerate(declaration.parameters):
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        names[f"__default_{place}"] = parameter.default
        has_default = parameter.default is not inspect.Parameter.empty
        parameters.append(f"{parameter.name}=__default_{place}" if has_default else parameter.name)
    attributes = "".join(f", {parameter.name}" for parameter in declaration.parameters)
    step = "__aggregator.n_steps" if declaration.needs_steps else "0"
    source = f"lambda {', '.join(parameters)}: __keep(({step}{attributes}{'' if attributes else ','}))"
    function: Callable[..., None] = eval(source, names)
    function.__name__, function.__qualname__ = declaration.name, declaration.where
    return function


class _FiredEvent:
    """The firings of one event in the episode, and the statistics so far."""

    __slots__ = ("_chains", "declaration", "firings")

    def __init__(self, declaration: EventDeclaration) -> None:
        self.declaration = declaration
        self.firings: list[Firing] = []
        self._chains: list[tuple[EpisodeChain, dict[Group, Accumulator]]] = [
            (chain, {}) for chain in declaration.chains
        ]

    def fold(self) -> None:
        firings = self.firings
        if not firings:
            return
        try:
            for chain, groups in self._chains:
                if chain.step is None and not chain.group_by:  # the usual case, on a short path
                    self._extend(chain, groups, (), _attribute(chain, firings))
                else:
                    for group, values in _inputs(chain, firings):
                        self._extend(chain, groups, group, values)
        except (TypeError, ValueError, OverflowError) as error:
            raise StatisticsError(
                f"the event {self.declaration.where} was fired with values that cannot be reduced: {error}; expected "
                "numbers, and hashable values for grouping; correct the fired values"
            ) from error
        finally:
            firings.clear()

    def end_episode(self, into: list[EventValue]) -> None:
        self.fold()
        for chain, groups in self._chains:
            if groups:
                for group, accumulator in groups.items():
                    into.append(EventValue(chain.statistic, group, self._finite(chain, accumulator.value())))
                groups.clear()
            elif not chain.group_by and chain.episode.reduction in _OF_NOTHING:
                into.append(EventValue(chain.statistic, (), 0.0))

    def clear(self) -> None:
        self.firings.clear()
        for _, groups in self._chains:
            groups.clear()

    def _extend(
        self, chain: EpisodeChain, groups: dict[Group, Accumulator], group: Group, values: Sequence[Statistic]
    ) -> None:
        accumulator = groups.get(group)
        if accumulator is None:
            accumulator = groups[self._checked(group, len(groups))] = chain.episode.accumulator()
        accumulator.extend(values)

    def _checked(self, group: Group, n_groups: int) -> Group:
        wrong = [problem for text in group if (problem := name_problem(text))] if group else ()
        if wrong:
            raise StatisticsError(
                f"the event {self.declaration.where} is grouped by {wrong[0]}; expected at most 128 printable "
                "characters; group the event by a shorter value"
            )
        if n_groups >= MAX_VALUES_PER_EPISODE:
            raise StatisticsError(
                f"the event {self.declaration.where} has more than {n_groups} groups in one episode; expected fewer; "
                "group the event by an attribute with fewer values"
            )
        return group

    def _finite(self, chain: EpisodeChain, value: Statistic | None) -> float:
        try:
            number = float("nan" if value is None else value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise StatisticsError(
                f"the event {self.declaration.where} has the value {value!r} in an episode, for "
                f"{chain.statistic.name!r}; expected a finite number; correct the fired values, or the reduction"
            )
        return number


def _inputs(chain: EpisodeChain, firings: Sequence[Firing]) -> Iterator[tuple[Group, Sequence[Statistic]]]:
    """Yields the inputs of an episode's statistic, by group."""
    if chain.step is None:
        yield from _grouped(chain, firings)
        return
    for _, of_step in itertools.groupby(firings, key=itemgetter(0)):
        for group, values in _grouped(chain, list(of_step)):
            reducer = chain.step.accumulator()
            reducer.extend(values)
            reduced = reducer.value()
            assert reduced is not None, "there was a firing"
            yield group, (float(reduced),)


def _grouped(chain: EpisodeChain, firings: Sequence[Firing]) -> Iterator[tuple[Group, Sequence[Statistic]]]:
    if not chain.group_by:
        yield (), _attribute(chain, firings)
        return
    members: dict[Any, list[Firing]] = {}
    # The step comes first in a firing.
    key_of = itemgetter(*(place + 1 for place in chain.group_by))
    for firing in firings:
        members.setdefault(key_of(firing), []).append(firing)
    for key, of_group in members.items():
        texts = (str(key),) if len(chain.group_by) == 1 else tuple(map(str, key))
        yield texts, _attribute(chain, of_group)


def _attribute(chain: EpisodeChain, firings: Sequence[Firing]) -> Sequence[Statistic]:
    if chain.attribute is None:
        return (1,) * len(firings)
    return list(map(float, map(itemgetter(chain.attribute + 1), firings)))
