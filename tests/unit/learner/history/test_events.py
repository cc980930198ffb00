from rollcast.learner.history.events import forget_event
from rollcast.services.history.history import EventSeverity


def test_events_that_nobody_keeps_may_be_noted():
    assert forget_event(EventSeverity.INFO, "joined", who="a", detail="b") is None
