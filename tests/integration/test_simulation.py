import subprocess
import sys

import pytest

from tests.simulation.__main__ import lines, start
from tests.simulation.found import FOUND, FOUND_SEEDS
from tests.simulation.instrument import ROOT
from tests.simulation.put_in_faults import FAULTS

pytestmark = pytest.mark.slow

SYSTEM = "system,durable,in rounds,evaluated,replay"
PARTS = "queue,credits,rounds,limiter,subscribers,bytes"


def failures(*options: object) -> list[str]:
    """Runs schedules, and returns how those that failed are run again."""
    found = lines(start(*options))
    return [f"{line['world']}, seed {line['seed']}: {line['failure']}" for line in found if "failure" in line]


@pytest.mark.parametrize(("worlds", "n"), [(SYSTEM, 15), (PARTS, 300)])
def test_schedules_of_fixed_seeds_lose_nothing_and_end(worlds: str, n: int):
    assert failures("--worlds", worlds, "--first-seed", 0, "--schedules", n) == []


def test_the_program_prints_a_table_of_its_schedules():
    command = [sys.executable, "-m", "tests.simulation", "--worlds", "queue,bytes", "--schedules", "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:3]] == [["queue", "20"], ["bytes", "20"]]


def test_what_was_found_once_stays_mended():
    assert failures("--worlds", "found", "--first-seed", 0, "--schedules", len(FOUND) + len(FOUND_SEEDS)) == []


def test_schedules_whose_seed_is_the_commit_lose_nothing_and_end():
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    seed = int(commit[:10] or "0", 16)
    assert failures("--worlds", f"{SYSTEM},{PARTS}", "--first-seed", seed, "--schedules", 6) == []


def test_some_of_every_switch_of_small_cases_lose_nothing_and_end():
    # Every 97th, so that they are of all cases.
    options = ("--every-switch", "--first-seed", 0, "--every", 97, "--schedules", 20)
    found = list(lines(start("--worlds", f"system,{PARTS}", *options)))
    assert [line for line in found if "failure" in line] == []
    assert 3 < {line["world"]: line["schedules"] for line in found}["queue"] <= 20
    assert len(found) == 7


def test_a_seed_gives_the_same_schedule_each_time():
    runs = [
        [line | {"seconds": 0.0} for line in lines(start("--worlds", "system", "--first-seed", 7, "--schedules", 4))]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[0][0]["schedules"] == 4


@pytest.mark.parametrize(
    "name",
    [
        "a rollout is acknowledged before the queue has it",
        "a stream that is opened again sends nothing again",
        "what a closed stream reserved is not given back",
    ],
)
def test_a_fault_that_is_put_in_is_found(name: str):
    (fault,) = (each for each in FAULTS if each.name == name)
    options = ("--worlds", fault.world, "--first-seed", 0, "--schedules", 3000, "--failures", 1)
    # one of them is shrunk as well
    shrink_s = 5 if fault.name == "what a closed stream reserved is not given back" else 0
    assert failures(*options, "--fault", name, "--shrink-seconds", shrink_s)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_can_still_be_put_in(fault):
    assert (ROOT / fault.path).read_text().count(fault.right) == 1
