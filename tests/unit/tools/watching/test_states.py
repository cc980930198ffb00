from rollcast.services.history.history import LearnerActivity
from rollcast.services.joining.activity import ActingState
from rollcast.tools.watching.states import ACTING, LEARNING, UNKNOWN, looks
from tests.contrast import contrast

ALL = (*ACTING.values(), *LEARNING.values(), UNKNOWN)


def test_each_state_has_a_look():
    assert set(ACTING) == set(ActingState)
    assert set(LEARNING) == set(LearnerActivity)


def test_no_two_states_share_a_letter_or_a_name():
    assert len({look.letter for look in ALL}) == len({look.name for look in ALL}) == len(ALL)
    assert all(len(look.letter) == 1 and look.letter.isascii() for look in ALL)


def test_short_names_fit_a_column():
    assert all(0 < len(look.short) <= 14 for look in ALL)


def test_no_two_states_of_one_lane_share_a_colour():
    for lane in ("left-arm", ""):
        colours = [look.colour for look in looks(lane)]
        assert len(set(colours)) == len(colours)


def test_looks_are_in_the_order_of_the_columns_of_a_lane():
    assert looks("left-arm")[ActingState.SENDING.value - 1] is ACTING[ActingState.SENDING]
    assert looks("")[LearnerActivity.PAUSED.value - 1] is LEARNING[LearnerActivity.PAUSED]


def test_ink_can_be_read_on_its_colour():
    for look in (*ACTING.values(), *LEARNING.values()):
        assert contrast(look.colour, look.ink) >= 4.5, f"{look} has a contrast of {contrast(look.colour, look.ink):.1f}"
