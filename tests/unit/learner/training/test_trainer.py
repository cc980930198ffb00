import dataclasses
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from rollcast.actor.policies.network_arithmetic import NetworkArithmetic, hidden_dtype
from rollcast.learner.actors.base import DistributedActors
from rollcast.learner.algorithms.algorithm import Metrics
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.learner.batch import Batch
from rollcast.learner.experience.experience import Experience, ExperienceSource, FreshExperience
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.training.control import TrainingControl
from rollcast.learner.training.schedule import TrainingSchedule
from rollcast.learner.training.trainer import Trainer
from rollcast.learner.training.update_metrics import UpdateMetrics
from rollcast.services.errors import RollcastError
from rollcast.services.history.history import EventSeverity, LearnerActivity
from tests.accelerator import Accelerator
from tests.actor_kinds import make_actors


class KeptMetrics:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[dict[str, float]] = []

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        self.records.append(dict(metrics))

    def close(self) -> None:
        pass


class Instrumented(FreshExperience):
    """Fresh rollouts, with figures of their own."""

    def __init__(self, actors: DistributedActors) -> None:
        super().__init__(actors)
        self.progress: list[float] = []

    def next(self, learner_device: str, *, progress: float = 0.0) -> Experience:
        self.progress.append(progress)
        return super().next(learner_device, progress=progress)

    def metrics(self) -> dict[str, float]:
        return {"replay/size": len(self.progress)}


class Changed(FreshExperience):
    """Fresh rollouts, as a function changes them."""

    def __init__(self, change: Callable[[Experience, float], Experience]) -> None:
        super().__init__(make_actors("sequential"))
        self.change = change

    def next(self, learner_device: str, *, progress: float = 0.0) -> Experience:
        return self.change(super().next(learner_device, progress=progress), progress)


def trainer_of(
    source: ExperienceSource | None = None,
    *,
    algorithm_class: type[Impala] = Impala,
    control: TrainingControl | None = None,
    total_steps: int = 100,
    log_interval_s: float = 0.0,
    checkpoint_interval_updates: int | None = None,
    **options: object,
) -> Trainer:
    """Returns a trainer that writes a record after each update, unless it is to write fewer."""
    source = source or FreshExperience(make_actors("sequential"))
    policy = source.actors.policy
    return Trainer(
        source,
        algorithm_class(policy.spaces, policy.spec, ImpalaSettings()),
        control or TrainingControl(algorithm="impala", run_dir=None),
        TrainingSchedule(
            total_steps=total_steps,
            stop_return=None,
            log_interval_s=log_interval_s,
            checkpoint_interval_updates=checkpoint_interval_updates,
        ),
        device=torch.device("cpu"),
        **options,
    )


def test_metrics_have_what_was_dropped_and_what_the_source_tells():
    source, kept = Instrumented(make_actors("sequential")), KeptMetrics()
    trainer_of(source, writers=[kept]).run()
    for name in ("queue/stale_trajectories", "queue/duplicate_rollouts", "queue/rejected_rollouts"):
        assert kept.records[-1][name] == 0
    assert [record["replay/size"] for record in kept.records] == list(range(1, len(kept.records) + 1))
    assert source.progress == [16 * update / 100 for update in range(7)], "the source knows how far training is"


def test_a_record_counts_the_episodes_that_were_dropped():
    kept = KeptMetrics()
    actors = make_actors("sequential", env_id="tests.environments:FailingEnv", on_step_failure="drop_episode")
    trainer_of(FreshExperience(actors), writers=[kept]).run()
    counts = [record["actors/dropped_episodes"] for record in kept.records]
    assert counts[0] == 4, "two actors with two environments each: of four steps the third raises"
    assert counts == sorted(counts)
    assert counts[-1] > 4


def test_the_first_record_alone_has_the_size_of_observations():
    kept, seen = KeptMetrics(), []

    def see(experience: Experience, progress: float) -> Experience:
        (columns,) = experience.batch.substeps.values()
        seen.append(columns.observation[""].abs().mean((0, 1)).max().item())
        return experience

    trainer_of(Changed(see), writers=[kept]).run()
    sizes = [record["train/observation_size"] for record in kept.records if "train/observation_size" in record]
    assert sizes == seen[:1]
    assert "train/observation_size" in kept.records[0]
    assert sizes[0] > 0


def test_records_and_status_have_the_lag_since_the_record_before():
    def lags(experience: Experience, progress: float) -> Experience:
        """The first batch is old, and was waited for."""
        is_first = progress == 0.0
        lag = np.full(len(experience.policy_lag), 40 if is_first else 1)
        return dataclasses.replace(experience, policy_lag=lag, waited_s=1e6 if is_first else 0.0)

    kept, control = KeptMetrics(), TrainingControl(algorithm="impala", run_dir=None)
    trainer = trainer_of(Changed(lags), writers=[kept], control=control, log_interval_s=1e9)
    summary = trainer.run()
    first, last = kept.records
    assert [first[f"queue/policy_lag_{name}"] for name in ("mean", "max")] == [40.0, 40]
    assert [last[f"queue/policy_lag_{name}"] for name in ("mean", "max")] == [1.0, 1]
    assert (first["speed/waiting_fraction"], last["speed/waiting_fraction"]) == (1.0, 0.0)
    status = control.status()
    assert (status.policy_lag_mean, status.policy_lag_max) == (1.0, 1)
    assert status.waiting_fraction > 1, "of the run: the scaler subtracts two of them"
    assert (summary.policy_lag_mean, summary.policy_lag_max) == (pytest.approx(46 / 7), 40)


def test_the_last_record_is_of_the_end_of_training():
    kept = KeptMetrics()
    summary = trainer_of(writers=[kept], log_interval_s=1e9).run()
    assert [record["train/updates"] for record in kept.records] == [1, summary.updates]
    assert summary.updates == 7
    kept = KeptMetrics()
    trainer_of(writers=[kept], total_steps=100).run()
    assert [record["train/updates"] for record in kept.records] == [*range(1, 8)], "none is written twice"


def test_there_is_a_record_of_each_checkpoint(tmp_path: Path):
    kept, run = KeptMetrics(), RunDirectory.create(tmp_path, "run")
    trainer_of(writers=[kept], run=run, log_interval_s=1e9, checkpoint_interval_updates=3).run()
    assert [record["train/updates"] for record in kept.records] == [1, 3, 6, 7]


def test_there_is_a_record_of_the_moment_of_an_operators_checkpoint(tmp_path: Path):
    kept, run = KeptMetrics(), RunDirectory.create(tmp_path, "run")
    control = TrainingControl(algorithm="impala", run_dir=run.path)

    def save_before_the_fifth(experience: Experience, progress: float) -> Experience:
        if progress == 4 * 16 / 100:
            with ThreadPoolExecutor(1) as operator:
                operator.submit(control.save_checkpoint).result(60)
        return experience

    source = Changed(save_before_the_fifth)
    trainer_of(source, writers=[kept], run=run, control=control, log_interval_s=1e9).run()
    assert [record["train/updates"] for record in kept.records] == [1, 4, 7]


def test_training_that_fails_leaves_a_record_of_its_last_update_and_the_history_has_why():
    class FailsAtTheFourth(Impala):
        def update(self, batch: Batch, *, progress: float) -> Metrics:
            if self.n_updates == 3:
                raise RollcastError("the loss is odd")
            return super().update(batch, progress=progress)

    kept, control = KeptMetrics(), TrainingControl(algorithm="impala", run_dir=None)
    with pytest.raises(RollcastError, match="odd"):
        trainer_of(algorithm_class=FailsAtTheFourth, writers=[kept], control=control, log_interval_s=1e9).run()
    assert [record["train/updates"] for record in kept.records] == [1, 3]
    (event,) = control.run_history.news(None).events
    assert (event.severity, event.text) == (EventSeverity.ERROR, "training has failed: the loss is odd")
    assert "in update" in event.detail


def test_metrics_have_the_statistics_of_events():
    actors, kept = make_actors("sequential", env_id="tests.event_environments:wrapped"), KeptMetrics()
    trainer = trainer_of(FreshExperience(actors), writers=[kept])
    trainer.run()
    own = {"step_made/mean[odd]": 9.0, "step_made/mean[even]": 6.0, "doorbell": 2.0, "wrapped_step": 5.0}
    everybodys = {"episode_return/mean": 15.0, "episode_length/max": 5, "episode_count/cumulative": 20}
    ended = next(record for record in reversed(kept.records) if "doorbell" in record)
    for name, value in (own | everybodys).items():
        assert ended[name] == value
    assert all(record["learner_update/mean_s"] > 0 for record in kept.records)
    shown = trainer.statistics()
    assert own.items() <= shown.items(), "also when the last epoch had no episode"
    assert not {name for name in shown if name.startswith(("episode_", "learner_update"))}


def test_episodes_are_kept_until_the_next_record_only():
    actors = make_actors("sequential")
    summary = trainer_of(FreshExperience(actors), total_steps=500).run()
    statistics = actors.get_epoch_stats_aggregator().epoch_stats()
    assert summary.env_steps >= 500
    assert statistics["episode_count/cumulative"] > 0
    assert "episode_count/epoch" not in statistics


def test_the_history_has_the_end_of_training_its_lags_and_the_time_of_its_thread():
    control = TrainingControl(algorithm="impala", run_dir=None)
    trainer_of(control=control).run()
    news = control.run_history.news(None)
    assert news.curves[0].metric.startswith("impala/"), "the algorithm's own are the first"
    (updates,) = [curve for curve in news.curves if curve.metric == "train/updates"]
    assert updates.values == tuple(range(1, 8))
    assert [event.text for event in news.events] == [
        "training has ended: all steps are done, after 112 environment steps and 7 updates"
    ]
    assert sum(news.delays.trajectories_by_lag) == 7 * 4
    spent = control.run_history.activity.seconds()
    assert spent[LearnerActivity.UPDATING] > 0
    assert spent[LearnerActivity.WAITING] > 0
    assert spent[LearnerActivity.PUBLISHING] > 0


def test_updates_compute_with_the_arithmetic_of_the_run_and_policies_are_float32():
    seen: list[torch.dtype] = []
    dtypes: set[np.dtype] = set()

    class Watched(Impala):
        def update(self, batch: Batch, *, progress: float) -> Metrics:
            seen.append(hidden_dtype())
            metrics = super().update(batch, progress=progress)
            dtypes.update(array.dtype for array in self.policy_state().values())
            return metrics

    trainer_of(algorithm_class=Watched, total_steps=20, arithmetic=NetworkArithmetic(hidden=torch.bfloat16)).run()
    assert set(seen) == {torch.bfloat16}
    assert hidden_dtype() == torch.float32
    assert dtypes == {np.dtype(np.float32)}


class Known(Impala):
    """An algorithm whose values are known, as tensors, numbers of numpy and floats; the second update lacks one."""

    def update(self, batch: Batch, *, progress: float) -> Metrics:
        super().update(batch, progress=progress)
        value = (1.0, 2.0, 6.0)[min(self.n_updates, 3) - 1]
        metrics = {
            "policy_loss": torch.tensor(value, requires_grad=True) * 1,
            "approx_kl": np.float32(value),
            "own_grad_norm": torch.tensor(value),
            "own_learning_rate": value,
            "odd": torch.tensor(float("nan") if self.n_updates == 2 else value),
            "rare": value,
        }
        return metrics if self.n_updates != 2 else {name: metrics[name] for name in metrics if name != "rare"}


def known_record(log_interval_s: float) -> dict[str, float]:
    kept = KeptMetrics()
    source = FreshExperience(make_actors("sequential"))
    trainer_of(source, algorithm_class=Known, writers=[kept], total_steps=48, log_interval_s=log_interval_s).run()
    return {name.removeprefix("impala/"): v for name, v in kept.records[-1].items() if name.startswith("impala/")}


def test_a_record_has_the_mean_of_every_value_and_the_largest_norm_and_kl_since_the_record_before():
    found = known_record(1e9)
    assert math.isnan(found.pop("odd"))
    # The first update has a record of its own.
    assert found == {
        "policy_loss": 4.0,
        "approx_kl": 4.0,
        "approx_kl_max": 6.0,
        "own_grad_norm": 4.0,
        "own_grad_norm_max": 6.0,
        "own_learning_rate": 6.0,
        "rare": 6.0,
    }


def test_values_on_a_device_are_summed_there_and_read_once_a_record():
    with Accelerator() as accelerator:
        metrics, device = UpdateMetrics(), accelerator.device
        losses, weight = (
            torch.tensor([1.0, 2.0, 6.0], device=device),
            torch.tensor([1.0], device=device).requires_grad_(),
        )
        with accelerator.counting() as cost:
            for loss in losses.unbind():
                metrics.add({"grad_norm": loss, "loss": (weight * loss).squeeze(), "epochs": 2.0})
                loss.fill_(-1.0)  # an algorithm may use its memory again
        assert (cost.waits, cost.copies) == ([], [])
        assert cost.operations.total() <= 6 * 3
        with accelerator.counting() as cost:
            assert metrics.take() == {"grad_norm": 3.0, "grad_norm_max": 6.0, "loss": 3.0, "epochs": 2.0}
        assert len(cost.waits) == 1
        assert metrics.take() == {}
