"""Acts for environments that dial in, and records a rollout for each substep."""

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rollcast.actor.dialling.batch_rule import BatchRule, RolloutRule
from rollcast.actor.dialling.environments import DialledEnvironments
from rollcast.actor.environments.structured import Turn
from rollcast.actor.workers.substep_recorder import Recorded
from rollcast.actor.workers.substeps import SubstepWorker
from rollcast.services.process.waiting import LOOK_S

# Seconds without any client after which a worker ends its rollout early, and is then idle.
IDLE_S: Final = 10.0


class DialInWorker(SubstepWorker[DialledEnvironments]):
    """A worker that collects rollouts of environments that dial in. Each environment requests its own actions.

        environments.agree(n_envs)
        worker = DialInWorker(environments, policy, 32, actor_id="a", incarnation=1, env_seed=0)
        rollout = worker.collect()

    Requests that arrive at about the same time share one batch; see `BatchRule`. A rollout ends when all environments
    have filled their rows, or when one environment has waited for a tenth of the rollout's duration. So no environment
    waits for the slowest environment. Fast environments begin up to a tenth of the next rollout's rows before they
    wait. Places without a client have rows that are not valid. If a client leaves, the worker drops the last action of
    each of the client's environments, because the action's results are unknown. The worker cuts these episodes before
    the dropped action, and omits them from statistics.

    For arguments and invariants, see `RolloutWorker` and `SubstepWorker`. There is one exception: a rollout has the
    policy version of its oldest row, or the oldest version that the learner accepts, whichever is newer. The
    constructor assigns places to environments. The environments keep these places between rollouts.

    Attributes:
        is_idle: True: the last `collect` returned None because no client was connected for 10 s.
    """

    @property
    def _n_ahead(self) -> int:
        return max(1, self._n_steps // 10)

    def _prepare(self, env_seed: int | Sequence[int]) -> None:
        super()._prepare(env_seed)
        self._batch_rule = BatchRule(self._vector_env.batch_size)
        self._rollout_rule = RolloutRule()
        self._forward_s = 0.0
        self._progress = 0.0
        # The turns that wait for actions, by place; the places whose environment has sent a turn; and the places in the
        # middle of an episode.
        self._asking: dict[int, Turn] = {}
        self._live: set[int] = set()
        self._playing: set[int] = set()
        # The live places that have all rows of this rollout.
        self._full: set[int] = set()
        self._alone_since: float | None = time.monotonic()
        self.is_idle = False
        self._vector_env.begin(self._env_seeds)

    def set_progress(self, progress: float) -> None:
        """Sets the progress of training, which clients receive with their actions."""
        self._progress = progress

    def _play(self, should_stop: Callable[[], bool] | None) -> bool:
        """Answers requests until the rollout ends; False if `should_stop` returned True, or the worker is idle."""
        self.is_idle = is_due = False
        self._full = {place for place in self._live if self._has_all_rows(place)}
        until = -math.inf

        def answer() -> float | None:
            if should_stop is not None and should_stop():
                return None
            later = self._turn(is_due=True)
            return None if later is None or later < until else self._forward_s

        while not (should_stop is not None and should_stop()):
            later = self._turn(is_due)
            if later is None:
                self.is_idle = not any(recorder.has_rows for recorder in self._recorders.values())
                self._rollout_rule = RolloutRule()
                return not self.is_idle
            until = later
            is_due = self._vector_env.wait(self._batch_rule, forward_s=self._forward_s, until=until, answer=answer)
        return False

    def _turn(self, is_due: bool) -> float | None:
        """Records the news. Answers requests if a batch is due.

        Returns:
            The time of the next call, at the latest; None: the rollout has ended, or the worker is idle.
        """
        self._hear()
        now = time.monotonic()
        ready = {place: turn for place, turn in self._asking.items() if self._has_room(place, turn)}
        n_full = len(self._full | (self._asking.keys() - ready.keys()))
        self._rollout_rule.look(n_full, now)
        closes_at = self._rollout_rule.closes_at(len(self._live), n_full)
        if closes_at <= now or (self._alone_since is not None and now - self._alone_since > IDLE_S):
            return None
        if is_due and ready:
            # the oldest first
            self._answer(dict(itertools.islice(ready.items(), self._batch_rule.max_size)), now)
        self._vector_env.hold(self._asking.keys() - ready.keys())
        return min(closes_at, now + LOOK_S)

    def _version_of(self, recorded: Recorded) -> int:
        """Returns the oldest version of all rows, because a slow environment may have received its action long ago.

        The result is at least the oldest version that the learner accepts, because the learner would ignore an older
        rollout.
        """
        return max(recorded.oldest_version, self.least_version)

    def _hear(self) -> None:
        """Records the turns that the environments have sent."""
        for news in self._vector_env.news():
            for turn in news.last_turns:
                self._take(news.place, turn)
            if news.has_left:
                self._leave(news.place)
            for turn in news.turns:
                self._take(news.place, turn)
        # a client counts before its first turn: it may have to load a level
        if self._vector_env.n_live:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = time.monotonic()

    def _take(self, place: int, turn: Turn) -> None:
        self._live.add(place)
        if place not in self._playing:
            self._playing.add(place)
            self._begin(place, turn)
        else:
            self._record(place, turn)
            self._see(place, turn)
            if place not in self._full and self._has_all_rows(place):
                self._full.add(place)
        if turn.observations:
            self._asking[place] = turn
        else:
            self._playing.discard(place)

    def _leave(self, place: int) -> None:
        if place in self._playing:
            self.dropped_episodes += 1
        self._drop(place)
        self._live.discard(place)
        self._full.discard(place)
        self._playing.discard(place)
        self._asking.pop(place, None)

    def _answer(self, turns: Mapping[int, Turn], now: float) -> None:
        """Chooses and sends the actions for turns, by place."""
        self._rollout_rule.acted(now)
        chosen = self._act(turns)
        if self._policy_events is not None:
            self._policy_events.end_step()
        for place in turns:
            del self._asking[place]
        # in the order of the turn's observations, not of the substeps
        actions = {place: [chosen[place][actor] for actor in turn.observations] for place, turn in turns.items()}
        self._vector_env.act(actions, policy_version=self._policy.version, progress=self._progress)
        self._forward_s = time.monotonic() - now
