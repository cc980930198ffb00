"""Diagnoses a run from its learner's status: waits and problems, each with advice."""

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from rollcast.services.address import shown_peer
from rollcast.services.status.numbers import counted
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, LearningFinding, Phase

# Shorter waits are normal.
_LONG_WAIT_S = 10.0
# An actor is quiet for too long after this many times the others' median, and at least this many seconds.
_TIMES_THE_OTHERS = 5.0
_QUIET_S = 30.0
# Fractions of the trainer's time spent waiting: above the first the actors are slow, below the second the learner.
_ACTORS_ARE_SLOW, _LEARNER_IS_SLOW = 0.5, 0.05

# Advice for limits that a correct client can meet.
_LIMIT_ADVICE: Final = {
    "max_actors": "stop an actor, or raise --max-actors",
    "max_streams": "end some clients that watch or subscribe, or raise --max-actors",
    "max_bytes_in_flight": "the client waits until the learner has taken earlier rollouts: raise "
    "--limits.max-bytes-in-flight if there is memory, or make rollouts smaller",
    "max_rollout_bytes": "make rollouts smaller, or raise --limits.max-rollout-bytes",
    "calls_per_second": "find out which client calls so often, or raise --limits.calls-per-second",
    "calls_per_second_per_host": "find out which program there calls so often, or raise "
    "--limits.calls-per-second-per-host",
    "max_calls": "find out which client calls so often, or raise --max-actors",
    "max_half_open_calls": "its calls sent no request: find out which program makes them, or raise "
    "--limits.max-half-open-calls",
    "max_half_open_calls_per_host": "its calls sent no request: find out which program makes them, or raise "
    "--limits.max-half-open-calls-per-host",
    "request_s": "its calls sent no request: find out which program makes them, or raise --limits.request-s",
    "stalled_stream_s": "the server ended its call: find out why the client neither sends nor reads, or raise "
    "--limits.stalled-stream-s",
}


class Severity(enum.Enum):
    """The severity of a finding."""

    WRONG = "wrong"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding of the diagnosis.

    Attributes:
        severity: `WRONG` if training has stopped or an actor is missing; `NOTE` if training could be faster or better.
        what: The finding, with its numbers.
        advice: The action that solves the problem.
    """

    severity: Severity
    what: str
    advice: str


def diagnose(status: LearnerStatus, actors: Sequence[ActorInfo], *, own_version: str) -> list[Finding]:
    """Diagnoses a run.

    Args:
        status: The learner's status.
        actors: All actors that have joined so far.
        own_version: The version of rollcast that runs this command.

    Returns:
        The findings, the worst first; empty if nothing is wrong.
    """
    found = [
        *_waits(status, actors),
        *_missing(status, actors),
        *_quiet(actors),
        *_lost_work(status),
        *_evaluation(status),
        *_throttled(status),
        *_versions(status, actors, own_version),
        *_balance(status),
        *judged(status.findings),
    ]
    return sorted(found, key=lambda finding: finding.severity is Severity.NOTE)


def judged(findings: Iterable[LearningFinding]) -> Iterator[Finding]:
    """Yields the problems of training as notes, because rules may err and training continues."""
    for finding in findings:
        yield _note(finding.what, finding.advice)


def _waits(status: LearnerStatus, actors: Sequence[ActorInfo]) -> Iterator[Finding]:
    if status.phase is Phase.PAUSED:
        yield _wrong(
            f"training has been paused for {status.waiting_s:.0f} s",
            "call Resume (LearnerClient.resume) to continue",
        )
    elif status.phase is Phase.STARTING:
        yield _wrong(
            f"training has not begun: the learner waits for {status.waiting_for or 'its start to finish'}",
            "remove the cause of this wait, or read the learner's log",
        )
    elif status.waiting_for and status.waiting_s >= _LONG_WAIT_S:
        streaming = [info for info in actors if info.state is ActorState.STREAMING]
        advice = (
            "start actors: rollcast actor --learner-address HOST:PORT"
            if not streaming
            else "see the actors below: their environments are slow or hang, or the actors wait"
        )
        yield _wrong(f"the trainer has waited {status.waiting_s:.0f} s for {status.waiting_for}", advice)
    for wait in status.replay.waiting if status.replay is not None else ():
        if wait.seconds >= _LONG_WAIT_S:
            yield _wrong(
                f"{wait.who or 'a reader'} has waited {wait.seconds:.0f} s at the replay buffer: {wait.reason}",
                "make the other side faster, or change the rate limiter (--replay.samples-per-insert, "
                "--replay.error-buffer, --replay.min-size)",
            )


def _missing(status: LearnerStatus, actors: Sequence[ActorInfo]) -> Iterator[Finding]:
    somebody_plays = any(info.state is ActorState.STREAMING for info in actors)
    for info in actors:
        if info.state in (ActorState.LOST, ActorState.FAILED, ActorState.REFUSED):
            if info.last_error:
                why, advice = f": {info.last_error}", "fix the error and restart the actor, or read its log"
            else:
                why, advice = (
                    "; it gave no reason",
                    "its process, machine or network has failed: start another actor, or read its log",
                )
            yield Finding(
                severity=Severity.NOTE if somebody_plays else Severity.WRONG,
                what=f"actor {info.actor_id} (slot {info.slot}) is {info.state.name.lower()}, for {info.idle_s:.0f} s"
                f"{why}",
                advice=advice,
            )
    if status.actors_alive < status.actors_expected:
        yield _wrong(
            f"{status.actors_alive} of {counted(status.actors_expected, 'actor is', 'actors are')} alive",
            "the learner restarts a local actor after a delay; its log shows why the actor ended",
        )


def _quiet(actors: Sequence[ActorInfo]) -> Iterator[Finding]:
    streaming = [info for info in actors if info.state is ActorState.STREAMING]
    for info in streaming:
        others = [other.idle_s for other in streaming if other is not info]
        limit = max(_QUIET_S, _TIMES_THE_OTHERS * median(others)) if others else _QUIET_S
        if info.idle_s > limit:
            yield _wrong(
                f"actor {info.actor_id} at {shown_peer(info.peer) or 'an unknown peer'} has sent no rollout for "
                f"{info.idle_s:.0f} s; the median of the others is {median(others) if others else 0.0:.0f} s",
                "its environments are slow or hang (--step-timeout-s ends the actor and shows where), or its machine "
                "is down",
            )


def _lost_work(status: LearnerStatus) -> Iterator[Finding]:
    if status.rejected_rollouts:
        yield _wrong(
            f"{counted(status.rejected_rollouts, 'rollout was', 'rollouts were')} refused as invalid",
            "the learner's log and the actor's last error name actor, column and index",
        )
    if status.stale_trajectories:
        yield _note(
            f"{counted(status.stale_trajectories, 'trajectory was', 'trajectories were')} dropped as stale",
            "these trajectories were played for an earlier learner, came from actors that PPO did not wait for (see "
            "the learner's log), or exceed --max-policy-lag: raise it, or use actors of equal speed",
        )
    if status.dropped_episodes:
        yield _note(
            f"{counted(status.dropped_episodes, 'episode was', 'episodes were')} dropped, "
            f"{counted(status.episodes, 'has', 'have')} ended",
            "the environment raises errors in steps: see tracebacks and seeds in the actors' logs",
        )


def _evaluation(status: LearnerStatus) -> Iterator[Finding]:
    evaluation = status.evaluation
    if evaluation is None or status.phase is not Phase.TRAINING:
        return
    if not evaluation.evaluators_alive:
        why = f"; the last one failed: {evaluation.last_error}" if evaluation.last_error else ""
        yield _wrong(
            f"no evaluator is connected, but the run evaluates policies{why}",
            "start an evaluator: rollcast actor --role evaluate --learner-address HOST:PORT; a local one restarts "
            "automatically",
        )


def _throttled(status: LearnerStatus) -> Iterator[Finding]:
    for met in status.throttled:
        advice = _LIMIT_ADVICE.get(met.limit, "fix the client: docs/reference/limits.md explains the limit")
        times = counted(met.times, "time")
        yield _note(f"{met.who} met the limit {met.limit} {times}, last {met.idle_s:.0f} s ago", advice)


def _versions(status: LearnerStatus, actors: Sequence[ActorInfo], own_version: str) -> Iterator[Finding]:
    versions = {"the learner": status.software_version, "this command": own_version}
    versions |= {
        f"actor {info.actor_id}": info.software_version for info in actors if info.state is ActorState.STREAMING
    }
    different = {who: version for who, version in versions.items() if version and version != status.software_version}
    if different:
        others = ", ".join(f"{who} {version}" for who, version in different.items())
        yield _note(
            f"the learner runs rollcast {status.software_version or '(unknown)'}, others run another version: {others}",
            "install one version everywhere; an actor with another protocol version is refused when it joins",
        )


def _balance(status: LearnerStatus) -> Iterator[Finding]:
    if status.phase is not Phase.TRAINING or not status.updates:
        return
    if status.waiting_fraction > _ACTORS_ARE_SLOW:
        yield _note(
            f"the trainer has waited {status.waiting_fraction:.0%} of the run: the actors are slower than the learner",
            "for faster training, add actors, or environments for each actor (--envs-per-actor)",
        )
    elif status.waiting_fraction < _LEARNER_IS_SLOW and status.queue_size >= status.queue_capacity > 0:
        yield _note(
            f"the queue is full ({counted(status.queue_size, 'trajectory', 'trajectories')}): the learner is slower "
            "than the actors, so they wait",
            "for faster training, use a GPU or larger batches; or use fewer actors",
        )


def _wrong(what: str, advice: str) -> Finding:
    return Finding(severity=Severity.WRONG, what=what, advice=advice)


def _note(what: str, advice: str) -> Finding:
    return Finding(severity=Severity.NOTE, what=what, advice=advice)
