import math

from rollcast.actor.dialling.batch_rule import LONGEST_WAIT_S, PATIENCE, BatchRule, RolloutRule


class TestBatch:
    def test_is_full_when_all_wait_though_there_is_room_for_more(self):
        assert BatchRule(8).is_full(4, 4)
        assert not BatchRule(8).is_full(3, 4)

    def test_waits_as_long_as_the_last_pass_took(self):
        assert BatchRule().deadline(10.0, 0.004) == 10.004

    def test_does_not_wait_for_ever_after_a_slow_pass(self):
        assert BatchRule().deadline(10.0, 30.0) == 10.0 + LONGEST_WAIT_S


class TestRollout:
    def test_gives_the_slow_a_tenth_of_its_time(self):
        rule = RolloutRule()
        rule.acted(5.0)
        rule.acted(14.0)  # its beginning counts
        rule.look(1, 25.0)
        rule.look(2, 26.0)
        assert rule.closes_at(4, 2) == 25.0 + PATIENCE * 20.0

    def test_forgets_those_that_have_left(self):
        rule = RolloutRule()
        rule.acted(0.0)
        rule.look(1, 10.0)
        rule.look(0, 10.5)
        assert rule.closes_at(3, 0) == math.inf

    def test_closes_at_once_if_nobody_has_acted(self):
        """A row that was carried over may fill a rollout of one row."""
        rule = RolloutRule()
        rule.look(1, 3.0)
        assert rule.closes_at(2, 1) == 3.0
