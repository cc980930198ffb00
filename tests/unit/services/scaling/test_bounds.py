import pytest

from rollcast.services.errors import InvalidInputError
from rollcast.services.scaling.bounds import ActorBounds

KEDAS = {"scalerAddress": "scaler:50052", "enableTLS": "true"}


@pytest.mark.parametrize(
    ("metadata", "clamped"),
    [
        ({}, [0, 1, 9, 50]),
        ({"minActors": "4"}, [0, 4, 9, 50]),
        ({"maxActors": "8"}, [0, 1, 8, 8]),
        ({"minActors": "2", "maxActors": "2"}, [0, 2, 2, 2]),
    ],
)
def test_bounds_hold_but_for_zero(metadata, clamped):
    bounds = ActorBounds.from_metadata(KEDAS | metadata)
    assert [bounds.clamp(wanted) for wanted in (0, 1, 9, 50)] == clamped


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "many", "\u0661", "9" * 7, "1 "])
def test_what_is_no_number_is_refused_with_its_value(value):
    with pytest.raises(InvalidInputError, match=f"minActors is {value!r}; expected a whole number"):
        ActorBounds.from_metadata({"minActors": value})


def test_bounds_that_cross_are_refused():
    with pytest.raises(InvalidInputError, match="minActors is 5 and its maxActors 4"):
        ActorBounds.from_metadata({"minActors": "5", "maxActors": "4"})


def test_misspelt_name_is_refused_with_a_guess():
    with pytest.raises(InvalidInputError, match=r"'maxActor'; expected minActors, maxActors .*maxActors"):
        ActorBounds.from_metadata({"maxActor": "5"})
