from pathlib import Path

import numpy as np
import pytest

from rollcast.learner.durable.recovery import take_inventory
from rollcast.services.errors import ConfigurationError
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from tests.rollouts import CARTPOLE_LIKE, make_rollout
from tests.unit.learner.durable.logs import HEADER, NOTHING, recovered, sequences, write_log
from tests.unit.learner.durable.test_reading import ends, only_segment


def test_recovers_rollouts_as_they_were_written(tmp_path: Path):
    write_log(tmp_path, [1, 2])
    first, second = recovered(tmp_path)
    expected = make_rollout(sequence=1)
    assert (first.rollout.sequence, second.rollout.sequence) == (1, 2)
    np.testing.assert_array_equal(first.rollout.reward, expected.reward)
    np.testing.assert_array_equal(
        first.rollout.substeps[FLAT_SUBSTEP].observation[""], expected.substeps[FLAT_SUBSTEP].observation[""]
    )
    assert first.rollout.env_seeds == expected.env_seeds


def test_finds_damage_in_an_earlier_segment_when_it_hands_it_out(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_log(tmp_path, [1, 2])
    first = only_segment(tmp_path)
    write_log(tmp_path, [3])
    content, whole = bytearray(first.read_bytes()), ends(first)
    content[whole[0] - 5] ^= 1
    first.write_bytes(bytes(content))
    assert sequences(tmp_path) == [2, 3]
    assert "rollout 1 of actor 'a', incarnation 1, cannot be recovered: it does not fit its digest" in caplog.text


def test_refuses_rollouts_of_other_spaces_or_length(tmp_path: Path):
    write_log(tmp_path, [1])
    (substep,) = CARTPOLE_LIKE.values()
    spaces = {FLAT_SUBSTEP: SubstepSpaces(observation=substep.action, action=substep.action)}
    for header, message in (
        (RecordingHeader(spaces=spaces, n_rollout_steps=3, n_envs=2), "--durable: .*observation"),
        (RecordingHeader(spaces=CARTPOLE_LIKE, n_rollout_steps=4, n_envs=2), "has rollouts of 3 steps; expected 4"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            take_inventory(tmp_path, header, NOTHING)


def test_an_actor_is_known_up_to_its_last_rollout_in_the_log(tmp_path: Path):
    write_log(tmp_path, [1, 2, 3])
    inventory = take_inventory(tmp_path, HEADER, NOTHING)
    assert inventory.next_number == 3
    assert inventory.actors({})["a"]["taken_sequence"] == 3
    known = {"a": {"slot": 4, "incarnation": 9, "process_nonce": 1, "taken_sequence": 1, "replaced_nonces": ()}}
    assert inventory.actors(known) == known, "a later process of the actor keeps its own"
