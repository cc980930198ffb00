"""Ranks as real processes over gloo."""

import contextlib
import json
import re
import signal
import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch import distributed

from rollcast.learner.ranks.group import choose_backend
from rollcast.services.errors import ConfigurationError
from tests.processes import DEADLINE_S, free_port, zygote_process
from tests.zygote import ForkedProcess

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def ranks(what: str, n: int = 2, *, only: int | None = None, port: int | None = None) -> Iterator[list[ForkedProcess]]:
    place = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())}
    started = range(n) if only is None else [only]
    processes = [zygote_process("tests.rank_operations", what, RANK=str(rank), **place) for rank in started]
    try:
        yield processes
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait(DEADLINE_S)
            process.stdout.close()


def outcome(process: ForkedProcess) -> tuple[int, str]:
    output, errors = process.communicate(60)
    return process.returncode, output + (errors or "")


def test_ranks_gather_in_their_order_and_have_what_rank_0_has():
    with ranks("add", 3) as processes:
        for process in processes:
            assert outcome(process) == (0, "[[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]] [0.0, 0.0]\n")


@pytest.mark.parametrize(
    ("what", "messages"),
    [
        (
            "another version",
            ["MismatchError: rank 1 and rank 0 of one run differ: the version of rollcast is '0.0.1' there"],
        ),
        (
            "die",
            [
                "RankLostError: rank 0 of 2 waited",
                "for the second sum: rank 1 no longer answers; it last reported: ",
            ],
        ),
        ("stay away", ["rank 1 has not arrived; it reports: thinking, after 7 updates"]),
        (
            "raise",
            [
                "for the second sum: rank 1 has ended: ConfigurationError: a wrong number; expected another",
                "it last reported: thinking, after 7 updates",
            ],
        ),
    ],
)
def test_a_rank_is_named_with_what_is_wrong_with_it(what: str, messages: list[str]):
    with ranks(what) as (first, _):
        code, output = outcome(first)
        assert code == 1
        for message in messages:
            assert message in output


def test_a_rank_that_hangs_is_named_after_the_deadline_and_finds_the_store_gone():
    # rank 1 is the last: rank 0, which serves the store, waits for it in vain and ends
    with ranks("hang") as (first, second):
        code, output = outcome(first)
        assert code == 1
        assert "for the second sum: rank 1 no longer answers" in output
        assert "within 4 s (--ranks.timeout-s)" in output
        second.send_signal(signal.SIGCONT)
        code, output = outcome(second)
        assert code == 1
        assert "rank 1 of 2 has lost the store of the ranks" in output


@pytest.mark.parametrize(
    ("doing", "said"),
    [
        ("hang until a stop", "for the second sum: rank 1 no longer answers"),
        ("hang until a stop of a text", " s for what never comes, and rank 1 has not arrived; "),
    ],
)
def test_a_rank_that_is_asked_to_stop_does_not_wait_for_a_frozen_one_until_the_deadline(doing: str, said: str):
    with ranks(doing) as (first, second):
        assert second.stdout.readline() == "hangs\n"
        assert first.stdout.readline() == "waits\n"
        first.send_signal(signal.SIGTERM)
        code, output = outcome(first)
        assert code == 1
        assert said in output
        assert output.endswith(": it was asked to stop, and waits for no silent rank\n")


@pytest.mark.parametrize("doing", ["stored", "read", "awaited"])
def test_a_rank_that_is_asked_to_stop_does_not_wait_for_a_frozen_store_until_the_deadline(doing: str):
    with ranks(f"freeze while texts are {doing} until a stop") as (first, second):
        assert first.stdout.readline() == "hangs\n"
        assert second.stdout.readline() == "waits\n"
        second.send_signal(signal.SIGTERM)
        code, output = outcome(second)
        assert code == 1
        assert "RankLostError: rank 1 of 2 has lost the store of the ranks while " in output
        assert output.endswith(": it has not answered for 8 s\n")


def test_a_text_of_a_dead_rank_is_not_awaited_once_an_operation_has_failed():
    with ranks("die while a text is awaited") as (first, _):
        code, output = outcome(first)
        assert code == 1
        assert " s for a part of the checkpoint, and rank 1 has not arrived; " in output
        assert output.endswith(": an operation of all ranks has failed, and it waits for no silent rank\n")


def test_ranks_on_gpus_agree_in_main_memory():
    with ranks("agree on gpus") as processes:
        for process in processes:
            assert outcome(process) == (0, "3\n")


def test_a_rank_that_does_not_connect_its_device_is_named():
    with ranks("freeze before they are connected on gpus") as (first, _):
        code, output = outcome(first)
        assert code == 1
        assert " s for the connection of all devices: rank 1 no longer answers" in output


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("freeze on gpus", "rank 1 no longer answers; it last reported: "),
        ("raise on gpus", "rank 1 has ended: ConfigurationError: a wrong number; expected another; take it"),
    ],
)
def test_a_rank_for_which_the_device_of_another_waits_is_named(what: str, message: str):
    # the host of rank 0 waits for its device, which waits for rank 1
    with ranks(what) as (first, _):
        code, output = outcome(first)
        assert code == 1
        assert "RankLostError: rank 0 of 2 waited " in output
        assert f" s for the second gradient: {message}" in output
        assert "Traceback" not in output


@pytest.mark.parametrize(
    ("what", "doing", "silent_s"),
    [
        ("freeze before they are connected", r"after \S+ s of the connection of all ranks", 5),
        ("freeze", r"after \S+ s of the second sum", 5),
        ("freeze while texts are stored", "while noting much", 4),
        ("freeze while texts are read", "while reading nothing", 4),
        ("freeze while texts are awaited", "while looking for rank 0", 4),
    ],
)
def test_a_frozen_rank_that_serves_the_store_ends_the_others(what: str, doing: str, silent_s: int):
    with ranks(what) as (_, second):
        code, output = outcome(second)
        assert code == 1
        lost = (
            f"RankLostError: rank 1 of 2 has lost the store of the ranks {doing}; expected torchrun or rank 0 to serve"
        )
        assert re.search(f"{lost} it until the end", output), output
        assert output.endswith(f": it has not answered for {silent_s} s\n")


def test_a_store_that_never_answers_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with ranks("add", only=1, port=port) as (rank,):
            code, output = outcome(rank)
            assert code == 1
            assert f"rank 1 of 2 has found no store at 127.0.0.1:{port} within 4 s" in output


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("settings/1", "[" * 100_000, "RankLostError: the store of the ranks has '[[["),
        ("settings/1", "[]", "has '[]' from rank 1 for the settings of every rank; expected a JSON object"),
        (
            "settings/1",
            json.dumps({"x" * 10_000: 1}),
            "MismatchError: rank 1 and rank 0 of one run differ: --batch-size is None there",
        ),
        ("beat/1", "[Infinity, 1, 2, 3]", "rank 1 has never answered"),
        ("beat/1", '[1, "\\u001b[2J", -Infinity, 3]', "rank 1 has never answered"),
    ],
)
def test_a_stranger_in_the_store_is_told_in_a_line(key: str, text: str, message: str):
    port = free_port()
    with ranks("add", only=0, port=port) as (first,):
        store = distributed.TCPStore("127.0.0.1", port, 2, is_master=False, timeout=timedelta(seconds=DEADLINE_S))
        store.set(f"rollcast/0/{key}", text)
        code, output = outcome(first)
    assert code == 1
    assert message in output
    assert "Traceback" not in output
    assert len(output) < 2000


def test_a_rank_that_was_never_started_is_named():
    with ranks("add", only=0) as (first,):
        code, output = outcome(first)
        assert code == 1
        assert (
            "s for the settings of every rank, and rank 1 has never answered; expected all ranks within 4 s" in output
        )


def test_auto_takes_gloo_on_the_cpu_and_nccl_is_refused_there():
    assert choose_backend("auto", torch.device("cpu")) == "gloo"
    assert choose_backend("gloo", torch.device("cpu")) == "gloo"
    with pytest.raises(ConfigurationError, match=r"--ranks.backend: 'nccl' with the device 'cpu'; expected a CUDA"):
        choose_backend("nccl", torch.device("cpu"))
