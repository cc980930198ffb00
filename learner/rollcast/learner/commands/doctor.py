"""`rollcast doctor`: finds out what is wrong with a run, and what to do."""

from collections.abc import Sequence
from typing import IO

from rollcast.learner.commands.diagnosis import Finding, Severity, diagnose
from rollcast.learner.commands.printing import print_json, print_line
from rollcast.learner.settings.status import DoctorSettings
from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError
from rollcast.services.version import software_version


def doctor(settings: DoctorSettings, output: IO[str]) -> int:
    """Asks the learner, prints what is wrong, and returns the exit code: 0 if nothing is wrong, else 1."""
    try:
        with LearnerClient(
            settings.address, timeout_s=settings.timeout_s, security=settings.client_security()
        ) as client:
            status, actors = client.status(), client.actors()
    except LearnerUnreachableError as error:
        findings, summary = [_unreachable(settings, error)], f"no answer from {settings.address}"
    else:
        findings = diagnose(status, actors, own_version=software_version())
        summary = (
            f"{status.phase.name.lower()}, {status.env_steps:,} steps, {status.updates:,} updates, policy "
            f"{status.policy_version}, {status.actors_alive} actors"
        )
    if settings.json_output:
        document = {"summary": summary, "findings": [_as_json(finding) for finding in findings]}
        print_json(output, document)
    else:
        _print(output, summary, findings)
    return int(any(finding.severity is Severity.WRONG for finding in findings))


def _unreachable(settings: DoctorSettings, error: LearnerUnreachableError) -> Finding:
    return Finding(
        severity=Severity.WRONG,
        what=f"{error}",
        advice=f"check that the learner runs, listens at {settings.address}, and is not behind a firewall",
    )


def _print(output: IO[str], summary: str, findings: Sequence[Finding]) -> None:
    lines = [summary]
    for finding in findings:
        lines += [f"{finding.severity.value + ':':<7}{finding.what}", f"{'':<7}{finding.advice}"]
    if not findings:
        lines.append("nothing is wrong")
    for line in lines:
        print_line(output, line)


def _as_json(finding: Finding) -> dict[str, str]:
    return {"severity": finding.severity.value, "what": finding.what, "advice": finding.advice}
