"""Checks an event's decorators, and builds chains of reductions from the event's attributes to the epoch."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rollcast.actor.statistics.events import LogStatsLevel, StatsDefinition, StatsGrouping, definitions_of
from rollcast.actor.statistics.reductions import Accumulator, Reduce, ReduceFunction, make_accumulator, named_reduction
from rollcast.services.errors import StatisticsError
from rollcast.services.limits.limits import MAX_GROUPING
from rollcast.services.rollouts.statistics import EpochStatistic, EventStatistic, Reduction, name_problem

_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

# The event's name, and the name of one of its statistics of epochs.
EpochKey: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Reducer:
    """A reduction, and the user's function if the reduction is custom."""

    reduction: Reduction
    own: ReduceFunction | None

    @classmethod
    def of(cls, reduce: Reduce) -> "Reducer":
        """Makes a reducer from the `reduce` argument of a decorator."""
        reduction = named_reduction(reduce)
        return cls(reduction, reduce if reduction == "own" and not isinstance(reduce, str) else None)

    def accumulator(self) -> Accumulator:
        """Makes an accumulator that applies the reduction."""
        return make_accumulator(self.reduction, self.own)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeChain:
    """The reductions from an event's firings to one statistic of the episode.

    Attributes:
        statistic: The statistic of the episode.
        attribute: The index of the event's attribute to reduce; None: count firings.
        step: Reduces each step; None: no reduction of steps.
        episode: Reduces the episode.
        group_by: The indices of the attributes that define the groups.
    """

    statistic: EventStatistic
    attribute: int | None
    step: Reducer | None
    episode: Reducer
    group_by: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDeclaration:
    """A checked event.

    Attributes:
        name: The event's name.
        where: The name with the interface's name, for messages.
        parameters: The event's attributes.
        chains: The event's statistics of episodes.
        own_epoch: The user's own reductions of epochs, by statistic.
    """

    name: str
    where: str
    parameters: tuple[inspect.Parameter, ...]
    chains: tuple[EpisodeChain, ...]
    own_epoch: Mapping[EpochKey, ReduceFunction]

    @property
    def needs_steps(self) -> bool:
        """True if a chain reduces steps, and so needs the step's number."""
        return any(chain.step is not None for chain in self.chains)


def events_of(interface: type) -> dict[str, EventDeclaration]:
    """Returns the checked events of an interface class.

    Args:
        interface: For example `EpisodeEvents`.

    Returns:
        The events by name, in the order of their definition, those of base classes first.

    Raises:
        StatisticsError: If the interface has no events, or a declaration is wrong.
    """
    methods: dict[str, Callable[..., Any]] = {}
    for base in reversed(interface.__mro__):
        methods.update({name: method for name, method in vars(base).items() if definitions_of(method)})
    if not methods:
        raise StatisticsError(
            f"{interface.__name__} has no events; expected methods with @define_episode_stats and @define_epoch_stats; "
            "decorate the methods"
        )
    return {name: _declaration(method, f"{interface.__name__}.{name}") for name, method in methods.items()}


def _declaration(method: Callable[..., Any], where: str) -> EventDeclaration:
    definitions = definitions_of(method)
    name = where.rpartition(".")[2]
    parameters = tuple(inspect.signature(method).parameters.values())[1:]
    names = [parameter.name for parameter in parameters]
    if any(parameter.kind not in _KINDS for parameter in parameters):
        raise _refused(where, f"has the attributes {names}", "plain attributes, without * and **")
    levels = {
        level: _by_name(where, level, [one for one in definitions if isinstance(one, StatsDefinition)])
        for level in LogStatsLevel
    }
    steps, episodes, epochs = (levels[level] for level in LogStatsLevel)
    grouping = tuple(name for one in definitions if isinstance(one, StatsGrouping) for name in one.attributes)
    _check_grouping(where, grouping, names)
    by_episode: dict[str, list[StatsDefinition]] = {name: [] for name in episodes}
    for epoch in epochs.values():
        by_episode[_input(where, epoch, {LogStatsLevel.EPISODE: list(episodes)})[1]].append(epoch)
    chains = tuple(
        _chain(where, names, grouping, steps, episodes[episode], consumers)
        for episode, consumers in by_episode.items()
        if consumers
    )
    if not chains:
        raise _refused(where, "has no statistics of epochs", "at least one: add @define_epoch_stats")
    own = {epoch.output_name or "": Reducer.of(epoch.reduce).own for epoch in epochs.values()}
    return EventDeclaration(
        name=name,
        where=where,
        parameters=parameters,
        chains=chains,
        own_epoch={(name, epoch): reduce for epoch, reduce in own.items() if reduce is not None},
    )


def _chain(
    where: str,
    names: Sequence[str],
    grouping: tuple[str, ...],
    steps: Mapping[str, StatsDefinition],
    episode: StatsDefinition,
    epochs: Sequence[StatsDefinition],
) -> EpisodeChain:
    group_by = grouping if episode.group_by is None else episode.group_by
    _check_grouping(where, group_by, names)
    values = [name for name in names if name not in group_by and name not in grouping]
    level, source = _input(where, episode, {LogStatsLevel.STEP: list(steps), None: values}, attributes=names)
    step = steps[source] if level is LogStatsLevel.STEP else None
    if step is not None:
        _, source = _input(where, step, {None: values}, attributes=names)
    first = named_reduction((step or episode).reduce)
    return EpisodeChain(
        statistic=EventStatistic(
            event=where.rpartition(".")[2],
            name=episode.output_name or "",
            epoch=tuple(
                EpochStatistic(
                    name=epoch.output_name or "", reduction=named_reduction(epoch.reduce), cumulative=epoch.cumulative
                )
                for epoch in epochs
            ),
        ),
        # An attribute that is only counted need not be a number.
        attribute=names.index(source) if source and first != "count" else None,
        step=None if step is None else Reducer.of(step.reduce),
        episode=Reducer.of(episode.reduce),
        group_by=tuple(names.index(name) for name in group_by),
    )


def _input(
    where: str,
    definition: StatsDefinition,
    sources: Mapping[LogStatsLevel | None, list[str]],
    attributes: Sequence[str] = (),
) -> tuple[LogStatsLevel | None, str]:
    """Returns the level and name of a statistic's input; None and an attribute (or "") if it is not a statistic."""
    wanted = definition.input_name
    for level, names in sources.items():
        if wanted is None and len(names) == 1:
            return level, names[0]
        if wanted is None and names:
            break
        if wanted is not None and wanted in (names if level is not None else attributes):
            return level, wanted
    counts = named_reduction(definition.reduce) == "count" and definition.level is not LogStatsLevel.EPOCH
    if wanted is None and counts:
        return None, ""
    there_is = "; ".join(
        f"{'attributes' if level is None else f'statistics of the {level.name.lower()}'}: "
        f"{', '.join(repr(name) for name in (names if level else attributes)) or 'none'}"
        for level, names in sources.items()
    )
    raise _refused(
        where,
        f"has a statistic of the {definition.level.name.lower()} with input_name {wanted!r}",
        f"the name of its input. There are {there_is}",
    )


def _by_name(where: str, level: LogStatsLevel, definitions: Sequence[StatsDefinition]) -> dict[str, StatsDefinition]:
    named: dict[str, StatsDefinition] = {}
    for definition in definitions:
        if definition.level is not level:
            continue
        name = definition.output_name or ""
        if name in named:
            raise _refused(
                where,
                f"has two statistics of the {level.name.lower()} with output_name {definition.output_name!r}",
                "different names",
            )
        if problem := name_problem(name):
            raise _refused(where, f"has a statistic named {problem}", "at most 128 printable characters")
        named[name] = definition
    return named


def _check_grouping(where: str, group_by: Sequence[str], names: Sequence[str]) -> None:
    if len(group_by) > MAX_GROUPING or any(name not in names for name in group_by):
        raise _refused(
            where, f"is grouped by {list(group_by)}", f"at most {MAX_GROUPING} of its attributes, {list(names)}"
        )


def _refused(where: str, found: str, expected: str) -> StatisticsError:
    return StatisticsError(f"the event {where} {found}; expected {expected}; correct its decorators")
