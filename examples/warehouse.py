"""Your own metrics besides the return: the delivery times of parcels, by zone. See docs/howto/own_metrics.md.

    rollcast train --env-id examples.warehouse:make

shows metrics such as `parcel_delivered/mean_minutes[far]` in the terminal, in the run's `metrics.jsonl` and in
TensorBoard. `python examples/warehouse.py` does the same.
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from rollcast.actor import FiresEvents, define_episode_stats, define_epoch_stats, define_stats_grouping
from rollcast.learner import main

ZONES = ("near", "middle", "far")
MINUTES = (2.0, 5.0, 11.0)


class DeliveryEvents:
    """The statistics of deliveries. Read decorators from the bottom up: from the event to the episode to the epoch."""

    @define_epoch_stats("mean", input_name="minutes", output_name="mean_minutes")
    @define_epoch_stats("max", input_name="minutes", output_name="worst_minutes")
    @define_epoch_stats("sum", input_name="parcels", output_name="parcels_so_far", cumulative=True)
    @define_episode_stats("mean", input_name="minutes", output_name="minutes")
    @define_episode_stats("count", output_name="parcels")
    @define_stats_grouping("zone")
    def parcel_delivered(self, zone: str, minutes: float) -> None:
        """Fires when a parcel has reached its customer, `minutes` after its order."""


class Warehouse(FiresEvents, gymnasium.Env[NDArray[np.float32], np.int64]):
    """One driver and three zones in which parcels wait. An action drives to a zone and delivers the parcels there.

    The observation has the wait of the oldest parcel of each zone, in hours. The reward is lower the more parcels wait
    during a trip, and the longer the trip is.

    Args:
        day_minutes: Minutes in an episode.
        parcels_per_minute: Mean number of new orders per minute in each zone.
    """

    def __init__(self, day_minutes: float = 240.0, parcels_per_minute: float = 0.1) -> None:
        self.observation_space = Box(0.0, np.inf, (len(ZONES),), np.float32)
        self.action_space = Discrete(len(ZONES))
        self._day_minutes, self._parcels_per_minute = day_minutes, parcels_per_minute
        self._delivery = self.events(DeliveryEvents)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins a day without parcels."""
        super().reset(seed=seed)
        self._minute = 0.0
        self._orders: list[list[float]] = [[] for _ in ZONES]
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Drives to a zone; during the drive, customers of all zones order parcels."""
        self._take_orders(MINUTES[action])
        self._minute += MINUTES[action]
        reward = -sum(map(len, self._orders)) * MINUTES[action] / 100
        for ordered in self._orders[action]:
            self._delivery.parcel_delivered(zone=ZONES[action], minutes=self._minute - ordered)
        self._orders[action].clear()
        return self._observe(), reward, False, self._minute >= self._day_minutes, {}

    def _take_orders(self, minutes: float) -> None:
        for orders in self._orders:
            n_parcels = self.np_random.poisson(minutes * self._parcels_per_minute)
            orders.extend(self._minute + self.np_random.random(n_parcels) * minutes)

    def _observe(self) -> NDArray[np.float32]:
        waited = [self._minute - min(orders) if orders else 0.0 for orders in self._orders]
        return np.array(waited, np.float32) / 60


def make(**kwargs: Any) -> gymnasium.Env[NDArray[np.float32], np.int64]:  # noqa: ANN401  # whatever --env-kwargs says
    """Makes one environment. rollcast calls this for each environment of an actor."""
    return Warehouse(**kwargs)


if __name__ == "__main__":
    sys.exit(main(["train", "--env-id", "examples.warehouse:make", *sys.argv[1:]]))
