import threading

import numpy as np
import pytest

from rollcast.services.client import channel
from rollcast.services.client.client import LearnerClient
from rollcast.services.server import server
from tests.integration.learner_fakes import DEADLINE_S, serve

pytestmark = pytest.mark.slow


def test_keepalive_lets_silent_stream_live(monkeypatch):
    # shorter intervals, of the same ratio; gRPC pings once a second at most and forgives two pings too many
    monkeypatch.setattr(channel, "_OPTIONS", faster(channel._OPTIONS))
    monkeypatch.setattr(server, "SERVER_OPTIONS", faster(server.SERVER_OPTIONS))
    with serve() as learner, LearnerClient(learner.address) as client:
        learner.source.publish(1, {"w": np.zeros(1)})
        policies = iter(client.subscribe_policy())
        assert next(policies)[0] == 1
        later = threading.Timer(3.5, learner.source.publish, (2, {"w": np.zeros(1)}))
        later.start()
        assert next(policies)[0] == 2
        later.join(DEADLINE_S)


def faster(options):
    short = ("grpc.keepalive_time_ms", "grpc.http2.min_ping_interval_without_data_ms")
    return tuple((name, value // 40 if name in short else value) for name, value in options)
