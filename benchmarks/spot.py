"""Measures what actors on spot machines lose when a third of them is taken every minute.

    python -m benchmarks.spot [--rounds 3] [--interval-s 60] [--actors 20] [--step-s 0.02]

In turns, a period in peace and one at whose beginning a third of the actors gets SIGTERM, all at once, while as many
others start. The figure is rollouts a second of a living actor: what the learner accepted in the period, divided by
the time that actors were alive in it, each from its stream to its SIGTERM. A machine that boots is not alive; the
time from its stream to its first rollout, and a rollout that SIGTERM cuts off, are lost. The ratio is the median of
the ratios of all rounds.

The actors share the cores of this machine, and on spot machines they would not. So an environment's step waits for
`--step-s` instead of computing, as for a simulator, and actors are forked from a process that has imported
everything. Every rollout is compared with what its environments must have shown, and every acknowledgement with what
was accepted: the exit code is 1 if anything was lost, accepted twice, out of order or damaged, or an actor did not end
within 30 s with exit code 0.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.table import Figure, print_table
from tests.chaos.spot import run_spot


def main() -> int:
    """Measures, prints the table and the books; returns 1 if something was lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spot", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="pairs of periods, in peace and with preemptions")
    parser.add_argument("--interval-s", type=float, default=60.0, help="seconds between two preemptions")
    parser.add_argument("--actors", type=int, default=20, help="number of actors")
    parser.add_argument("--step-s", type=float, default=0.02, help="seconds that a step of an environment takes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollcast-spot-") as folder:
        report, rounds = run_spot(
            Path(folder),
            n_actors=options.actors,
            n_rounds=options.rounds,
            interval_s=options.interval_s,
            step_s=options.step_s,
        )
    rows = [
        (
            str(number),
            Figure([peace.rate], ".3f"),
            Figure([spot.rate], ".3f"),
            Figure([spot.alive_s / (options.actors * spot.seconds)], ".1%"),
            Figure([spot.rate / peace.rate], ".3f"),
        )
        for number, (peace, spot) in enumerate(rounds, 1)
    ]
    header = ("round", "in peace", f"{rounds[0][1].n_taken} of {options.actors} taken", "of the time alive", "ratio")
    print_table(header, rows)
    ratios = [spot.rate / peace.rate for peace, spot in rounds]
    print(f"\nratio: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})\n\n{report}")
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
