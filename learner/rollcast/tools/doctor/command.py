"""`rollcast doctor`: finds the problems of a run, and suggests remedies."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from rollcast.learner.checkpoints.listing import RunState, has_finished, state_of
from rollcast.learner.commands.printing import print_json, print_line
from rollcast.learner.health.doctor import read_run
from rollcast.learner.health.rules import MIN_EPISODES, evaluator_skips, find, goal_missed
from rollcast.learner.runs.directory import RunDirectory
from rollcast.learner.writers.metric_names import EVAL_EVALUATIONS, EVAL_SKIPPED, UPDATES
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError
from rollcast.services.status.numbers import counted
from rollcast.services.status.status import Phase
from rollcast.services.version import software_version
from rollcast.tools.doctor.diagnosis import Finding, Severity, diagnose, judged
from rollcast.tools.settings import DoctorSettings

# The next step of the user if too few episodes have ended.
_NEXT: Final[Mapping[RunState, str]] = {
    "training": "ask again later",
    "serving": "stop the learner and resume with more --total-steps, or give the environment a time limit if its "
    "episodes are long",
    "finished": "resume the run with more --total-steps, or give the environment a time limit if its episodes are long",
    "stopped": "continue the run with --resume",
    "empty": "begin the run again with --resume",
}
# The states of the runs of learners that no longer train.
_ENDED: Final[Mapping[Phase, RunState]] = {Phase.STOPPING: "stopped", Phase.FINISHED: "finished"}
_NO_CHECKPOINT: Final = Finding(
    severity=Severity.NOTE,
    what="the run ended before its first checkpoint: it has failed, or its process was killed",
    advice="begin it again with --resume, in its folder and with its settings; a lower --checkpoint-interval-s gives "
    "an earlier checkpoint",
)


@dataclass(frozen=True, slots=True)
class _Judgement:
    """The basis for a judgement of learning: enough episodes must have ended.

    Attributes:
        n_episodes: The number of episodes that have ended.
        state: The state of the run.
    """

    n_episodes: int
    state: RunState

    @property
    def is_possible(self) -> bool:
        """True if enough episodes have ended."""
        return self.n_episodes >= MIN_EPISODES

    @property
    def reason(self) -> str:
        """The reason why a judgement is not possible, and what to do."""
        trains = self.state == "training"
        return (
            f"{'it is too early to tell whether the run learns' if trains else 'nothing shows whether the run learnt'}"
            f": {counted(self.n_episodes, 'episode has', 'episodes have')} ended; expected at least {MIN_EPISODES}; "
            f"{_NEXT[self.state]}"
        )


def doctor(settings: DoctorSettings, output: IO[str]) -> int:
    """Asks the learner, or reads a run's folder, prints the problems, and returns the exit code.

    Returns:
        1 if a finding is `WRONG`, else 0.

    Raises:
        ConfigurationError: The folder is not a run directory.
    """
    judgement, findings, summary = _ask(settings) if settings.run is None else _read(settings.run)
    # The exit code is that of the findings, even if the reader has read enough.
    with contextlib.suppress(SystemExit):
        if settings.json_output:
            document = {
                "summary": summary,
                "learning_is_judged": judgement is not None and judgement.is_possible,
                "findings": [_as_json(finding) for finding in findings],
            }
            print_json(output, document)
        else:
            _print(output, summary, findings, judgement)
    return int(any(finding.severity is Severity.WRONG for finding in findings))


def _ask(settings: DoctorSettings) -> tuple[_Judgement | None, list[Finding], str]:
    """Asks the learner; returns whether learning is judged (None without a trainer), the findings, and a summary."""
    try:
        with LearnerClient(
            settings.address, timeout_s=settings.timeout_s, security=settings.client_security()
        ) as client:
            status, actors = client.status(), client.actors()
    except LearnerUnreachableError as error:
        return None, [_unreachable(settings, error)], f"no answer from {settings.address}"
    summary = (
        f"{status.phase.name.lower()}, {_progress(status.env_steps, status.updates)}, policy {status.policy_version}, "
        f"{counted(status.actors_alive, 'actor')}"
    )
    # `rollcast replay serve` has no trainer
    judgement = _Judgement(status.episodes, _ENDED.get(status.phase, "training")) if status.algorithm else None
    return judgement, diagnose(status, actors, own_version=software_version()), summary


def _read(path: Path) -> tuple[_Judgement, list[Finding], str]:
    """Reads a run's folder; returns the same as `_ask`."""
    run = RunDirectory(path)
    read, state = read_run(run), state_of(run)
    summary = f"{state}, {_progress(read.newest('env_steps') or 0, read.newest(UPDATES.tag) or 0)}"
    skips = evaluator_skips(int(read.newest(EVAL_EVALUATIONS.tag) or 0), int(read.newest(EVAL_SKIPPED.tag) or 0))
    missed = goal_missed(read) if has_finished(state) else ()
    findings = [*([_NO_CHECKPOINT] if state == "empty" else []), *judged([*missed, *find(read), *skips])]
    return _Judgement(read.episodes, state), findings, summary


def _progress(env_steps: float, updates: float) -> str:
    return f"{counted(env_steps, 'step')}, {counted(updates, 'update')}"


def _unreachable(settings: DoctorSettings, error: LearnerUnreachableError) -> Finding:
    return Finding(
        severity=Severity.WRONG,
        what=f"{error}",
        advice=f"check that the learner runs, listens at {settings.address}, and is not behind a firewall",
    )


def _print(output: IO[str], summary: str, findings: Sequence[Finding], judgement: _Judgement | None) -> None:
    lines = [summary]
    for finding in findings:
        lines += [f"{finding.severity.value + ':':<7}{finding.what}", f"{'':<7}{finding.advice}"]
    if not findings:
        lines.append("nothing is wrong")
    if judgement is not None and not judgement.is_possible:
        lines.append(judgement.reason)
    for line in lines:
        print_line(output, line)


def _as_json(finding: Finding) -> dict[str, str]:
    return {"severity": finding.severity.value, "what": finding.what, "advice": finding.advice}
