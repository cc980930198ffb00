"""What the trainer fires, as environments fire theirs."""

from rollcast.actor.statistics.events import define_episode_stats, define_epoch_stats


class TrainingEvents:
    """What happens in training; every update is an episode of it."""

    @define_epoch_stats("mean", input_name="seconds", output_name="mean_s")
    @define_epoch_stats("max", input_name="seconds", output_name="max_s")
    @define_epoch_stats("max", input_name="waited_s", output_name="max_waited_s")
    @define_episode_stats("sum", input_name="seconds", output_name="seconds")
    @define_episode_stats("sum", input_name="waited_s", output_name="waited_s")
    def learner_update(self, seconds: float, waited_s: float) -> None:
        """A batch was learnt from, in seconds, after waiting so many for it."""
