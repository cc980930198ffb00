"""Strangers who hold connections at a learner with few descriptors: it has some of its own, and goes on writing."""

import contextlib
import os
import socket

import psutil
import pytest

from rollcast.services.client.client import LearnerClient
from tests.attacks.hostile_clients import PREFACE
from tests.processes import free_port, status_of, wait_until, zygote_process

pytestmark = pytest.mark.slow

LIMIT = 128


@contextlib.contextmanager
def learner_with_few_descriptors(folder):
    address = f"127.0.0.1:{free_port()}"
    options = ("--address", address, "--run-dir", folder / "run", "--env-id", "CartPole-v1")
    process = zygote_process("tests.attacks.few_descriptors", LIMIT, "rollcast.learner", "learner", *options)
    try:
        wait_until(lambda: status_of(address).queue_capacity, "the learner serves")
        yield address, psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_clients_get_half_of_them_and_a_checkpoint_is_written(tmp_path):
    with contextlib.ExitStack() as stack:
        address, process = stack.enter_context(learner_with_few_descriptors(tmp_path))
        client = stack.enter_context(LearnerClient(address))
        client.status()
        host, port = address.split(":")
        for _ in range(3 * LIMIT):
            stranger = stack.enter_context(socket.create_connection((host, int(port))))
            with contextlib.suppress(OSError):
                stranger.sendall(PREFACE)
        wait_until(lambda: process.num_fds() > LIMIT // 2, "strangers hold what they get")
        path, _ = client.save_checkpoint()
        assert os.listdir(path)
        assert process.num_fds() < LIMIT
