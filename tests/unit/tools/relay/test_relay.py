"""Relays over real connections, between actors' clients and a learner's intake."""

import contextlib
import dataclasses
import re
import threading
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from rollcast.learner.queueing.queue import RolloutQueue
from rollcast.learner.serving.credits import CreditRule
from rollcast.learner.serving.rounds import Rounds
from rollcast.services.client.client import LearnerClient
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.errors import (
    InvalidTensorError,
    LearnerUnreachableError,
    LimitExceededError,
    NotReadyError,
    ProtocolMismatchError,
    RefusedError,
    RollcastError,
    SpacesMismatchError,
    UnauthenticatedError,
    UnknownActorError,
)
from rollcast.services.joining.activity import ActingState, ActorActivity, ActorFailure
from rollcast.services.joining.join import JoinAgreement, JoinOffer, Relay
from rollcast.services.limits.limits import Limits
from rollcast.services.rollouts.size import rollout_bytes
from rollcast.services.security.security import ClientSecurity, ServerSecurity
from rollcast.services.status.status import ActorState
from rollcast.services.streams import bundle_link
from rollcast.tools.certificates import make_certificates
from rollcast.tools.relay.relay import RollcastRelay
from tests.certificates import security_of, server_security_of
from tests.integration.learner_fakes import SPACES, offer
from tests.processes import DEADLINE_S, free_port, wait_until
from tests.relays import LIMITS, N_ROLLOUT_STEPS, Learner, relaying, send, serve_learner, streaming
from tests.rollouts import assert_same_rollout, make_rollout
from tests.unit.services.streams.test_service import PIXELS

# they wait for relays, which look for what is new once a second
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("n_relays", [1, 2])
def test_rollouts_of_many_actors_arrive_as_they_were_sent_each_once_and_in_order(learner: Learner, n_relays: int):
    with contextlib.ExitStack() as stack:
        address = learner.address
        for _ in range(n_relays):
            address = stack.enter_context(relaying(address)).address
        names = [f"actor-{i}" for i in range(8)]
        uplinks = {name: stack.enter_context(streaming(address, name)) for name in names}
        threads = [threading.Thread(target=send, args=(uplink, name, 10)) for name, uplink in uplinks.items()]
        for thread in threads:
            thread.start()
        taken = learner.take(80)
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        for name in names:
            own = [rollout for rollout in taken if rollout.actor_id == name]
            assert [rollout.sequence for rollout in own] == list(range(1, 11))
            assert_same_rollout(own[9], make_rollout(10, actor_id=name))
            assert len(learner.info(name).via) == n_relays


def test_the_learner_gives_slots_seeds_and_incarnations(learner: Learner, relay: RollcastRelay):
    with LearnerClient(relay.address) as through, LearnerClient(learner.address) as direct:
        first, second = through.join(offer("a")), through.join(offer("b"))
        assert (first.slot, second.slot) == (0, 1)
        assert first.learner_nonce == learner.intake.learner_nonce
        again = through.join(offer("a", process_nonce=8))
        assert (again.slot, again.incarnation) == (0, 2)
        assert direct.join(offer("b")).env_seed == second.env_seed


def test_the_actors_of_a_relay_get_as_much_room_as_one_that_is_connected_directly():
    n_behind, n_rollouts = 9, 20
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(serve_learner(queue=RolloutQueue(4)))
        relay = stack.enter_context(relaying(learner.address))
        addresses = {"direct": learner.address} | {f"behind-{i}": relay.address for i in range(n_behind)}
        threads = [
            threading.Thread(target=send, args=(stack.enter_context(streaming(address, name)), name, n_rollouts))
            for name, address in addresses.items()
        ]
        for thread in threads:
            thread.start()
        n_taken: Counter[str] = Counter()
        while max(n_taken.values(), default=0) < n_rollouts - 2:
            wait_until(lambda: learner.queue.n_waiting == len(addresses), "a rollout of each actor to wait for room")
            n_taken.update(rollout.actor_id for rollout in learner.take(1))
        assert min(n_taken[name] for name in addresses) >= n_rollouts - 4, n_taken
        learner.take(len(addresses) * n_rollouts - n_taken.total())
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()


def test_a_bad_rollout_ends_its_actors_stream_alone_and_the_learner_hears_why(learner: Learner, relay: RollcastRelay):
    with streaming(relay.address, "good") as good, streaming(relay.address, "bad") as bad:
        answers = good.responses()
        next(answers)
        bad.send(make_rollout(1, actor_id="bad", reward=np.full((3, 2), np.nan, np.float32)))
        with pytest.raises(InvalidTensorError, match="column reward holds nan"):
            list(bad.responses())
        wait_until(lambda: learner.info("bad").state is ActorState.REFUSED, "the learner to know")
        assert "column reward holds nan" in learner.info("bad").last_error
        good.send(make_rollout(1, actor_id="good"))
        assert next(answers).acknowledged_sequence == 1


def test_large_rollouts_travel_in_frames(learner: Learner, relay: RollcastRelay):
    with streaming(relay.address, n_envs=60_000) as uplink:
        sent = make_rollout(1, n_envs=60_000)
        threading.Thread(target=uplink.send, args=(sent,), daemon=True).start()
        answers = uplink.responses()
        assert [next(answers).acknowledged_sequence for _ in range(2)] == [0, 1]
        assert_same_rollout(learner.take(1)[0], sent)


def test_reports_and_failures_reach_the_learner(learner: Learner, relay: RollcastRelay):
    with streaming(relay.address) as uplink:
        next(answers := uplink.responses())
        uplink.fail(ActorFailure(exception_type="ValueError", message="odd", traceback="...", env_seed=3))
        wait_until(lambda: learner.info("a").state is ActorState.FAILED, "the failure")
        del answers  # which holds the stream open
        assert "ValueError: odd" in learner.info("a").last_error


def test_an_actor_that_leaves_and_one_that_is_lost_are_told_apart(learner: Learner, relay: RollcastRelay):
    with streaming(relay.address, "leaves") as leaves, streaming(relay.address, "lost") as lost:
        both = leaves.responses(), lost.responses()
        for answers in both:
            next(answers)
        leaves.close()
        lost.cancel()
        wait_until(lambda: learner.info("leaves").state is ActorState.LEFT, "the one to have left")
        wait_until(lambda: learner.info("lost").state is ActorState.LOST, "the other to be lost")


def test_a_learner_that_is_gone_is_told_and_its_successor_found():
    port = free_port()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(serve_learner(f"127.0.0.1:{port}"))
        relay = stack.enter_context(relaying(first.address))
        with streaming(relay.address) as uplink:
            answers = uplink.responses()
            next(answers)
            first.server.stop(0.0)
            with pytest.raises((LearnerUnreachableError, NotReadyError)):
                list(answers)
        with LearnerClient(relay.address) as client, pytest.raises(NotReadyError, match="has no connection to its"):
            client.join(offer())
        second = stack.enter_context(serve_learner(f"127.0.0.1:{port}"))
        second.source.publish(7, {"w": np.ones(3, np.float32)})
        wait_until(lambda: relay.link.is_open, "the relay to find the second learner")
        with LearnerClient(relay.address) as client:
            with pytest.raises(UnknownActorError, match="call Join first"):
                next(client.open_rollout_stream("a", 1).responses())
            assert client.join(offer()).learner_nonce == second.intake.learner_nonce
            assert next(iter(client.subscribe_policy()))[0] == 7


@pytest.mark.parametrize("n_names", [1, 2])
@pytest.mark.parametrize("n_relays", [1, 2, 3])
def test_a_loop_of_relays_is_told(
    tmp_path_factory: pytest.TempPathFactory, n_relays: int, n_names: int, caplog: pytest.LogCaptureFixture
):
    folder = tmp_path_factory.mktemp("r")
    with contextlib.ExitStack() as stack:
        relays = [
            stack.enter_context(
                relaying(
                    # the same socket, by one name or by several
                    *(f"unix:{folder}/{'./' * name}{(i + 1) % n_relays}" for name in range(n_names)),
                    address=f"unix:{folder}/{i}",
                    waits=False,
                )
            )
            for i in range(n_relays)
        ]
        wait_until(lambda: "relays form a loop" in caplog.text, "a relay to warn that it finds itself")
        assert "correct the --learner-address of one of them" in caplog.text
        assert not any(relay.link.error for relay in relays)


def test_a_relay_that_leads_only_to_itself_gives_up_in_time(tmp_path_factory: pytest.TempPathFactory):
    own = f"unix:{tmp_path_factory.mktemp('r')}/0"
    with relaying(own, address=own, waits=False, connect_timeout_s=0.5) as relay:
        wait_until(lambda: relay.link.error, "the relay to give up")
        assert isinstance(relay.link.error, LearnerUnreachableError)
        assert "relays form a loop" in str(relay.link.error)


def test_a_relay_that_is_not_of_the_loop_waits_beside_it(tmp_path_factory: pytest.TempPathFactory):
    looped = f"unix:{tmp_path_factory.mktemp('r')}/0"
    with relaying(looped, address=looped, waits=False) as relay:
        wait_until(lambda: "relays form a loop" in reason_of(relay), "the relay to find itself")
        with pytest.raises(NotReadyError):
            relay.intake.admit(Relay("other", 7), (), lambda _error: None).__enter__()


def test_a_relay_that_has_another_way_is_no_loop(learner: Learner):
    ports = free_port(), free_port()
    first, second = (f"127.0.0.1:{port}" for port in ports)
    with (
        # as soon as the second one answers that it has no learner, which it has only through this one
        relaying(second, learner.address, address=first, waits=False, connect_timeout_s=2.0) as outer,
        relaying(first, address=second, waits=False),
    ):
        wait_until(lambda: outer.link.is_open, "the other way")
        with LearnerClient(second) as client:
            wait_until(lambda: joins(client), "an actor to join through both")


@pytest.mark.parametrize("n_relays", [2, 3])
@pytest.mark.parametrize("was_there", [True, False], ids=["a learner that dies", "a learner that starts later"])
def test_relays_that_lead_back_to_the_first_one_wait_for_its_learner(n_relays: int, was_there: bool):
    learner, *addresses = (f"127.0.0.1:{free_port()}" for _ in range(1 + n_relays))
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(serve_learner(learner)) if was_there else None
        ways = [(learner, addresses[-1]), *((address,) for address in addresses)]
        relays = [
            stack.enter_context(relaying(*way, address=address, waits=was_there))
            for address, way in zip(addresses, ways, strict=False)
        ]
        if before is not None:
            before.server.stop(0.0)
        wait_until(lambda: "leads back to this relay" in reason_of(relays[0]), "the first relay to ask the last one")
        stack.enter_context(serve_learner(learner))
        with LearnerClient(addresses[-1]) as client:
            wait_until(lambda: joins(client), "an actor to join through all")
        assert not any(relay.link.error for relay in relays)


def reason_of(relay: RollcastRelay) -> str:
    """Returns why a relay has no learner; empty if it has one."""
    try:
        relay.link.current()
    except NotReadyError as error:
        return str(error)
    return ""


def joins(client: LearnerClient) -> bool:
    with contextlib.suppress(NotReadyError):
        client.join(offer())
        return True
    return False


def test_reasons_of_relays_in_a_row_do_not_nest():
    with contextlib.ExitStack() as stack:
        address = f"127.0.0.1:{free_port()}"
        for _ in range(4):
            relay = stack.enter_context(relaying(address, waits=False))
            address = relay.address
        with LearnerClient(address) as client:

            def reason() -> str:
                with pytest.raises(NotReadyError) as refused:
                    client.join(offer())
                return str(refused.value)

            wait_until(lambda: reason().count("has no connection to its learner") > 1, "the reason of the next one")
            assert reason().count("has no connection to its learner") == 2
            assert reason().count("try again") == 1


def test_a_relay_without_a_learner_says_whole_what_it_has_met():
    with relaying(f"127.0.0.1:{free_port()}", waits=False) as relay:

        def reason() -> str:
            with pytest.raises(NotReadyError) as refused:
                relay.link.current()
            return str(refused.value)

        wait_until(lambda: "no learner answers" in reason(), "the first attempt")
        assert re.search(r"\(failed to connect [^()]*\); try again with backoff", reason())


def test_a_relay_that_finds_itself_on_the_way_says_so(learner: Learner, relay: RollcastRelay):
    ways: list[tuple[Relay, ...]] = []
    join = learner.intake.join

    def noting(offered: JoinOffer) -> JoinAgreement:
        ways.append(offered.via)
        return join(offered)

    learner.intake.join = noting
    with relaying(relay.address) as outer, LearnerClient(outer.address) as client:
        client.join(offer())
        # as if the learner's address of `relay` had been changed to that of `outer`
        with pytest.raises(NotReadyError, match=r"relays form a loop.*returns to relay.*--learner-address"):
            outer.intake.join(offer(via=ways[0]))


def test_too_many_relays_in_a_row_are_refused(learner: Learner):
    with contextlib.ExitStack() as stack:
        address = learner.address
        for _ in range(5):
            address = stack.enter_context(relaying(address)).address
        with LearnerClient(address) as client, pytest.raises(LimitExceededError, match="expected at most 4") as refused:
            client.join(offer())
        assert refused.value.limit == "max_relays_in_a_row"


def test_a_relay_takes_in_as_many_actors_as_it_may_and_each_of_them_again(learner: Learner):
    with relaying(learner.address, limits=Limits(max_actors=1)) as relay, streaming(relay.address) as uplink:
        next(answers := uplink.responses())
        with (
            LearnerClient(relay.address) as client,
            pytest.raises(LimitExceededError, match="start another relay, or raise its --max-actors") as refused,
        ):
            client.join(offer("b"))
        assert refused.value.limit == "max_actors"
        # the same actor, whose connection froze: its new stream takes the place of its old one
        with streaming(relay.address) as again:
            assert send(again, "a", 1).acknowledged_sequence == 1
            assert relay.intake.n_actors == 1
            with pytest.raises(RollcastError):
                list(answers)


def test_the_learners_refusal_reaches_the_actor(relay: RollcastRelay):
    with LearnerClient(relay.address) as client:
        with pytest.raises(SpacesMismatchError, match="the learner has Box"):
            client.join(offer(spaces=PIXELS))
        with pytest.raises(UnknownActorError):
            next(client.open_rollout_stream("nobody", 1).responses())


def test_what_only_the_learner_answers_is_refused_with_its_address(learner: Learner, relay: RollcastRelay):
    with LearnerClient(relay.address) as client:
        for call in (
            client.status,
            client.describe,
            client.actors,
            client.stop,
            lambda: client.act({"": np.zeros((1, 4), np.float32)}),
        ):
            with pytest.raises(RefusedError, match=f"--learner-address {learner.address}"):
                call()


def test_a_learner_older_than_relays_is_named():
    with serve_learner(serves_relays=False) as old, relaying(old.address, waits=False) as relay:
        with pytest.raises(ProtocolMismatchError, match="does not serve relays"):
            relay.run()


def test_a_relay_whose_opening_is_not_answered_opens_another_stream(monkeypatch: pytest.MonkeyPatch, learner: Learner):
    skew_s = 0.0
    monkeypatch.setattr(bundle_link, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + skew_s))
    admit, is_over, n_asked = learner.intake.admit, threading.Event(), 0

    def admit_the_second(*relays: object) -> int:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 1:
            is_over.wait()
        return admit(*relays)

    monkeypatch.setattr(learner.intake, "admit", admit_the_second)
    with relaying(learner.address, waits=False) as relay:
        try:
            wait_until(lambda: n_asked == 1, "the relay to ask")
            skew_s = 15.0
            wait_until(lambda: relay.link.is_open, "another stream")
        finally:
            is_over.set()
    assert n_asked == 2


def test_a_relay_whose_actor_gets_no_answer_opens_another_stream(
    monkeypatch: pytest.MonkeyPatch, learner: Learner, caplog: pytest.LogCaptureFixture
):
    """As after damage to a length: the learner waits for the rest of a message, and the connection answers pings."""
    skew_s = 0.0
    monkeypatch.setattr(bundle_link, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + skew_s))
    open_bundled, is_over, n_opened = learner.intake.open_bundled, threading.Event(), 0

    def open_the_second(*actor: object, **options: object) -> object:
        nonlocal n_opened
        n_opened += 1
        if n_opened == 1:
            is_over.wait()
        return open_bundled(*actor, **options)

    monkeypatch.setattr(learner.intake, "open_bundled", open_the_second)
    with relaying(learner.address) as relay:
        try:
            with streaming(relay.address):
                wait_until(lambda: n_opened == 1, "the actor's stream")
                skew_s = 12.0
                # not that it is closed, which it may be for a moment only
                wait_until(lambda: "lost the learner" in caplog.text, "the end of the relay's stream")
            wait_until(lambda: relay.link.is_open, "another stream")
            with streaming(relay.address) as uplink:
                assert send(uplink, "a", 2).acknowledged_sequence == 2
        finally:
            is_over.set()


def test_a_relay_without_a_learner_says_so_once_and_gives_up_in_time(caplog: pytest.LogCaptureFixture):
    address = f"127.0.0.1:{free_port()}"
    with (
        relaying(address, waits=False, connect_timeout_s=0.5) as relay,
        pytest.raises(LearnerUnreachableError, match=r"no learner at.*\([2-9] attempts\)"),
    ):
        relay.run()
    (line,) = caplog.messages
    assert line.startswith(f"waiting for the learner at {address}: no learner answers at {address}")


N_BYTES = rollout_bytes(RolloutShape(SPACES, N_ROLLOUT_STEPS, 2))
ROOM_FOR_ONE = dataclasses.replace(LIMITS, max_rollout_bytes=N_BYTES, max_bytes_in_flight=N_BYTES)


@pytest.mark.parametrize(("n_relays", "limits"), [(1, LIMITS), *((n, ROOM_FOR_ONE) for n in range(3))])
def test_actors_of_a_round_wait_neither_for_one_another_nor_for_room(n_relays: int, limits: Limits):
    """A rollout is acknowledged when its actor has a place in the next round, which begins when all have come.

    One that the learner has taken holds no bytes while its actor waits for that.
    """
    n_actors = 6
    rounds = Rounds(2 * n_actors)
    rounds.begin(1)
    with contextlib.ExitStack() as stack:
        learner = stack.enter_context(serve_learner(rule=CreditRule(rounds=rounds), limits=limits))
        address = learner.address
        for _ in range(n_relays):
            address = stack.enter_context(relaying(address, limits=limits)).address
        uplinks = {f"a{i}": stack.enter_context(streaming(address, f"a{i}")) for i in range(n_actors)}
        answers = {name: uplink.responses() for name, uplink in uplinks.items()}
        # All have a place before the first sends: it would take one more of this round otherwise.
        assert [next(own).min_policy_version for own in answers.values()] == [1] * n_actors
        for sequence in (1, 2):
            for name, uplink in uplinks.items():
                uplink.send(make_rollout(sequence, actor_id=name, policy_version=sequence))
            assert {rollout.sequence for rollout in learner.take(n_actors)} == {sequence}
            rounds.begin(sequence + 1)
            for own in answers.values():
                progress = next(own)
                told = progress.acknowledged_sequence, progress.credit_sequence, progress.min_policy_version
                assert told == (sequence, sequence + 1, sequence + 1), "once it may play on"


def test_reports_of_the_time_pass_between_the_frames_of_a_rollout(learner: Learner, relay: RollcastRelay):
    report = ActorActivity(state=ActingState.ACTING, seconds=(0.0,) * 6, policy_version=1, policy_age_s=0.5)
    with LearnerClient(relay.address) as client:
        agreement = client.join(offer())
        uplink = client.open_rollout_stream(
            agreement.actor_id, agreement.incarnation, activity=lambda: report, activity_interval_s=0.1
        )
        assert send(uplink, "a", 3).acknowledged_sequence == 3
        uplink.cancel()


def test_a_relay_without_a_token_is_refused_for_good(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("actor:" + "t" * 32)
    tokens.chmod(0o600)
    security = ServerSecurity.from_files(tokens_file=tokens)
    with serve_learner(security=security) as learner:
        with relaying(learner.address, waits=False) as relay, pytest.raises(UnauthenticatedError, match="--token-file"):
            relay.run()
        with relaying(learner.address, client_security=ClientSecurity(token="t" * 32)) as relay:
            with streaming(relay.address) as uplink:
                assert send(uplink, "a", 1).acknowledged_sequence == 1


def test_tls_and_tokens_are_those_of_each_side(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        make_certificates(folder)

    own, strange = security_of(outside, "actor"), security_of(inside, "actor")
    with (
        serve_learner(security=server_security_of(inside)) as learner,
        relaying(learner.address, server_security=server_security_of(outside), client_security=strange) as relay,
    ):
        with LearnerClient(relay.address, security=own) as client:
            agreement = client.join(offer())
            uplink = client.open_rollout_stream(agreement.actor_id, agreement.incarnation)
            assert send(uplink, "a", 1).acknowledged_sequence == 1
            uplink.cancel()
        with LearnerClient(relay.address, security=strange) as stranger, pytest.raises(RollcastError):
            stranger.join(offer("b"))
    assert [rollout.actor_id for rollout in learner.take(1)] == ["a"]
