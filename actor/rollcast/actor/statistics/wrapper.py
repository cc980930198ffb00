"""Wraps gymnasium environments that fire events. The info of an episode's last step contains the statistics."""

from collections.abc import Iterator
from typing import Any, Final

import gymnasium

from rollcast.actor.statistics.episode_aggregator import EpisodeStatsAggregator
from rollcast.actor.statistics.firing import FiresEvents, listen_to
from rollcast.services.rollouts.statistics import EventValue

# Key of the statistics in the info of an episode's last step: a tuple of `EventValue`.
EVENTS_KEY: Final = "rollcast/events"

_Environment = gymnasium.Env[Any, Any]


def with_event_statistics(env: _Environment) -> _Environment:
    """Wraps an environment in `EventStatistics` if it, or one of its wrappers, fires events.

    Args:
        env: The environment, with its wrappers.

    Returns:
        The wrapped environment; `env` itself if no layer is a `FiresEvents`.

    Raises:
        StatisticsError: If two events of the environment have the same name.
    """
    layers = list(wrapped_layers(env))
    if any(isinstance(layer, EventStatistics) for layer in layers):
        return env
    aggregator = listen_to([layer for layer in reversed(layers) if isinstance(layer, FiresEvents)])
    return env if aggregator is None else EventStatistics(env, aggregator)


class EventStatistics(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that reports the ends of steps and episodes to an aggregator.

    Args:
        env: The environment.
        aggregator: Receives the environment's events.
    """

    def __init__(self, env: _Environment, aggregator: EpisodeStatsAggregator) -> None:
        super().__init__(env)
        self._aggregator = aggregator
        self._step = env.step
        self._end_step, self._end_episode = aggregator.end_step, aggregator.end_episode

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401 - the environment's own
        """Takes a step. Adds the episode's statistics to the info of the last step."""
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
        """Begins an episode. Drops the events of an unfinished episode."""
        self._aggregator.clear()
        return self.env.reset(seed=seed, options=options)


def events_in(infos: dict[str, Any], *, are_final: bool) -> Iterator[tuple[int, tuple[EventValue, ...]]]:
    """Yields the statistics of the episodes that ended in a step of a vector environment.

    Args:
        infos: The step's infos, merged by gymnasium.
        are_final: True: the vector resets in the same step, and has the last infos in `final_info`.

    Yields:
        The index of the environment, and the statistics of the episode.
    """
    told = infos.get("final_info") if are_final else infos
    if told is not None and EVENTS_KEY in told:
        has_values = told[f"_{EVENTS_KEY}"]
        for index in has_values.nonzero()[0].tolist():
            yield index, told[EVENTS_KEY][index]


def wrapped_layers(env: object) -> Iterator[object]:
    """Yields the wrappers of a gymnasium or PettingZoo environment, outermost first, then the environment."""
    while env is not None:
        yield env
        attributes = getattr(env, "__dict__", {})
        env = attributes.get("env", attributes.get("aec_env"))
