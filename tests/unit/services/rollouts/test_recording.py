import dataclasses
import errno
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcast.services.errors import (
    ConfigurationError,
    InvalidRolloutError,
    InvalidTensorError,
    ProtocolMismatchError,
    RecordingError,
    RollcastError,
    SpacesMismatchError,
)
from rollcast.services.rollouts.codec import rollout_to_proto
from rollcast.services.rollouts.recording import RolloutWriter, read_rollouts
from rollcast.services.rollouts.recording_codec import MAX_HEADER_BYTES, RecordingHeader, recording_header_to_proto
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from rollcast.services.wire.message_body import varint
from rollcast.services.wire.seal import seal
from tests.rollouts import (
    CARTPOLE_LIKE,
    NESTED,
    assert_same_rollout,
    header_of,
    make_rollout,
    random_rollout,
    without_digests,
)

HEADER = RecordingHeader(spaces=CARTPOLE_LIKE, n_rollout_steps=3, n_envs=2, env_id="CartPole-v1", played_by="random")


def framed(message) -> bytes:
    sealed = seal(message.SerializeToString())
    return varint(len(sealed)) + sealed


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A recording of three rollouts."""
    path = tmp_path_factory.mktemp("whole") / "demo"
    with RolloutWriter(path, HEADER) as writer:
        for sequence in (1, 2, 3):
            writer.append(random_rollout(CARTPOLE_LIKE, 3, 2, seed=sequence, sequence=sequence))
    return path.read_bytes()


def starts(content: bytes) -> list[int]:
    """Returns the offsets of a file's messages, and its length."""
    found, offset = [0], 0
    while offset < len(content):
        length = shift = 0
        while True:
            byte = content[offset]
            length |= (byte & 127) << shift
            offset, shift = offset + 1, shift + 7
            if byte < 128:
                break
        offset += length
        found.append(offset)
    return found


def read_until_error(path: Path) -> tuple[int, RollcastError | None]:
    n_read = 0
    try:
        for _ in read_rollouts(path):
            n_read += 1
    except RollcastError as error:
        return n_read, error
    return n_read, None


class TestRoundTrip:
    @given(
        n_steps=st.integers(1, 5),
        n_envs=st.integers(1, 4),
        n_rollouts=st.integers(1, 4),
        seed=st.integers(0, 2**32 - 1),
        has_valid=st.booleans(),
        data=st.data(),
    )
    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_everything_comes_back(self, tmp_path, n_steps, n_envs, n_rollouts, seed, has_valid, data):
        header = RecordingHeader(spaces=NESTED, n_rollout_steps=n_steps, n_envs=n_envs, env_id="x", played_by="y")
        written = [
            random_rollout(
                NESTED,
                n_steps,
                n_envs,
                n_final=data.draw(st.integers(0, n_steps * n_envs)),
                seed=seed + i,
                sequence=i + 1,
                valid=np.ones((n_steps, n_envs), np.bool_) if has_valid else None,
                policy_versions=np.arange(-1, n_steps * n_envs - 1).reshape(n_steps, n_envs) if has_valid else None,
            )
            for i in range(n_rollouts)
        ]
        path = tmp_path / "demo"
        with RolloutWriter(path, header, overwrite=True) as writer:
            for rollout in written:
                writer.append(rollout)
        assert (writer.n_rollouts, writer.n_bytes) == (n_rollouts, path.stat().st_size)
        read = list(read_rollouts(path, NESTED))
        for mine, theirs in zip(read, written, strict=True):
            assert_same_rollout(mine, theirs)

    def test_the_header_comes_back(self, tmp_path, whole):
        (tmp_path / "demo").write_bytes(whole)
        header = header_of(tmp_path / "demo")
        assert (header.n_rollout_steps, header.n_envs) == (3, 2)
        assert (header.env_id, header.played_by) == ("CartPole-v1", "random")
        assert header.software_version
        assert list(header.spaces) == [FLAT_SUBSTEP]

    def test_a_rollout_of_the_largest_size_is_below_the_limit(self, tmp_path):
        image = {"0": SubstepSpaces(observation=spaces.Box(0, 255, (90, 90), np.uint8), action=spaces.Discrete(2))}
        header = RecordingHeader(spaces=image, n_rollout_steps=40, n_envs=20)
        rollout = random_rollout(image, 40, 20, n_final=800)
        n_bytes = rollout_to_proto(rollout).ByteSize()
        assert n_bytes > 12_000_000
        assert n_bytes <= header.max_rollout_bytes <= n_bytes + 9_000_000


class TestFilesThatAreNotWhole:
    @pytest.mark.slow
    def test_cut_off_file_names_its_whole_rollouts_and_how_to_keep_them(self, tmp_path, whole):
        borders = starts(whole)
        path = tmp_path / "demo"
        # around each border, and everywhere between
        for size in sorted({*range(1, len(whole), 7), *(border + d for border in borders[1:-1] for d in (-1, 0, 1))}):
            path.write_bytes(whole[:size])
            n_read, error = read_until_error(path)
            n_whole = sum(border <= size for border in borders) - 2
            if size in borders:
                assert (n_read, error) == (n_whole, None)
            elif size < borders[1]:
                assert n_read == 0
                assert str(error).startswith(f"{path}: ")
                assert "cut off" in str(error)
            else:
                assert n_read == n_whole
                assert str(error).startswith(f"{path}: rollout {n_whole + 1}, at byte {borders[n_whole + 1]}: ")
                assert "cut off" in str(error)
                if n_whole:
                    assert f"the {n_whole} rollouts before it are complete" in str(error)
                    assert f"`head -c {borders[n_whole + 1]} {path} > NEW`" in str(error)

    @pytest.mark.parametrize("path", ["missing", "."])
    def test_rejects_missing_file(self, tmp_path, path):
        with pytest.raises(ConfigurationError, match=r"cannot be read: (No such file|Is a directory)"):
            list(read_rollouts(tmp_path / path))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "it is empty; expected a recording"),
            (b"\x81\x80\x80\x02" + bytes(MAX_HEADER_BYTES + 1), f"a message of {MAX_HEADER_BYTES + 1} bytes; expected"),
            *(
                (content, ".*expected")
                for content in (b"\x89PNG\r\n\x1a\n" * 40, b"import sys\n" * 50, b"\x00", b"\x02{}" * 9)
            ),
        ],
        ids=["nothing", "a long header", "a picture", "a program", "a zero", "objects"],
    )
    def test_rejects_another_kind_of_file(self, tmp_path, content, message):
        (tmp_path / "demo").write_bytes(content)
        with pytest.raises(RecordingError, match=f"demo: (.*: )?{message}"):
            list(read_rollouts(tmp_path / "demo"))

    @pytest.mark.parametrize(
        ("length", "message"),
        [
            (b"\xff\xff\xff\xff\x07", r"a message of 2147483647 bytes; expected at most"),
            (b"\xff\xff\xff\xff\x7f", r"a message of 34359738367 bytes; expected at most"),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", r"a length of more than 5 bytes"),
            (b"\x80\x80\x80\x03", r"a message of 6291456 bytes is cut off after 0"),
            (b"\x80", r"the length of a message is cut off"),
        ],
    )
    def test_absurd_lengths_are_refused_before_anything_is_allocated(self, tmp_path, whole, length, message):
        (tmp_path / "demo").write_bytes(whole + length)
        tracemalloc.start()
        try:
            with pytest.raises(RecordingError, match=f"rollout 4, at byte {len(whole)}: {message}"):
                list(read_rollouts(tmp_path / "demo"))
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()

    def test_a_header_of_absurd_numbers_allocates_nothing(self, tmp_path, whole):
        proto = recording_header_to_proto(HEADER)
        proto.n_rollout_steps = proto.n_envs = 2**32 - 1
        (tmp_path / "demo").write_bytes(framed(proto) + whole[starts(whole)[1] :])
        tracemalloc.start()
        try:
            with pytest.raises(RecordingError, match="rollout 1, at byte"):
                list(read_rollouts(tmp_path / "demo"))
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()

    def test_rejects_every_damaged_copy(self, tmp_path, whole):
        path, rng = tmp_path / "demo", random.Random(0)
        for _ in range(600):
            damaged = bytearray(whole)
            place = rng.randrange(len(whole))
            damaged[place] ^= rng.randrange(1, 256)
            path.write_bytes(damaged)
            n_read, error = read_until_error(path)
            assert n_read == max(sum(border <= place for border in starts(whole)) - 2, 0), place
            assert isinstance(error, RecordingError | ProtocolMismatchError)
            assert str(path) in str(error)

    def test_file_without_digests_is_read_with_a_warning(self, tmp_path, whole, caplog):
        (tmp_path / "new").write_bytes(whole)
        new = list(read_rollouts(tmp_path / "new"))
        assert not caplog.records
        (tmp_path / "old").write_bytes(without_digests(whole))
        for mine, theirs in zip(read_rollouts(tmp_path / "old"), new, strict=True):
            assert_same_rollout(mine, theirs)
        assert "old has no digests" in caplog.text


class TestFilesThatDoNotFit:
    def test_other_spaces_are_refused_with_the_path_and_both_sides(self, tmp_path, whole):
        (tmp_path / "demo").write_bytes(whole)
        other = {
            FLAT_SUBSTEP: SubstepSpaces(observation=CARTPOLE_LIKE[FLAT_SUBSTEP].observation, action=spaces.Discrete(3))
        }
        with pytest.raises(
            SpacesMismatchError, match=r"at 0/action: the reader has Discrete\(3\), .*demo has Discrete\(2\)"
        ):
            next(read_rollouts(tmp_path / "demo", other))

    @pytest.mark.parametrize(
        ("field", "value", "error", "message"),
        [
            ("format", "x", RecordingError, "its format is 'x'; expected 'rollcast.v1.Recording'"),
            ("protocol_version", 9, ProtocolMismatchError, "its protocol version is 9; expected 1"),
            ("n_rollout_steps", 0, RecordingError, "its n_rollout_steps is 0; expected at least 1"),
            ("n_envs", 0, RecordingError, "its n_envs is 0; expected at least 1"),
            ("substeps", None, RecordingError, "there is no substep; expected at least one"),
        ],
    )
    def test_rejects_invalid_header(self, tmp_path, field, value, error, message):
        proto = recording_header_to_proto(HEADER)
        proto.ClearField(field)
        if value is not None:
            setattr(proto, field, value)
        (tmp_path / "demo").write_bytes(framed(proto))
        with pytest.raises(error, match=f"demo: {message}"):
            next(read_rollouts(tmp_path / "demo"))

    @pytest.mark.parametrize("change", ["nan", "substep", "sequence"])
    def test_rejects_rollout_that_does_not_fit_the_header(self, tmp_path, whole, change):
        proto = rollout_to_proto(make_rollout(sequence=4))
        if change == "nan":
            proto.reward.data = np.full((3, 2), np.nan, "<f4").tobytes()
        elif change == "substep":
            proto.substeps[0].key = "1"
        else:
            proto.sequence = 0
        (tmp_path / "demo").write_bytes(whole + framed(proto))
        n_read, error = read_until_error(tmp_path / "demo")
        assert n_read == 3
        assert isinstance(error, RecordingError)
        assert f"demo: rollout 4, at byte {len(whole)}: " in str(error)
        assert "the 3 rollouts before it are complete" in str(error)


class TestWriter:
    def test_a_file_that_exists_is_refused_and_stays(self, tmp_path):
        (tmp_path / "demo").write_text("mine")
        with pytest.raises(ConfigurationError, match=r"demo exists; expected a new file; .* --overwrite"):
            RolloutWriter(tmp_path / "demo", HEADER)
        assert [path.name for path in tmp_path.iterdir()] == ["demo"]
        with RolloutWriter(tmp_path / "demo", HEADER, overwrite=True) as writer:
            assert (tmp_path / "demo").read_text() == "mine", "until the new one is whole"
            writer.append(make_rollout())
        assert len(list(read_rollouts(tmp_path / "demo"))) == 1

    @pytest.mark.parametrize("path", ["no/such/folder/demo", "."])
    def test_rejects_place_that_cannot_be_written(self, tmp_path, path):
        with pytest.raises(ConfigurationError, match="expected"):
            RolloutWriter(tmp_path / path, HEADER, overwrite=True)

    def test_leaves_no_file_without_rollouts(self, tmp_path):
        with RolloutWriter(tmp_path / "demo", HEADER):
            assert len(list(tmp_path.iterdir())) == 1
        assert not list(tmp_path.iterdir())

    def test_an_exception_keeps_what_was_written(self, tmp_path):
        with pytest.raises(ZeroDivisionError):
            with RolloutWriter(tmp_path / "demo", HEADER) as writer:
                writer.append(make_rollout())
                raise ZeroDivisionError
        assert [path.name for path in tmp_path.iterdir()] == ["demo"]
        assert len(list(read_rollouts(tmp_path / "demo"))) == 1

    def test_whole_messages_are_in_the_file_at_once(self, tmp_path):
        with RolloutWriter(tmp_path / "demo", HEADER) as writer:
            (partial,) = tmp_path.iterdir()
            assert partial.name.startswith(".demo.")
            assert partial.name.endswith(".partial")
            for n in (1, 2, 3):
                writer.append(make_rollout(sequence=n))
                assert len(list(read_rollouts(partial))) == n, "what a process that is killed leaves behind"

    def test_rejects_rollout_that_could_not_be_read_back(self, tmp_path):
        with RolloutWriter(tmp_path / "demo", HEADER) as writer:
            writer.append(make_rollout())
            with pytest.raises(InvalidTensorError, match="reward holds"):
                writer.append(dataclasses.replace(make_rollout(), reward=np.full((3, 2), np.nan, np.float32)))
            with pytest.raises((InvalidRolloutError, InvalidTensorError), match=r"has shape \[4, 2, 4\]"):
                writer.append(make_rollout(n_steps=4))
            writer.append(make_rollout(sequence=2))
        assert [rollout.sequence for rollout in read_rollouts(tmp_path / "demo")] == [1, 2]

    def test_a_full_disk_keeps_what_was_whole(self, tmp_path, monkeypatch):
        opened, disks = Path.open, []

        def on_small_disk(path, mode="r", *arguments, **options):
            file = opened(path, mode, *arguments, **options)
            if mode == "xb":
                disks.append(FullDisk(file, room=10**9))
            return disks[-1] if mode == "xb" else file

        monkeypatch.setattr(Path, "open", on_small_disk)
        with RolloutWriter(tmp_path / "demo", HEADER) as writer:
            writer.append(make_rollout())
            (disk,) = disks
            disk.room = 100
            with pytest.raises(RecordingError, match=r"rollout 2 cannot be written: No space left on device; .*1 roll"):
                writer.append(make_rollout(sequence=2))
            disk.room = 10**9
            writer.append(make_rollout(sequence=2))
        assert [rollout.sequence for rollout in read_rollouts(tmp_path / "demo")] == [1, 2]

    def test_file_of_another_process_is_not_overwritten(self, tmp_path):
        writer = RolloutWriter(tmp_path / "demo", HEADER)
        writer.append(make_rollout())
        (tmp_path / "demo").write_text("theirs")
        with pytest.raises(
            RecordingError, match=r"demo exists; .* its 1 rollouts are in .*\.partial: rename that file"
        ):
            writer.close()
        writer.close()
        assert (tmp_path / "demo").read_text() == "theirs"
        (partial,) = tmp_path.glob(".demo.*.partial")
        assert len(list(read_rollouts(partial))) == 1


class FullDisk:
    """A file on a disk with little room."""

    def __init__(self, file, room: int) -> None:
        self._file, self.room = file, room

    def write(self, content) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        n = self._file.write(content[: self.room])
        self.room -= n
        return n

    def __getattr__(self, name: str):
        return getattr(self._file, name)

    def __enter__(self):
        return self._file.__enter__()

    def __exit__(self, *error) -> None:
        self._file.__exit__(*error)
