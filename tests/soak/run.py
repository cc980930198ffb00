"""One soak: crews at work, looked at every few seconds."""

import contextlib
import signal
import time
from pathlib import Path

from tests.soak.fleet import make_crews
from tests.soak.samples import Sample, SampleFile, read_samples, take_samples

_N_ACTORS = 2


def run_soak(
    folder: Path,
    samples_path: Path,
    *,
    seconds: float,
    warm_up_s: float,
    interval_s: float = 5.0,
    leave_every_s: float = 45.0,
    step_s: float = 1e-3,
) -> tuple[list[Sample], list[str]]:
    """Lets learners learn, and looks at every process.

    Args:
        samples_path: Where the samples go, as they are taken.
        warm_up_s: From then on, the learners must have gone on by the end.
        interval_s: Seconds between two looks.
        leave_every_s: Seconds between two comings or goings of the actors that do not stay.

    Returns:
        The samples, and what went wrong: processes that ended, learners that did not go on.
    """
    wrong: list[str] = []
    with contextlib.ExitStack() as stack:
        crews = make_crews(folder, step_s=step_s)
        for crew in crews:
            stack.callback(lambda crew=crew: wrong.extend(crew.stop()))
        for crew in crews:
            crew.start(_N_ACTORS)
        file = stack.enter_context(samples_path.open("w", newline=""))
        writer = SampleFile(file)
        started = time.monotonic()
        n_looks = n_changes = 0
        updates: list[int] | None = None
        while (now := time.monotonic() - started) < seconds and not wrong:
            if updates is None and now >= warm_up_s:
                updates = [crew.status().updates for crew in crews]
            if now >= (n_changes + 1) * leave_every_s:
                for crew in crews:
                    if n_changes % 2:
                        crew.come()
                    else:
                        # by turns: an actor that says goodbye, and one that does not
                        crew.leave(signal.SIGKILL if n_changes % 4 else signal.SIGTERM)
                n_changes += 1
            time_s = round(now, 1)
            for crew in crews:
                wrong += crew.ended()
                for name, process in crew.steady.items():
                    writer.write(take_samples(name, process.pid, time_s))
            n_looks += 1
            # the time between two looks is what is wanted, not a state
            time.sleep(max(0.0, started + n_looks * interval_s - time.monotonic()))
        if not wrong and updates is not None:
            for crew, before in zip(crews, updates, strict=True):
                n_updates = crew.status().updates
                if n_updates <= before:
                    wrong.append(f"{crew.name}: {n_updates} updates at the end, {before} when the warm-up ended")
    return read_samples(samples_path), wrong
