import numpy as np

from rollcast.services.policies.opponents import with_opponents, without_opponents


def arrays(value: float) -> dict[str, np.ndarray]:
    return {"networks.0.layers.0.weight": np.full((2, 3), value, np.float32), "x": np.array(value, np.float32)}


def test_opponents_come_back_by_their_versions_in_rising_order():
    together = with_opponents(arrays(9.0), {12: arrays(2.0), 3: arrays(1.0)})
    own, theirs = without_opponents(together)
    assert own.keys() == arrays(9.0).keys()
    assert list(theirs) == [3, 12]
    for found, value in ((own, 9.0), (theirs[3], 1.0), (theirs[12], 2.0)):
        for name, array in arrays(value).items():
            np.testing.assert_array_equal(found[name], array)


def test_a_policy_without_opponents_is_as_it_was():
    state = arrays(1.0)
    assert with_opponents(state, {}) == state
    assert without_opponents(state) == (state, {})
