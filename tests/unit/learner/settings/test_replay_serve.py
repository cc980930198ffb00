import pytest
from pydantic import ValidationError

from rollcast.learner.replay.settings import ReplaySettings
from rollcast.learner.settings.replay_serve import ReplayServeSettings


def test_rejects_the_device_of_a_learner():
    with pytest.raises(ValidationError, match="device is 'learner', but replay serve has no learner"):
        ReplayServeSettings(replay=ReplaySettings(device="learner"))
