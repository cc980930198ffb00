import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from tests.simulation.__main__ import lines, start
from tests.simulation.found import FOUND, FOUND_SEEDS
from tests.simulation.instrument import ROOT
from tests.simulation.put_in_faults import FAULTS

pytestmark = pytest.mark.slow

SYSTEM = ("system", "durable", "in rounds", "evaluated", "replay")
PARTS = ("queue", "credits", "rounds", "limiter", "subscribers", "bytes")
REPEATED = "system:4:7"
# Some of them wait with a timeout for an item of a queue.
ALSO_REPEATED = "evaluated:15"


def without_times(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what must be the same in every process."""
    return [line | {"seconds": 0.0, "cpu_s": 0.0} for line in found]


def failures(found: Iterable[dict[str, Any]]) -> list[str]:
    """Returns how those schedules that failed are run again."""
    return [f"{line['world']}, seed {line['seed']}: {line['failure']}" for line in found if "failure" in line]


@pytest.fixture(scope="module")
def of_one_process() -> list[dict[str, Any]]:
    """Returns what a process says of schedules: of fixed seeds, of the commit's, and of all that have failed once."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    seed = int(commit[:10] or "0", 16)
    asked = [REPEATED, f"found:{len(FOUND) + len(FOUND_SEEDS)}"]
    asked += [f"{name}:15" for name in SYSTEM] + [f"{name}:300" for name in PARTS]
    asked += [f"{name}:6:{seed}" for name in SYSTEM + PARTS]
    return list(lines(start("--worlds", ",".join(asked), "--first-seed", 0)))


def test_schedules_lose_nothing_and_end(of_one_process: list[dict[str, Any]]):
    assert failures(of_one_process) == []
    n_schedules = Counter[str]()
    for line in of_one_process:
        n_schedules[line["world"]] += line["schedules"]
    assert n_schedules["system"] == 4 + 15 + 6
    assert {n_schedules[name] for name in SYSTEM[1:]} == {15 + 6}
    assert {n_schedules[name] for name in PARTS} == {300 + 6}
    assert n_schedules["found"] == len(FOUND) + len(FOUND_SEEDS)


def test_a_server_that_has_not_noticed_a_cut_connection_does_not_send_for_ever():
    found = list(lines(start("--worlds", "replay:1:154,replay:1:185", "--first-seed", 0)))
    assert failures(found) == []
    assert sum(line["schedules"] for line in found) == 2


def test_a_seed_gives_the_same_schedules_in_another_process(of_one_process: list[dict[str, Any]]):
    again = without_times(lines(start("--worlds", f"{REPEATED},{ALSO_REPEATED}", "--first-seed", 0)))
    assert [line["schedules"] for line in again] == [4, 15]
    first = [next(line for line in of_one_process if line["world"] == name) for name in ("system", "evaluated")]
    assert without_times(first) == again


def test_the_program_prints_a_table_of_its_schedules():
    command = [sys.executable, "-m", "tests.simulation", "--worlds", "queue,bytes"]
    command += ["--schedules", "20", "--processes", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:4]]
    assert [row[:2] for row in rows] == [["queue", "20"], ["bytes", "20"], ["all", "40"]]
    # the schedules a minute, and a second of a core
    assert all(int(figure.replace(",", "")) > 0 for row in rows for figure in row[4:6])


def test_some_of_every_switch_of_small_cases_lose_nothing_and_end():
    # Every 97th, so that they are of all cases.
    options = ("--every-switch", "--first-seed", 0, "--every", 97, "--schedules", 20)
    found = list(lines(start("--worlds", ",".join(("system", *PARTS)), *options)))
    assert failures(found) == []
    assert 3 < {line["world"]: line["schedules"] for line in found}["queue"] <= 20
    assert len(found) == 7


@pytest.mark.parametrize(
    "name",
    [
        "a rollout is acknowledged before the queue has it",
        "a reopened stream resends no rollout",
        "a closed stream keeps its reservations",
    ],
)
def test_a_fault_that_is_put_in_is_found(name: str):
    (fault,) = (each for each in FAULTS if each.name == name)
    options = ("--worlds", fault.world, "--first-seed", 0, "--schedules", 3000, "--failures", 1)
    # one of them is shrunk as well
    shrink_s = 5 if fault.name == "a closed stream keeps its reservations" else 0
    assert failures(lines(start(*options, "--fault", name, "--shrink-seconds", shrink_s)))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_can_still_be_put_in(fault):
    assert (ROOT / fault.path).read_text().count(fault.right) == 1
