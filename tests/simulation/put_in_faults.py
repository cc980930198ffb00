"""Faults that are put into the parts, to see that the simulator finds them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PutIn:
    """A fault that is put in.

    Attributes:
        name: What is wrong then.
        path: The module's file.
        right: A text that is there once.
        wrong: What takes its place.
        world: The world that shall find it.
    """

    name: str
    path: str
    right: str
    wrong: str
    world: str = "system"


_SERVING = "learner/rollcast/learner/serving"
_QUEUEING = "learner/rollcast/learner/queueing"
_DURABLE = "learner/rollcast/learner/durable"
_CONNECTION = "actor/rollcast/actor/connection"

FAULTS = (
    PutIn(
        "a rollout is acknowledged before the queue has it",
        f"{_SERVING}/stream.py",
        "                    durable.discard(rollout)\n                return False",
        "                    durable.discard(rollout)\n                return True",
    ),
    PutIn(
        "a credit is compared by < instead of <=",
        "services/rollcast/services/streams/uplink.py",
        "item.sequence <= self._credit_sequence",
        "item.sequence < self._credit_sequence",
    ),
    PutIn(
        "a resumed learner forgets which rollouts it has taken",
        f"{_SERVING}/registry.py",
        "acknowledged = max(acknowledged, earlier.taken_sequence)",
        "acknowledged = 0",
        "durable",
    ),
    PutIn(
        "a replaced process gets its name back",
        f"{_SERVING}/registry.py",
        "offer.process_nonce in before.replaced_nonces or 0 < offer.incarnation <= before.incarnation",
        "False",
    ),
    PutIn(
        "a credit is given twice",
        f"{_SERVING}/stream_state.py",
        "        self.order.credit += 1\n",
        "        self.order.credit += 2\n",
        "credits",
    ),
    PutIn(
        "a closed stream keeps its reservations",
        f"{_SERVING}/stream_state.py",
        "        n_reserved = self._n_trajectories if self._has_reservation else 0\n",
        "        n_reserved = 0\n",
        "credits",
    ),
    PutIn(
        "returned room wakes no waiting rollout",
        f"{_QUEUEING}/room.py",
        "        self._n_reserved -= n_trajectories\n        self._let_in()",
        "        self._n_reserved -= n_trajectories",
        "queue",
    ),
    PutIn(
        "the queue reserves without its lock",
        f"{_QUEUEING}/queue.py",
        "        with self._lock:\n            return self._room.reserve(n_trajectories)",
        "        return self._room.reserve(n_trajectories)",
        "queue",
    ),
    PutIn(
        "a withdrawn turn stays in the line",
        f"{_QUEUEING}/room.py",
        "            self.turns.remove(turn)\n",
        "",
        "queue",
    ),
    PutIn(
        "places of a round are not returned",
        f"{_SERVING}/round_places.py",
        "        self._leave(place)\n        return [*self._hand_out(now), *self._call_back()]",
        "        return self._call_back()",
        "rounds",
    ),
    PutIn(
        "an actor that gets places is not woken",
        f"{_SERVING}/round_places.py",
        "                actions.append(place.wake)\n",
        "",
        "rounds",
    ),
    PutIn(
        "a round has one place too many",
        f"{_SERVING}/round_places.py",
        "return n_taken < self._batch_size",
        "return n_taken <= self._batch_size",
        "rounds",
    ),
    PutIn(
        "actors of a later round are not called back",
        f"{_SERVING}/round_places.py",
        "                actions.append(place.recall)\n",
        "",
        "rounds",
    ),
    PutIn(
        "a late rollout keeps its places",
        f"{_SERVING}/round_places.py",
        "self._playing[0].since > allowed_s:",
        "self._playing[0].since > 1e9:",
        "rounds",
    ),
    PutIn(
        "a rollout counts as stored before the disk confirms it",
        f"{_DURABLE}/log.py",
        "        self._writer.commit()\n",
        "",
        "durable",
    ),
    PutIn(
        "the log is trimmed one rollout too far",
        f"{_DURABLE}/coverage.py",
        "                runs.append((rollout.number, rollout.number))",
        "                runs.append((rollout.number + 1, rollout.number + 1))",
        "durable",
    ),
    PutIn(
        "a reopened stream resends no rollout",
        f"{_CONNECTION}/outbox.py",
        "            for rollout in self._rollouts:\n                self.uplink.send(rollout)\n",
        "",
    ),
    PutIn(
        "an actor forgets one rollout more than was acknowledged",
        f"{_CONNECTION}/outbox.py",
        "self._rollouts[0].sequence <= progress.acknowledged_sequence:",
        "self._rollouts[0].sequence <= progress.acknowledged_sequence + 1:",
    ),
    PutIn(
        "a silent learner is never asked",
        f"{_CONNECTION}/stall_detector.py",
        "        self._ask_after_s = silent_s + SILENCE_S\n        return True",
        "        self._ask_after_s = silent_s + SILENCE_S\n        return False",
    ),
    PutIn(
        "a relay never notices a lost policy",
        "learner/rollcast/tools/relay/policies.py",
        "if now - max(self._lacks_since, subscription.heard_at) < self._may_last_s:",
        "if now > 0.0:",
        "found",
    ),
    PutIn(
        "an actor gives up by the time of day, which jumps",
        f"{_CONNECTION}/joining.py",
        "attempts.failed(error, time.monotonic())",
        "attempts.failed(error, time.time() - 1.7e9)",
    ),
    PutIn(
        "a relay waits for ever for its first answer",
        "services/rollcast/services/streams/bundle_link.py",
        "            return self._opens_by\n",
        "            return math.inf\n",
        "found",
    ),
    PutIn(
        "an actor abandons a stopping learner",
        f"{_CONNECTION}/reconnects.py",
        "_RETRYABLE = (LearnerUnreachableError, NotReadyError,",
        "_RETRYABLE = (LearnerUnreachableError,",
    ),
    PutIn(
        "an actor does not store its credit",
        "services/rollcast/services/streams/uplink.py",
        "                    self._credit_sequence = max(self._credit_sequence, response.credit_sequence)\n",
        "",
    ),
    PutIn(
        "an evaluator repeats a report that the learner has",
        f"{_CONNECTION}/evaluator.py",
        "                if self._held is not policy:\n",
        "                if policy is None:\n",
        "found",
    ),
    PutIn(
        "an actor plays rollouts that are stale from the start",
        "learner/rollcast/learner/actors/served.py",
        "else self._serving.max_policy_lag,\n            in_step",
        "else None,\n            in_step",
        "found",
    ),
    PutIn(
        "a turn at the replay buffer is not returned",
        "learner/rollcast/learner/replay/inserter.py",
        "            turn.release()",
        "            del turn",
        "replay",
    ),
    PutIn(
        "a version wakes no subscriber",
        "services/rollcast/services/policies/subscribers.py",
        "            self._wake([one for one in self._waiting if self._due_s(one, now) <= 0.0])",
        "            del now",
        "subscribers",
    ),
    PutIn(
        "rollouts become stale one version later",
        "learner/rollcast/learner/queueing/stale_trajectories.py",
        "policy_lag > self._max_policy_lag",
        "policy_lag > self._max_policy_lag + 1",
    ),
)


def find(name: str) -> PutIn:
    """Returns a fault by its name."""
    return next(fault for fault in FAULTS if fault.name == name)
