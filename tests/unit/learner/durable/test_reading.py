import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.learner.durable.reading import Flaw, SegmentReader
from rollcast.learner.durable.recovery import take_inventory
from rollcast.learner.durable.segments import SegmentName
from rollcast.services.errors import ConfigurationError
from rollcast.services.rollouts.recording_codec import RecordingHeader
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from tests.rollouts import CARTPOLE_LIKE
from tests.unit.learner.durable.logs import HEADER, NOTHING, sequences, write_log

N_ROLLOUTS = 3


def only_segment(folder: Path) -> Path:
    (path,) = folder.glob("*.log")
    return path


def ends(path: Path) -> list[int]:
    """Returns the place of each rollout that is whole in a segment."""
    name = SegmentName.parse(path)
    assert name is not None
    with SegmentReader(path.parent, name) as reader:
        return [found.tail_start for found in reader.scan(verify=True) if not isinstance(found, Flaw)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_log(folder, range(1, N_ROLLOUTS + 1), segment_bytes=4096)
    return only_segment(folder)


def copy_of(written: Path, folder: Path, content: bytes) -> Path:
    for old in folder.glob("*.log"):
        old.unlink()
    copy = folder / written.name
    copy.write_bytes(content)
    return copy


@pytest.mark.slow
def test_truncation_at_any_byte_leaves_the_whole_rollouts_before_it(written: Path, tmp_path: Path):
    content, whole = written.read_bytes(), ends(written)
    used = content[: whole[-1] + 100]
    for n_bytes in range(len(used)):
        copy_of(written, tmp_path, used[:n_bytes])
        expected = [sequence for sequence, end in enumerate(whole, 1) if end <= n_bytes]
        assert sequences(tmp_path) == expected, n_bytes


def test_drops_unwritten_end_as_torn(written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    content, whole = written.read_bytes(), ends(written)
    cut = (whole[-2] + whole[-1]) // 2
    copy_of(written, tmp_path, content[:cut] + bytes(len(content) - cut))
    with caplog.at_level(logging.INFO):
        assert sequences(tmp_path) == [1, 2]
    (line,) = caplog.records
    assert line.levelno == logging.INFO
    assert "rollout 3 of actor 'a', incarnation 1 was not written to its end" in line.message


@pytest.mark.slow
@settings(max_examples=50)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_finds_flipped_bit_and_the_rollouts_behind_it(
    place: float, bit: int, written: Path, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.getbasetemp() / "flipped"
    folder.mkdir(exist_ok=True)
    content, whole = bytearray(written.read_bytes()), ends(written)
    position = int(place * whole[-1])
    content[position] ^= 1 << bit
    copy_of(written, folder, bytes(content))
    found = sequences(folder)
    hit = next(sequence for sequence, end in enumerate(whole, 1) if position < end)
    assert set(found) >= set(range(1, N_ROLLOUTS + 1)) - {hit}
    # the head of the segment, or the tail of a rollout: nothing is lost
    assert len(found) >= N_ROLLOUTS - 1
    name = SegmentName.parse(written)
    assert name is not None
    with SegmentReader(folder, name) as reader:
        flaws = [each for each in reader.scan(verify=True) if isinstance(each, Flaw)]
    (flaw,) = flaws
    assert not flaw.is_torn
    assert flaw.start <= position < flaw.stop


def test_damage_is_logged_with_file_and_rollout(written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    content, whole = bytearray(written.read_bytes()), ends(written)
    content[whole[1] - 5] ^= 1
    copy = copy_of(written, tmp_path, bytes(content))
    assert sequences(tmp_path) == [1, 3]
    (line,) = caplog.records
    assert line.levelno == logging.ERROR
    assert str(copy) in line.message
    assert "rollout 2 of actor 'a', incarnation 1 is damaged, and cannot be recovered" in line.message


def test_finds_damage_in_an_earlier_segment_when_it_hands_it_out(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_log(tmp_path, [1, 2])
    first = only_segment(tmp_path)
    write_log(tmp_path, [3])
    content, whole = bytearray(first.read_bytes()), ends(first)
    content[whole[0] - 5] ^= 1
    first.write_bytes(bytes(content))
    assert sequences(tmp_path) == [2, 3]
    assert "rollout 1 of actor 'a', incarnation 1, cannot be recovered: it does not match its digest" in caplog.text


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
