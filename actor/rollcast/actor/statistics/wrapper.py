"""Episodes of environments that fire events: their values leave with the info of the last step."""

from collections.abc import Iterator
from typing import Any, Final

import gymnasium

from rollcast.actor.statistics.episode_aggregator import EpisodeStatsAggregator
from rollcast.actor.statistics.firing import FiresEvents, listen_to
from rollcast.services.rollouts.statistics import EventValue

# Where in the info of an episode's last step its values are: a tuple of `EventValue`.
EVENTS_KEY: Final = "rollcast/events"

_Environment = gymnasium.Env[Any, Any]


def with_event_statistics(env: _Environment) -> _Environment:
    """Wraps an environment that fires events, or has wrappers that do.

    Args:
        env: The environment, as it is played.

    Returns:
        The environment; or itself, where nothing in it is a `FiresEvents`.

    Raises:
        StatisticsError: Two of its events have one name.
    """
    layers = list(wrapped_layers(env))
    if any(isinstance(layer, EventStatistics) for layer in layers):
        return env
    aggregator = listen_to([layer for layer in reversed(layers) if isinstance(layer, FiresEvents)])
    return env if aggregator is None else EventStatistics(env, aggregator)


class EventStatistics(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Tells an aggregator where steps and episodes end.

    Args:
        env: What is played.
        aggregator: Where its events go.
    """

    def __init__(self, env: _Environment, aggregator: EpisodeStatsAggregator) -> None:
        super().__init__(env)
        self._aggregator = aggregator
        self._step = env.step
        self._end_step, self._end_episode = aggregator.end_step, aggregator.end_episode

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401 - the environment's own
        """Steps; the last step of an episode has its values in its info."""
        result = self._step(action)
        if not (result[2] or result[3]):
            self._end_step()
            return result
        values = self._end_episode()
        if not values:
            return result
        observation, reward, terminated, truncated, info = result
        return observation, reward, terminated, truncated, {**info, EVENTS_KEY: values}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; what was fired in one that did not end is forgotten."""
        self._aggregator.clear()
        return self.env.reset(seed=seed, options=options)


def events_in(infos: dict[str, Any], *, are_final: bool) -> Iterator[tuple[int, tuple[EventValue, ...]]]:
    """The values of the episodes that ended in a step of a vector environment.

    Args:
        infos: As gymnasium merges them.
        are_final: Whether environments are reset in the same step, and the infos of the last are apart.

    Yields:
        Index of the environment, and its values.
    """
    told = infos.get("final_info") if are_final else infos
    if told is not None and EVENTS_KEY in told:
        has_values = told[f"_{EVENTS_KEY}"]
        for index in has_values.nonzero()[0].tolist():
            yield index, told[EVENTS_KEY][index]


def wrapped_layers(env: object) -> Iterator[object]:
    """An environment and what it is wrapped around, from the outside in, as gymnasium and PettingZoo have it."""
    while env is not None:
        yield env
        attributes = getattr(env, "__dict__", {})
        env = attributes.get("env", attributes.get("aec_env"))
