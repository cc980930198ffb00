"""Declares the trainer's own events, which it fires as environments fire theirs."""

from rollcast.actor.statistics.events import define_episode_stats, define_epoch_stats


class TrainingEvents:
    """The events of training; every update counts as an episode."""

    @define_epoch_stats("mean", input_name="seconds", output_name="mean_s")
    @define_epoch_stats("max", input_name="seconds", output_name="max_s")
    @define_epoch_stats("max", input_name="waited_s", output_name="max_waited_s")
    @define_episode_stats("sum", input_name="seconds", output_name="seconds")
    @define_episode_stats("sum", input_name="waited_s", output_name="waited_s")
    def learner_update(self, seconds: float, waited_s: float) -> None:
        """An update was made.

        Args:
            seconds: The time that the update took.
            waited_s: The seconds spent waiting for its batch.
        """
