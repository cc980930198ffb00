import io
import json

import pytest

from rollcast.services.replay.replay import ReplayWaiting
from rollcast.services.status.status import LearnerStatus, Phase
from rollcast.tools import status as command
from rollcast.tools.settings import StatusSettings
from tests.histories import replay_status

REPLAY = replay_status(size=1234, waiting=(ReplayWaiting(reason="room", seconds=3.5, who="the actors"),))


def shown(status: LearnerStatus, *, json_output: bool) -> str:
    output = io.StringIO()
    command.show(StatusSettings(json_output=json_output), output, status, (), {})
    return output.getvalue()


@pytest.mark.parametrize(
    "row",
    [
        ("phase", "training"),
        ("stale_trajectories", "7"),
        ("replay.size", "1,234"),
        ("replay.max_diff", "inf"),
        ("replay.waiting.0.who", "the actors"),
        ("replay.waiting.0.seconds", "3.5"),
    ],
)
def test_table_has_rows_for_nested_values(row: tuple[str, str]):
    text = shown(LearnerStatus(phase=Phase.TRAINING, stale_trajectories=7, replay=REPLAY), json_output=False)
    rows = [tuple(line.split(maxsplit=1)) for line in text.splitlines()]
    assert row in [(name, *(value.strip() for value in values)) for name, *values in rows]


def test_json_shows_infinity_as_null():
    document = json.loads(
        shown(LearnerStatus(phase=Phase.TRAINING, replay=REPLAY), json_output=True), parse_constant=pytest.fail
    )
    assert document["replay"]["max_diff"] is None
    assert document["replay"]["waiting"] == [{"reason": "room", "seconds": 3.5, "who": "the actors"}]
    assert json.loads(shown(LearnerStatus(phase=Phase.TRAINING), json_output=True))["replay"] is None
