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


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        *(
            ({"minActors": value}, f"minActors is {value!r}; expected a whole number")
            for value in ("", "0", "-1", "1.5", "many", "\u0661", "9" * 7, "1 ")
        ),
        ({"minActors": "5", "maxActors": "4"}, "minActors is 5 and its maxActors 4"),
        ({"maxActor": "5"}, r"'maxActor'; expected minActors, maxActors .*maxActors"),
    ],
)
def test_what_are_no_bounds_is_refused(metadata, message):
    with pytest.raises(InvalidInputError, match=message):
        ActorBounds.from_metadata(metadata)
