"""A call of each RPC of a learner or of a replay server, as our own clients make it."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from rollcast.services.client.client import LearnerClient
from rollcast.services.client.relay import RelayClient
from rollcast.services.client.replay import ReplayClient
from rollcast.services.joining.activity import ActorFailure
from rollcast.services.joining.evaluation import EvaluationReport
from rollcast.services.joining.join import Relay
from tests.integration.learner_fakes import offer

REPORT = EvaluationReport(
    actor_id="e", incarnation=1, learner_nonce=1, outcome=ActorFailure(exception_type="E", message="m", traceback="t")
)
OBSERVATION = {"": np.zeros((2, 4), np.float32)}


def _bundles(client: RelayClient) -> None:
    link = client.open_bundles(Relay("r", 1))
    link.open_stream("a", 1, lambda _answer: None)
    link.run(lambda _nonce: None)


def _responses(client: LearnerClient) -> None:
    uplink = client.open_rollout_stream("a", 1)
    try:
        list(uplink.responses())
    finally:
        uplink.cancel()


CALLS: dict[str, Callable[[Any], object]] = {
    "RolloutService/Join": lambda client: client.join(offer()),
    "RolloutService/StreamRollouts": _responses,
    "RolloutService/ReportEvaluation": lambda client: client.report_evaluation(REPORT),
    "RelayService/StreamBundles": _bundles,
    "PolicyService/GetPolicy": lambda client: client.get_policy(),
    "PolicyService/SubscribePolicy": lambda client: next(iter(client.subscribe_policy())),
    "PolicyService/Act": lambda client: client.act(OBSERVATION),
    "LearnerService/DescribeLearner": lambda client: client.describe(),
    "LearnerService/GetStatus": lambda client: client.status(),
    "LearnerService/WatchStatus": lambda client: list(itertools.islice(client.watch_status(), 2)),
    "LearnerService/ListActors": lambda client: client.actors(),
    "LearnerService/Pause": lambda client: client.pause(),
    "LearnerService/Resume": lambda client: client.resume(),
    "LearnerService/SaveCheckpoint": lambda client: client.save_checkpoint(),
    "LearnerService/Stop": lambda client: client.stop(),
    "HistoryService/WatchHistory": lambda client: next(client.watch_history()),
    "ReplayService/GetReplayInfo": lambda client: client.info(),
    "ReplayService/Sample": lambda client: next(client.samples(4, 1)),
    "ReplayService/UpdatePriorities": lambda client: client.update_priorities([1], [1.0]),
    "ReplayService/Reset": lambda client: client.reset(),
}


def client_of(name: str, address: str) -> LearnerClient | RelayClient | ReplayClient:
    """Returns the client that makes a call."""
    kinds = {"ReplayService": ReplayClient, "RelayService": RelayClient}
    return kinds.get(name.partition("/")[0], LearnerClient)(address)
