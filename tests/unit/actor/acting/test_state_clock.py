from rollcast.actor.acting.state_clock import StateClock
from rollcast.services.joining.activity import ActingState


def test_time_is_added_up_by_state_with_that_of_now():
    now = 10.0
    clock = StateClock(ActingState, lambda: now)
    assert (clock.state, sum(clock.seconds().values())) == (ActingState.CONNECTING, 0.0)
    for state, seconds in (
        (ActingState.WAITING_FOR_CREDIT, 2.0),
        (ActingState.ACTING, 3.0),
        (ActingState.ACTING, 1.0),
        (ActingState.WAITING_FOR_CREDIT, 0.5),
    ):
        clock.enter(state)
        now += seconds
    assert clock.state is ActingState.WAITING_FOR_CREDIT
    assert {state: seconds for state, seconds in clock.seconds().items() if seconds} == {
        ActingState.WAITING_FOR_CREDIT: 2.5,
        ActingState.ACTING: 4.0,
    }
    assert list(clock.seconds()) == list(ActingState)
    assert clock.in_order() == tuple(clock.seconds().values())
