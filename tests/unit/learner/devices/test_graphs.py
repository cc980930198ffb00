"""Captured updates: on the CPU and on `tests.accelerator` with a graph that runs the work again, and on real GPUs."""

import dataclasses
import gc
import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rollcast.learner.algorithms.algorithm import Algorithm
from rollcast.learner.algorithms.divergence import DivergenceWatch
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.batch import Batch
from rollcast.learner.devices.graphs import MAX_GRAPHS, WARM_UP_UPDATES, CudaGraph, GraphedWork
from rollcast.learner.devices.work import Outputs
from rollcast.services.errors import RollcastError
from rollcast.services.policies.policies import PolicyState
from rollcast.services.spaces.spaces import FLAT_SUBSTEP
from tests.accelerator import DEVICE, Accelerator, OnDevice
from tests.batches import make_batch
from tests.every_algorithm import CASES, PARTS, Case, T
from tests.stand_in_cuda import Generator, StandInCuda, drawn
from tests.tolerances import rounding_bound, tf32_as_it_was

# What other cases have besides, layers and distributions, is compared by operations in `test_on_accelerator`.
CAPTURED = [*PARTS, "impala: memory", "impala: mixed observations, several actions", "r2d2: gru, masks, frame stacks"]
every_case = pytest.mark.parametrize(
    "name", [name for name in CAPTURED if CASES[name].make("cpu").why_not_captured() is None]
)
# Updates in which all but the first few are replayed; the third and the sixth have fewer final observations.
N_UPDATES = WARM_UP_UPDATES + 3


class RepeatedWork:
    """Stands for a graph: it runs the work again, on the memory that it was captured with."""

    made: list["RepeatedWork"]

    def __init__(self) -> None:
        self.n_replays = 0
        self.run: Callable[[], None] | None = None
        self.around_replay: Any = None

    def warm_up(self, run: Callable[[], Outputs]) -> Outputs:
        return run()

    def capture(self, run: Callable[[], None]) -> None:
        self.run = run

    def replay(self) -> None:
        assert self.run is not None
        self.n_replays += 1
        self.run()


class Recorder(TorchDispatchMode):
    """Writes down every operation: its name, its numbers, and shape, order and place of its tensors.

    Memory that an operation has made is named by the number of the operation; other memory by its address.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, ...]] = []
        self._made: dict[int, int] = {}
        self._kept: list[object] = []  # so that no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        result = func(*args, **(kwargs or {}))
        given = [self._described(leaf) for leaf in tree_leaves((args, kwargs))]
        made = []
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._kept.append(leaf)
                address = _address(leaf)
                if not any(_address(other) == address for other in tree_leaves(args) if isinstance(other, Tensor)):
                    self._made.setdefault(address, len(self.operations))
                made.append(self._described(leaf))
        self.operations.append((str(func), given, made))
        return result

    def _described(self, value: object) -> object:
        if not isinstance(value, Tensor):
            return value if isinstance(value, int | float | str | type(None) | torch.dtype) else str(type(value))
        address = _address(value)
        place = ("made by", self._made[address]) if address in self._made else ("at", address)
        return tuple(value.shape), value.dtype, value.device.type, value.stride(), value.storage_offset(), place


def _address(tensor: Tensor) -> int:
    inner = tensor.inner if isinstance(tensor, OnDevice) else tensor
    return inner.untyped_storage().data_ptr()


def captured(algorithm: Algorithm) -> list[RepeatedWork]:
    """Has an algorithm's updates captured; returns the graphs, which will be made."""
    made: list[RepeatedWork] = []

    def make() -> RepeatedWork:
        made.append(RepeatedWork())
        return made[-1]

    algorithm.capture_updates(lambda generators: GraphedWork(make))
    return made


def fewer_finals(batch: Batch, n: int) -> Batch:
    """The same batch without all but the first n final observations."""
    ((key, columns),) = batch.substeps.items()
    finals = {path: leaf[:n] for path, leaf in columns.final_observation.items()}
    columns = dataclasses.replace(columns, final_observation=finals)
    return dataclasses.replace(batch, substeps={key: columns}, final_index=batch.final_index[:n])


def batches_of(case: Case, device: torch.device | str, update: int) -> list[Batch]:
    batches = case.batches(device, seed=update)
    return [fewer_finals(batch, (2, 2, 0, 2, 2, 1, 2)[update % 7]) for batch in batches]


def trained(case: Case, algorithm: Algorithm, device: str = "cpu") -> tuple[PolicyState, list[dict[str, float]]]:
    """Updates an algorithm; returns its policy, and the metrics of each update."""
    metrics = []
    for update in range(N_UPDATES):
        found = case.update(algorithm, batches_of(case, device, update), progress=update / 10)
        metrics.append({name: float(value) for name, value in found.items()})
    return algorithm.policy_state(), metrics


def assert_same_but_for_rounding(case: Case, one: PolicyState, other: PolicyState, n_updates: int) -> None:
    """Compares two policies after updates of a case `in_proportion`, which began with the same parameters."""
    start = case.make("cpu").policy_state()
    learnt = [name for name in one if name.startswith(("networks.", "log_std."))]
    moved = max(float(np.abs(one[name] - start[name]).max()) for name in learnt)
    assert moved > 1e-3, "updates that move nothing compare nothing"
    # Room for more final observations makes other shapes, so that products and convolutions add in another order.
    step = rounding_bound(torch.float32, n_terms(case, one)) * moved
    for name, array in one.items():
        # A parameter is the sum of where it began and of its steps: at most four an update.
        bound = step + rounding_bound(torch.float32, 1 + 4 * n_updates) * np.abs(array) if name in learnt else 0.0
        worst = np.max(np.abs(other[name].astype(np.float64) - array) - bound, initial=0.0)
        assert worst <= 0.0, f"{name} is {worst:.1e} further away than {np.max(bound):.1e}"


def n_terms(case: Case, state: PolicyState) -> int:
    """Returns how many terms the sums of a gradient have: over rows and pixels, and in each layer, there and back."""
    numbers = sum(leaf.numel() for batch in case.batches("cpu") for leaf in observations(batch))
    n_inputs = sum(array[0].size for name, array in state.items() if name.startswith("networks.") and array.ndim > 1)
    return numbers + 2 * n_inputs * (T if case.spec.state_size else 1)


def observations(batch: Batch) -> list[Tensor]:
    (columns,) = batch.substeps.values()
    parts = (columns.observation, columns.last_observation, columns.final_observation)
    return [leaf for part in parts for leaf in part.values()]


@pytest.mark.slow
@every_case
def test_update_of_fixed_shapes_is_that_of_the_batch_as_it_is(name):
    case = CASES[name].in_proportion()
    plain, algorithm = case.make("cpu"), case.make("cpu")
    graphs = captured(algorithm)
    (expected, plain_metrics), (state, metrics) = trained(case, plain), trained(case, algorithm)
    assert_same_but_for_rounding(case, expected, state, N_UPDATES)
    bound = rounding_bound(torch.float32, n_terms(case, state))
    for one, other in zip(plain_metrics, metrics, strict=True):
        assert other == pytest.approx(one, rel=bound, abs=bound)
    assert [graph.n_replays for graph in graphs] == [N_UPDATES - WARM_UP_UPDATES] * case.n_substeps
    n_updates = N_UPDATES * case.n_substeps
    assert algorithm.take_replayed() == (n_updates - WARM_UP_UPDATES * case.n_substeps, n_updates)
    assert algorithm.take_replayed() == (0, 0), "none since"
    if plain.priorities is not None:
        torch.testing.assert_close(algorithm.priorities, plain.priorities, rtol=bound, atol=bound)


@pytest.mark.slow
@every_case
def test_replayed_update_is_the_same_operations_on_the_same_memory_whatever_the_batch(name, monkeypatch):
    case = CASES[name]
    optimizer = import_module("torch.optim.optimizer")
    known = optimizer._get_capturable_supported_devices()
    monkeypatch.setattr(
        import_module("torch.optim.rmsprop"), "_get_capturable_supported_devices", lambda: [*known, DEVICE.type]
    )
    recorders: list[list[Recorder]] = []
    replay = RepeatedWork.replay

    def recorded(self: RepeatedWork) -> None:
        with Recorder() as recorder:
            replay(self)
        recorders[-1].append(recorder)

    with Accelerator() as accelerator:
        algorithm = case.make(accelerator.device)
        captured(algorithm)
        monkeypatch.setattr(RepeatedWork, "replay", recorded)
        for update in range(WARM_UP_UPDATES + 3):
            recorders.append([])
            with accelerator.counting() as cost:
                case.update(algorithm, batches_of(case, accelerator.device, update), progress=update / 10)
            assert cost.waits == []
    first, *others = [rs for rs in recorders if rs]
    assert len(others) == 2
    for other in others:
        for one, two in zip(first, other, strict=True):
            assert len(one.operations) > 50
            assert two.operations == one.operations
    places = [given for r in first for _, inputs, _ in r.operations for given in inputs if isinstance(given, tuple)]
    assert {place[2] for place in places} == {DEVICE.type}, "a graph copies nothing from the host"


def test_number_of_the_host_in_the_work_is_found():
    recorders = []
    for factor in (1.0, 2.0):
        with Recorder() as recorder:
            torch.ones(3) * factor
        recorders.append(recorder.operations)
    assert recorders[0] != recorders[1]


# -- what is captured when --


def impala() -> tuple[Impala, list[RepeatedWork]]:
    algorithm = CASES["impala"].make("cpu")
    assert isinstance(algorithm, Impala)
    return algorithm, captured(algorithm)


def batch_with(n_finals: int, *, n_steps: int = 8, n_envs: int = 4, seed: int = 0) -> Batch:
    """Trajectories `[T, B]` with so many final observations."""
    index = torch.tensor([(i // n_envs, i % n_envs) for i in range(n_finals)], dtype=torch.int64).view(-1, 2)
    truncated = torch.zeros(n_steps, n_envs, dtype=torch.bool)
    truncated[tuple(index.T)] = True
    finals = torch.randn(n_finals, 3, generator=torch.Generator().manual_seed(seed))
    return make_batch(
        n_steps=n_steps, n_envs=n_envs, seed=seed, truncated=truncated, final_index=index, final_observation=finals
    )


def update_times(algorithm: Algorithm, batch: Batch, n: int) -> None:
    for _ in range(n):
        algorithm.update(batch, progress=0.0)


def test_more_final_observations_than_there_is_room_for_are_captured_anew():
    algorithm, graphs = impala()
    update_times(algorithm, batch_with(3), WARM_UP_UPDATES + 1)
    update_times(algorithm, batch_with(8), 1)
    assert len(graphs) == 1, "there was room for them"
    update_times(algorithm, batch_with(9), WARM_UP_UPDATES + 1)
    update_times(algorithm, batch_with(3), 1)
    assert [graph.n_replays for graph in graphs] == [2, 2], "the larger one is used from then on"


def test_each_trajectory_may_have_a_final_observation_in_the_first_graph():
    algorithm, graphs = impala()
    for n_finals in (0, 16):
        update_times(algorithm, batch_with(n_finals, n_envs=16), WARM_UP_UPDATES + 1)
    assert [graph.n_replays for graph in graphs] == [WARM_UP_UPDATES + 2]


def test_final_observations_that_double_need_few_graphs():
    algorithm, graphs = impala()
    for n_finals in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        update_times(algorithm, batch_with(n_finals, n_steps=64), 1)
    assert len(graphs) == 3, "room for 8, 64, 256: that is every row"


def test_shapes_that_never_settle_end_the_capturing_with_one_warning(caplog):
    algorithm, graphs = impala()
    for n_steps in range(1, MAX_GRAPHS + 4):
        update_times(algorithm, batch_with(0, n_steps=n_steps), 1)
    assert len(graphs) == MAX_GRAPHS
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "updates run without CUDA graphs from now on, which is slower but equally correct: batches have more than "
        f"{MAX_GRAPHS} shapes"
    ]
    assert algorithm.n_updates == MAX_GRAPHS + 3


def test_capture_that_fails_changes_nothing_and_is_told_once(caplog, monkeypatch):
    def fail(self: RepeatedWork, run: Callable[[], None]) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(RepeatedWork, "capture", fail)
    case = CASES["impala"].in_proportion()
    plain, algorithm = case.make("cpu"), case.make("cpu")
    graphs = captured(algorithm)
    for each in (plain, algorithm):
        update_times(each, batch_with(3), WARM_UP_UPDATES + 3)
    assert_same_but_for_rounding(case, plain.policy_state(), algorithm.policy_state(), WARM_UP_UPDATES + 3)
    assert [graph.n_replays for graph in graphs] == [0]
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.endswith("the capture failed: RuntimeError: operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda loss: loss.item(), "_local_scalar_dense"),
        (lambda loss: loss[None].nonzero(), "nonzero"),
        (lambda loss: loss[None][loss[None] > 0], "index"),
        (lambda loss: torch.tensor([1.0], device=loss.device), "_to_copy"),
        (lambda loss: torch.empty_like(loss).copy_(torch.ones(())), "copy_"),
        (lambda loss: torch.ones_like(loss)[None].index_put_((loss[None].long(),), torch.zeros(())), "index_put_"),
    ],
)
def test_update_that_waits_is_never_captured(spoil, found, caplog, monkeypatch):
    case = CASES["dqn"]
    with Accelerator() as accelerator:
        algorithm, batches = case.make(accelerator.device), case.batches(accelerator.device)
        graphs = captured(algorithm)
        monkeypatch.setattr(DivergenceWatch, "observe", lambda self, loss, norm: spoil(loss.detach()))
        for _ in range(WARM_UP_UPDATES + 2):
            case.update(algorithm, batches)
    assert [graph.run for graph in graphs] == [None], "its capture would have failed"
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.endswith(f"they wait for the device, or copy from main memory: {found}")


def test_error_of_the_batch_is_raised_as_without_graphs():
    algorithm, _ = impala()
    update_times(algorithm, batch_with(3), WARM_UP_UPDATES + 1)
    batch = batch_with(3)
    with pytest.raises(RollcastError, match="substep"):
        algorithm.update(dataclasses.replace(batch, substeps={"other": batch.substeps[FLAT_SUBSTEP]}), progress=0.0)


def test_batch_without_a_transition_is_not_captured():
    algorithm, graphs = impala()
    batch = batch_with(0)
    nothing = dataclasses.replace(batch, valid=torch.zeros_like(batch.valid), n_env_steps=0)
    update_times(algorithm, nothing, WARM_UP_UPDATES + 1)
    assert graphs == []


def test_metrics_and_priorities_stay_when_the_next_update_is_replayed():
    case = CASES["dqn"]
    algorithm = case.make("cpu")
    captured(algorithm)
    kept = []
    for update in range(WARM_UP_UPDATES + 2):
        metrics = case.update(algorithm, case.batches("cpu", seed=update))
        kept.append((metrics["loss"], float(metrics["loss"]), algorithm.priorities, algorithm.priorities.clone()))
    for loss, value, priorities, copy in kept:
        assert float(loss) == value
        assert torch.equal(priorities, copy)


def test_checkpoint_is_loaded_into_new_graphs(tmp_path):
    case = CASES["impala: rmsprop, normalised advantages"].in_proportion()
    plain, algorithm = case.make("cpu"), case.make("cpu")
    graphs = captured(algorithm)
    for each in (plain, algorithm):
        trained(case, each)
        each.save(tmp_path / str(each is plain))
        each.load(tmp_path / str(each is plain))
        trained(case, each)
    assert len(graphs) == 2
    assert_same_but_for_rounding(case, plain.policy_state(), algorithm.policy_state(), 2 * N_UPDATES)


def test_divergence_is_found_in_replayed_updates():
    algorithm, _ = impala()
    update_times(algorithm, batch_with(3), WARM_UP_UPDATES + 1)
    batch = batch_with(3)
    with pytest.raises(RollcastError, match="Training diverged"):
        algorithm.update(dataclasses.replace(batch, reward=batch.reward * float("nan")), progress=0.0)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("ppo", {"target_kl": 0.01}, "--ppo.target-kl makes the host wait"),
        ("sac: box", {"n_critics": 4, "target_critics": 2}, "--sac.target-critics draws other critics"),
    ],
)
def test_what_the_host_decides_is_not_captured(name, settings, reason):
    case = dataclasses.replace(CASES[name], settings={**CASES[name].settings, **settings})
    assert case.make("cpu").why_not_captured().startswith(reason)
    independent = dataclasses.replace(case, n_substeps=2).make("cpu")
    assert independent.why_not_captured().startswith(reason)


# -- what torch remembers, on a stand-in for torch.cuda --


def fail() -> None:
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("version", ["2.6", "2.8", "2.12"])
def test_capture_that_fails_leaves_neither_memory_nor_generators_in_it(version, monkeypatch):
    cuda = StandInCuda(monkeypatch, version)
    generators = [Generator(), Generator()]
    drawn([*generators, cuda.default])
    graph = CudaGraph(cuda.device, generators)
    with pytest.raises(RuntimeError, match="during capture"):
        graph.capture(fail)
    assert cuda.captures_underway == [], "the allocator would free no block that another stream has used"
    assert drawn([*generators, cuda.default]) == [8, 8, 8]
    other = CudaGraph(cuda.device, generators)
    other.capture(lambda: None)
    other.replay()
    assert drawn(generators) == [12, 12]


def test_graphs_of_a_device_share_memory_as_long_as_there_is_one(monkeypatch):
    cuda = StandInCuda(monkeypatch)

    def captured_graph() -> CudaGraph:
        graph = CudaGraph(cuda.device, [])
        graph.capture(lambda: None)
        return graph

    graphs = [captured_graph() for _ in range(3)]
    assert list(cuda.n_graphs.values()) == [3]
    warming_up = CudaGraph(cuda.device, [])
    del graphs
    gc.collect()
    warming_up.capture(lambda: None)  # torch refuses the memory of graphs that are gone
    assert list(cuda.n_graphs.values()) == [0, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].make("cpu").why_not_captured() is None])
def test_captured_update_on_a_gpu_is_the_one_that_runs_as_it_is(name, caplog):
    case = CASES[name]
    plain, algorithm = case.make("cuda"), case.make("cuda")
    algorithm.capture_updates(lambda generators: GraphedWork(lambda: CudaGraph(torch.device("cuda", 0), generators)))
    # TF32 would add to what two runs differ by, in convolutions alone: torch allows it there by itself.
    with tf32_as_it_was(allowed=False):
        (expected, plain_metrics), (state, metrics) = trained(case, plain, "cuda"), trained(case, algorithm, "cuda")
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
    for array_name, array in expected.items():
        np.testing.assert_allclose(state[array_name], array, rtol=1e-4, atol=1e-4, err_msg=array_name)
    for one, other in zip(plain_metrics, metrics, strict=True):
        assert other == pytest.approx(one, rel=1e-2, abs=1e-3)
