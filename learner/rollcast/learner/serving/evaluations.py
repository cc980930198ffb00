"""Keeps the evaluators of a run: their names, the policies they play with, and their reports."""

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain
from statistics import StatisticsError

from rollcast.actor.playing.evaluate import Evaluation, better_actions, summarize
from rollcast.learner.history.events import NoteEvent, forget_event
from rollcast.learner.serving.records import next_incarnation
from rollcast.learner.serving.tracebacks import Tracebacks
from rollcast.services.errors import (
    ActorReplacedError,
    InvalidInputError,
    LimitExceededError,
    NotReadyError,
    UnknownActorError,
)
from rollcast.services.history.history import EventSeverity
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.joining.evaluation import EvaluationActions, EvaluationPlan, EvaluationReport, PlayedEpisodes
from rollcast.services.joining.join import JoinOffer
from rollcast.services.limits.limits import DEFAULT_LIMITS, MAX_EVALUATORS, MAX_REASON_LENGTH
from rollcast.services.limits.texts import shortened
from rollcast.services.limits.token_buckets import TokenBuckets
from rollcast.services.policies.codec import EncodedPolicy
from rollcast.services.policies.evaluated import OnEnd, WaitForVersion
from rollcast.services.policies.policies import PolicyState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedPolicy:
    """A policy to evaluate, or an evaluated policy.

    Attributes:
        version: Its version.
        env_steps: The environment steps of training at the time of its selection.
        state: Its arrays.
        opponents: The versions that it plays against in addition to random play, in ascending order.
    """

    version: int
    env_steps: int
    state: PolicyState
    opponents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """A policy with its evaluation episodes.

    Attributes:
        policy: The policy.
        played: Returns, lengths and their statistics, for each kind of actions; empty if the policy played against
            opponents.
        seconds: The duration of the evaluation.
        against: The games against each opponent, by its version: see `evaluate_against`.
    """

    policy: EvaluatedPolicy
    played: Mapping[EvaluationActions, Evaluation]
    seconds: float
    against: Mapping[int, Evaluation] = field(default_factory=dict)

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation that counts: with the better kind of actions, or the margins of all games."""
        if self.against:
            games = self.against.values()
            return summarize(
                tuple(chain.from_iterable(game.returns for game in games)),
                tuple(chain.from_iterable(game.lengths for game in games)),
            )
        return self.played[better_actions(self.played)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorsInfo:
    """The state of the evaluators.

    Attributes:
        n_alive: The number of connected evaluators.
        n_pending: The policies that a connected evaluator evaluates or is about to evaluate. A local evaluator counts
            before it has joined.
        skipped: The number of due policies that were never evaluated.
        last_error: The last evaluator failure; empty if none has failed since the last report.
    """

    n_alive: int = 0
    n_pending: int = 0
    skipped: int = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class _Due:
    policy: EvaluatedPolicy
    encoded: EncodedPolicy


@dataclass(slots=True, kw_only=True)
class _Evaluator:
    name: str
    process_nonce: int
    incarnation: int
    last_seen: float = field(default_factory=time.monotonic)
    # Identifies the open subscription; None: no subscription.
    subscription: object | None = None
    # The policy that the evaluator has and has not reported.
    given: _Due | None = None
    reported_version: int = 0


class Evaluations:
    """The evaluators of a run. Thread-safe.

    A due policy goes to the first free evaluator. An evaluator gets its next policy after its report. If no evaluator
    becomes free before the next policy is due, the earlier policy is skipped. So a slow evaluator always continues with
    the newest policy. If an evaluator's process ends, its policy is due again, unless a newer policy is due.

    Invariant: the object holds at most one policy for each evaluator, one due policy, and `MAX_EVALUATORS` evaluators.

    Args:
        plan: The work of every evaluator.
        join_lease_s: The seconds between an evaluator's join and its subscription, at most.
        note: Notes failures of evaluators.
    """

    def __init__(
        self,
        plan: EvaluationPlan,
        *,
        join_lease_s: float = DEFAULT_LIMITS.join_lease_s,
        note: NoteEvent = forget_event,
    ) -> None:
        self.plan = plan
        self._note = note
        self._join_lease_s = join_lease_s
        self._told = TokenBuckets(1.0, 1.0, burst_s=5.0)  # failures that are logged and noted
        self._changed = threading.Condition()  # guards everything below
        self._learner_nonce = 0
        self._ended = False
        self._evaluators: dict[str, _Evaluator] = {}
        self._due: _Due | None = None
        self._results: list[EvaluationResult] = []
        self._last_version = 0
        self._skipped = 0
        self._last_error = ""
        self._tracebacks = Tracebacks()

    def info(self, *, n_local: int = 0) -> EvaluatorsInfo:
        """Returns the state of the evaluators.

        Args:
            n_local: The number of evaluators on this machine, including those that have not joined yet.
        """
        with self._changed:
            connected = [one for one in self._evaluators.values() if one.subscription is not None]
            return EvaluatorsInfo(
                n_alive=len(connected),
                n_pending=sum(one.given is not None for one in connected)
                + bool((connected or n_local) and self._due is not None),
                skipped=self._skipped,
                last_error=self._last_error,
            )

    def begin(self, learner_nonce: int) -> None:
        """Begins to serve evaluators.

        Args:
            learner_nonce: The nonce of this learner; reports for another learner are refused.
        """
        with self._changed:
            self._learner_nonce, self._ended = learner_nonce, False

    def end(self) -> None:
        """Stops sending policies to evaluators, and wakes waiting evaluators."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def offer(self, policy: EvaluatedPolicy, encoded: EncodedPolicy) -> None:
        """Stores a due policy, which replaces an earlier policy that no evaluator has taken.

        Args:
            policy: The policy.
            encoded: The encoded policy, for evaluators.
        """
        with self._changed:
            self._skipped += self._due is not None
            self._due = _Due(policy, encoded)
            self._changed.notify_all()

    def take(self) -> Sequence[EvaluationResult]:
        """Returns the results since the last call, in order of arrival."""
        with self._changed:
            results, self._results = self._results, []
            return results

    def note_exit(self, name: str, reason: str, failure: ActorFailure | None) -> None:
        """Records why an evaluator ended.

        Args:
            name: Its name.
            reason: The reason, in one line.
            failure: The exception that ended it, if known. Its traceback is logged unless the evaluator has reported
                it.
        """
        self._note(EventSeverity.WARNING, f"an evaluator has ended: {reason}")
        with self._changed:
            text = ""
            if failure is not None and failure.traceback:
                is_known = shortened(failure.message, MAX_REASON_LENGTH) in self._last_error
                text = "" if is_known else self._tracebacks.text_of(failure)
            self._last_error = reason
        if text:
            logger.error("evaluator %s failed:%s", name, text)

    def join(self, offer: JoinOffer) -> tuple[str, int]:
        """Registers an evaluator, or recognises it. A process with another nonce replaces the previous one.

        Returns:
            The evaluator's name and incarnation.

        Raises:
            ActorReplacedError: Another process has since joined under this name.
            LimitExceededError: There are `MAX_EVALUATORS` evaluators already.
        """
        with self._changed:
            name = offer.actor_id or self._free_name()
            known = self._evaluators.get(name)
            if known is not None and known.process_nonce == offer.process_nonce:
                known.last_seen = time.monotonic()
                # An evaluator with a subscription joins again only to ask for its version.
                level = logging.INFO if known.subscription is None else logging.DEBUG
                logger.log(level, "evaluator %s joined again: incarnation %d", name, known.incarnation)
                return known.name, known.incarnation
            incarnation = max(offer.incarnation, 1)
            if known is None:
                self._make_room()
            elif 0 < offer.incarnation <= known.incarnation:
                # Its own incarnation shows that it was replaced; see `ActorRegistry.join`.
                raise ActorReplacedError(
                    f"another process has joined as evaluator {name!r} since this process did: give each evaluator "
                    "its own --actor-id, or end one of the two"
                )
            else:
                self._give_back(known)
                incarnation = next_incarnation(incarnation, known.incarnation)
            evaluator = _Evaluator(name=name, process_nonce=offer.process_nonce, incarnation=incarnation)
            self._evaluators[name] = evaluator
            self._changed.notify_all()
        logger.info("evaluator %s joined: incarnation %d", name, incarnation)
        return name, incarnation

    def given_version(self, name: str) -> int:
        """Returns the version that an evaluator holds and has not yet reported; 0 if it holds none.

        Args:
            name: The evaluator.
        """
        with self._changed:
            evaluator = self._evaluators.get(name)
            return 0 if evaluator is None or evaluator.given is None else evaluator.given.policy.version

    @contextmanager
    def subscription(
        self, evaluator_id: str, incarnation: int, *, holds_version: int, on_end: OnEnd | None = None
    ) -> Iterator[WaitForVersion]:
        """See `rollcast.services.policies.evaluated.EvaluatedPolicies.subscription`."""
        token = object()
        has_left = False
        with self._changed:
            evaluator = self._find(evaluator_id, incarnation)
            evaluator.subscription = token
            if evaluator.given is not None and evaluator.given.policy.version != holds_version:
                self._give_back(evaluator)
            self._changed.notify_all()

        def leave() -> None:
            nonlocal has_left
            with self._changed:
                has_left = True
                self._changed.notify_all()

        def wait_for_version(timeout_s: float) -> EncodedPolicy | None:
            with self._changed:
                self._changed.wait_for(lambda: has_left or self._ended or self._may_take(evaluator, token), timeout_s)
                self._find(evaluator_id, incarnation)
                if evaluator.subscription is not token:
                    raise NotReadyError(
                        f"evaluator {evaluator_id!r} has opened another subscription; expected one at a time; read "
                        "the newer one"
                    )
                if has_left or self._ended or not self._may_take(evaluator, token):
                    return None
                given = evaluator.given = self._due
                self._due = None
                return None if given is None else given.encoded

        if on_end is not None:
            on_end(leave)
        try:
            yield wait_for_version
        finally:
            with self._changed:
                if evaluator.subscription is token:
                    evaluator.subscription, evaluator.last_seen = None, time.monotonic()

    def report(self, report: EvaluationReport) -> None:
        """See `rollcast.services.streams.service.EvaluationSink.report`."""
        outcome = report.outcome
        with self._changed:
            evaluator = self._find(report.actor_id, report.incarnation)
            if report.learner_nonce != self._learner_nonce:
                raise UnknownActorError(
                    f"evaluator {report.actor_id!r} reports on a policy of learner {report.learner_nonce:#x}; expected "
                    f"one of learner {self._learner_nonce:#x}, this learner: join, and subscribe again"
                )
            evaluator.last_seen = time.monotonic()
            if isinstance(outcome, ActorFailure):
                self._note_failure(evaluator, outcome)
            elif outcome.policy_version != evaluator.reported_version:
                self._take_result(evaluator, outcome)
            self._changed.notify_all()

    def _take_result(self, evaluator: _Evaluator, played: PlayedEpisodes) -> None:
        """Checks a report and keeps it. The caller holds the lock."""
        given = evaluator.given
        if given is None or given.policy.version != played.policy_version:
            expected = "no report, because it has no policy" if given is None else f"version {given.policy.version}"
            raise InvalidInputError(
                f"evaluator {evaluator.name!r} reports on version {played.policy_version} of the policy; expected "
                f"{expected}; report the version that the subscription has sent"
            )
        if played.actions is not self.plan.actions:
            raise InvalidInputError(
                f"evaluator {evaluator.name!r} has evaluated with actions of kind {played.actions.name}; expected "
                f"{self.plan.actions.name}, as agreed at Join; install the learner's rollcast for the evaluator, too"
            )
        if not played.returns:
            self._note_no_episode(evaluator, played.policy_version)
            return
        parts = _parts(evaluator, played, self.plan, given.policy.opponents)
        kinds = {} if self.plan.opponents else dict(zip(self.plan.actions.kinds, parts, strict=True))
        against = dict(zip((0, *given.policy.opponents), parts, strict=True)) if self.plan.opponents else {}
        self._results.append(
            EvaluationResult(policy=given.policy, played=kinds, seconds=played.seconds, against=against)
        )
        evaluator.reported_version, evaluator.given = played.policy_version, None
        self._last_version = max(self._last_version, played.policy_version)
        self._last_error = ""

    def _note_no_episode(self, evaluator: _Evaluator, version: int) -> None:
        """Counts a policy as skipped because the environment interrupted all its episodes."""
        evaluator.reported_version, evaluator.given = version, None
        self._skipped += 1
        self._last_error = f"no episode has ended with version {version}: the environment raised in each"
        if self._told.take(evaluator.name) is None:
            logger.warning("evaluator %s: %s; its log has the tracebacks", evaluator.name, self._last_error)
            self._note(EventSeverity.WARNING, self._last_error, who=evaluator.name)

    def _note_failure(self, evaluator: _Evaluator, failure: ActorFailure) -> None:
        self._last_error = f"{failure.exception_type}: {failure.message}"
        if self._told.take(evaluator.name) is None:
            logger.error("evaluator %s failed:%s", evaluator.name, self._tracebacks.text_of(failure))
            self._note(
                EventSeverity.ERROR,
                f"the evaluation has failed: {self._last_error}",
                who=evaluator.name,
                detail=failure.traceback,
            )
        self._give_back(evaluator)

    def _may_take(self, evaluator: _Evaluator, token: object) -> bool:
        """Returns True if the evaluator can take a due policy, or if its subscription is over."""
        if evaluator.subscription is not token or self._evaluators.get(evaluator.name) is not evaluator:
            return True
        return evaluator.given is None and self._due is not None

    def _give_back(self, evaluator: _Evaluator) -> None:
        """Makes a lost evaluator's policy due again, unless a newer one is due. The caller holds the lock."""
        given, evaluator.given = evaluator.given, None
        if given is None:
            return
        newest = self._last_version if self._due is None else max(self._last_version, self._due.policy.version)
        if given.policy.version > newest:
            self._skipped += self._due is not None
            self._due = given
        else:
            self._skipped += 1

    def _find(self, name: str, incarnation: int) -> _Evaluator:
        evaluator = self._evaluators.get(name)
        if evaluator is None or incarnation > evaluator.incarnation:
            raise UnknownActorError(
                f"evaluator {name!r}, incarnation {incarnation}, has not joined this learner: call Join first"
            )
        if incarnation < evaluator.incarnation:
            raise ActorReplacedError(
                f"evaluator {name!r}, incarnation {incarnation}, was replaced by incarnation {evaluator.incarnation}: "
                "give each evaluator its own --actor-id, or end this process"
            )
        return evaluator

    def _make_room(self) -> None:
        """Forgets a lost evaluator if no room is left for another one. The caller holds the lock."""
        if len(self._evaluators) < MAX_EVALUATORS:
            return
        before = time.monotonic() - self._join_lease_s
        gone = [evaluator for evaluator in self._evaluators.values() if evaluator.subscription is None]
        gone = [evaluator for evaluator in gone if evaluator.last_seen < before]
        if not gone:
            raise LimitExceededError(
                f"{len(self._evaluators)} evaluators have joined; expected at most {MAX_EVALUATORS}: one is enough "
                "for most runs; stop one",
                limit="max_evaluators",
            )
        oldest = min(gone, key=lambda evaluator: evaluator.last_seen)
        self._give_back(oldest)
        del self._evaluators[oldest.name]

    def _free_name(self) -> str:
        return next(name for i in range(MAX_EVALUATORS + 1) if (name := f"evaluator-{i}") not in self._evaluators)


def _parts(
    evaluator: _Evaluator, played: PlayedEpisodes, plan: EvaluationPlan, opponents: tuple[int, ...]
) -> list[Evaluation]:
    """Returns the evaluations with each kind of actions, or against each opponent.

    Raises:
        InvalidInputError: The evaluations do not match the plan.
    """
    counts = played.counts or (len(played.returns),)
    n_parts = 1 + len(opponents) if plan.opponents else len(plan.actions.kinds)
    if len(counts) != n_parts or max(counts) > plan.n_episodes:
        of_what = "opponents, random play among them" if plan.opponents else "kinds of actions"
        each = f" for each of {n_parts} {of_what}" if n_parts > 1 else ""
        raise InvalidInputError(
            f"evaluator {evaluator.name!r} has played {', '.join(map(str, counts))} episodes with version "
            f"{played.policy_version}; expected at most {plan.n_episodes}{each}, as agreed at Join; play that number"
        )
    ends = list(accumulate(counts))
    return [
        _summarized(evaluator, played.returns[end - count : end], played.lengths[end - count : end])
        for end, count in zip(ends, counts, strict=True)
    ]


def _summarized(evaluator: _Evaluator, returns: tuple[float, ...], lengths: tuple[int, ...]) -> Evaluation:
    try:
        evaluation = summarize(returns, lengths)
    except (OverflowError, StatisticsError):
        evaluation = None
    if evaluation is None or not math.isfinite(evaluation.mean) or not math.isfinite(evaluation.std):
        raise InvalidInputError(
            f"evaluator {evaluator.name!r} reports returns from {min(returns)} to {max(returns)}, whose mean or "
            "standard deviation is not finite; expected smaller ones; scale the environment's rewards"
        )
    return evaluation
