"""Every decoder, with a few of the messages that `make fuzz` has a million of."""

import subprocess
import sys
import tracemalloc
from random import Random

import pytest

from tests.fuzz.messages import join_pieces, split_pieces
from tests.fuzz.oracle import judge, limited
from tests.fuzz.report import Report
from tests.fuzz.run import fuzz, shared_out
from tests.fuzz.targets import TARGETS, make_target

N_MESSAGES = 60
READ_NEARLY_ANYTHING = {"learner_status", "actor_info", "error_status", "log_segment", "metrics"}
REFUSES_NEARLY_ANYTHING = {"certificates", "run_settings"}


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_hostile_messages_are_refused_or_read(name, tmp_path):
    target, rng, kinds = make_target(name, tmp_path), Random(3), set()
    with limited(target):
        for seed in target.seeds:
            target.decode(seed)  # what is imported and made once is nobody's allocation
        tracemalloc.start(1)
        try:
            assert {judge(target, seed).kind for seed in target.seeds} == {"accepted"}
            message = target.seeds[0]
            for number in range(max(8, int(N_MESSAGES * min(TARGETS[name].share, 1)))):
                message = target.mutate(target.seeds[number % len(target.seeds)] if number % 3 else message, rng)
                kinds.add(judge(target, message[: target.max_length]).kind)
        finally:
            tracemalloc.stop()
    assert len(kinds) > 1 or name in READ_NEARLY_ANYTHING | REFUSES_NEARLY_ANYTHING


def test_pieces_come_apart_again():
    pieces = [b"", b"a", bytes(127), bytes(128), bytes(70_000)]
    assert split_pieces(join_pieces(pieces)) == pieces
    assert split_pieces(b"\x05abc") == [b"abc"]


def test_messages_are_shared_out():
    assert shared_out(10, {"a": 1, "b": 3}) == {"a": 3, "b": 8}


@pytest.mark.slow
def test_a_target_runs_under_the_fuzzer_to_its_last_message(tmp_path):
    pytest.importorskip("atheris", reason="atheris has no wheel for this machine")
    report = fuzz("tensor", tmp_path / "tensor", 300, seed=3)
    assert report.findings == []
    assert (report.n_messages, sum(report.kinds.values())) == (300, 300)
    assert report.edges > 20
    assert "| tensor | 300 |" in str(Report(3, [report]))


@pytest.mark.slow
def test_a_message_can_be_judged_again(tmp_path):
    (tmp_path / "message").write_bytes(b"\x08\x63")
    command = [sys.executable, "-m", "tests.fuzz", "--only", "tensor", "--replay", str(tmp_path / "message")]
    assert "InvalidTensorError" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
