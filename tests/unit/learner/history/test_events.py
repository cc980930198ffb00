from rollcast.learner.history.events import forget_event, shortened
from rollcast.services.history.history import EventSeverity


def test_a_text_that_is_too_long_keeps_its_end():
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "…cdefg"


def test_events_that_nobody_keeps_may_be_noted():
    assert forget_event(EventSeverity.INFO, "joined", who="a", detail="b") is None
