from rollcast.learner.serving.assignment import ActorLoad


def test_redirected_actors_count_until_they_arrive_or_are_late():
    load = ActorLoad()
    load.report(2)
    for now in (0.0, 10.0, 20.0):
        load.send(now)
    assert load.count(20.0) == 5
    load.report(3)
    assert load.count(29.0) == 5, "one has arrived, the first"
    assert load.count(41.0) == 4, "the second is late"
    load.take_back()
    assert load.count(41.0) == 3


def test_actors_that_leave_are_no_arrivals():
    load = ActorLoad()
    load.report(2)
    load.send(0.0)
    load.report(1)
    assert load.count(0.0) == 2
    load.report(4)
    assert load.count(0.0) == 4
