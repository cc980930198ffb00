"""The gRPC API without a line of Python on the client's side: buf by reflection, Node.js by the .proto files."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from rollcast.learner.actors.remote import RemoteDistributedActors
from rollcast.learner.actors.serving_options import ServingOptions
from rollcast.learner.algorithms.impala import Impala
from rollcast.learner.algorithms.impala_settings import ImpalaSettings
from rollcast.services.client.client import LearnerClient
from rollcast.services.policies.policies import PolicySpec
from rollcast.services.rollouts.recording import read_rollouts
from rollcast.services.spaces.spaces import FLAT_SUBSTEP, SubstepSpaces
from rollcast.services.status.status import ActorState, Phase
from tests.arrived_rollouts import replayed_log_prob
from tests.integration.test_order_of_members import N_ENVS, T, listening
from tests.needs import lacks
from tests.node import NODE, node_with_packages
from tests.processes import DEADLINE_S, ROOT, completed, free_port, running, status_of, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    """The address of a `rollcast learner` that one small rollout moves to the next version."""
    address = f"127.0.0.1:{free_port()}"
    arguments = ("--run-dir", tmp_path_factory.mktemp("learner") / "run", "--n-rollout-steps", 8, "--batch-size", 2)
    with running("learner", "learner", "--address", address, "--algorithm", "impala", *arguments):
        wait_until(lambda: status_of(address).phase is Phase.TRAINING, "the learner")
        yield address


def _run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class TestBufCurl:
    """The commands of the README. They need no network: the learner describes itself by reflection."""

    @pytest.fixture
    def buf_curl(self, learner, tmp_path):
        buf = Path(sys.executable).parent / "buf"
        if not buf.exists():
            lacks("buf", "buf is not installed (make env)")

        def call(method, *arguments):
            url = f"http://{learner}/rollcast.v1.{method}"
            # from a folder without a .proto file, with a home without settings
            return _run(
                *(buf, "curl", "--protocol", "grpc", "--http2-prior-knowledge", *arguments, url),
                cwd=tmp_path,
                env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
                timeout=DEADLINE_S,
            )

        return call

    def test_get_status(self, buf_curl):
        done = buf_curl("LearnerService/GetStatus")
        assert done.returncode == 0, done.stderr
        status = json.loads(done.stdout)["status"]
        assert status["phase"] == "PHASE_TRAINING"
        assert status["algorithm"] == "impala"

    def test_act(self, buf_curl):
        observation = np.array([[0.01, 0.02, -0.03, 0.04]], "<f4")
        tensor = {
            "dtype": "DATA_TYPE_FLOAT32",
            "shape": observation.shape,
            "data": base64.b64encode(observation.tobytes()).decode(),
        }
        request = {"observation": [{"tensor": tensor}], "deterministic": True}
        done = buf_curl("PolicyService/Act", "-d", json.dumps(request))
        assert done.returncode == 0, done.stderr
        response = json.loads(done.stdout)
        action = np.frombuffer(base64.b64decode(response["action"]["data"]), "<i8")
        assert response["action"]["dtype"] == "DATA_TYPE_INT64"
        assert action.shape == (1,)
        assert action[0] in (0, 1)
        assert int(response["policyVersion"]) >= 1

    def test_refused_call_has_code_and_advice(self, buf_curl):
        done = buf_curl("LearnerService/WatchStatus", "-d", '{"interval_s": 0.001}')
        # buf's exit code is the gRPC code, INVALID_ARGUMENT, times eight
        assert done.returncode == 3 * 8
        error = json.loads(done.stderr)
        assert error["code"] == "invalid_argument"
        assert "0.001" in error["message"]


def test_python_example_acts_without_rollcast(learner, tmp_path):
    # no source root is on the path, and no .pth file is read: rollcast cannot be imported
    program = f"import runpy, sys; sys.argv = {['act.py', learner, str(ROOT / 'proto')]!r}; " + (
        f"sys.path += {[path for path in sys.path if path.endswith('site-packages')]!r}; "
        f"runpy.run_path({str(ROOT / 'examples' / 'act.py')!r})"
    )
    done = _run(sys.executable, "-I", "-S", "-c", program, cwd=tmp_path, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"policy \d+ would do \[[01]\]\n", done.stdout)


class TestNode:
    @pytest.fixture
    def node(self, tmp_path_factory):
        """The command, with its packages installed as the lock file says."""
        return node_with_packages(tmp_path_factory.getbasetemp().parent)

    def test_node_reads_a_recording(self, node, tmp_path):
        """A program without rollcast reads a file of `rollcast record`."""
        path = tmp_path / "demo.rollouts"
        completed("record", "--output", path, "--rollouts", 5, "--envs-per-actor", 3)
        done = _run(node, NODE / "recording.mjs", path, ROOT / "proto", timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        header, *found = [json.loads(line) for line in done.stdout.splitlines()]
        assert header == {"n_rollout_steps": 32, "n_envs": 3, "env_id": "CartPole-v1", "played_by": "random"}
        assert [rollout.pop("key") for rollout in found] == ["0"] * 5
        for rollout, expected in zip(found, read_rollouts(path), strict=True):
            columns = expected.substeps["0"]
            assert rollout == {
                "sequence": expected.sequence,
                "shape": [32, 3],
                "reward": expected.reward.ravel().tolist(),
                "terminated": expected.terminated.ravel().astype(int).tolist(),
                "observation": columns.observation[""].ravel().tolist(),
                "action": columns.action.ravel().tolist(),
                "last_observation": columns.last_observation[""].ravel().tolist(),
                "returns": [episode.episode_return for episode in expected.episodes],
            }

    def test_node_example_acts(self, node, learner, tmp_path):
        (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
        shutil.copy(ROOT / "examples" / "act.mjs", tmp_path)
        done = _run(node, tmp_path / "act.mjs", learner, ROOT / "proto", timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"policy \d+ would do [01]\n", done.stdout)

    def test_the_lock_file_names_no_registry(self):
        packages = json.loads((NODE / "package-lock.json").read_text())["packages"]
        assert all("resolved" not in package for package in packages.values())
        assert all("integrity" in package for name, package in packages.items() if name)

    def test_node_client_reads_status_and_plays_rollouts(self, node, learner):
        """Status, policy, actions, and a rollout of an actor that rollcast has not written."""
        done = _run(node, NODE / "client.mjs", learner, ROOT / "proto", timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        session = [json.loads(line) for line in done.stdout.splitlines()]
        results = {}
        for line in session:
            results.setdefault(line.pop("call"), []).append(line)

        (status,) = results["GetStatus"]
        assert status["phase"] == "PHASE_TRAINING"
        assert results["WatchStatus"] == [{"phases": ["PHASE_TRAINING"] * 2}]
        assert results["WatchHistory"] == [{"algorithm": "impala", "phase": "PHASE_TRAINING", "repeated": False}]

        (policy,) = results["GetPolicy"]
        with LearnerClient(learner) as client:
            _, state = client.get_policy()
            assert policy["shapes"] == {name: list(array.shape) for name, array in state.items()}
            assert policy["n_bytes"] > sum(array.nbytes for array in state.values())

        acted, refused = results["Act"]
        assert acted["dtype"] == "DATA_TYPE_INT64"
        assert set(acted["actions"]) <= {0, 1}
        assert refused["refused"] == "INVALID_ARGUMENT"

        (agreed,) = results["Join"]
        assert agreed["n_rollout_steps"] == 8
        assert agreed["policy"]["network"] == "auto"
        opened, acknowledged = (line.popitem()[1] for line in results["StreamRollouts"])
        assert (opened["acknowledged_sequence"], acknowledged["acknowledged_sequence"]) == ("0", "1")
        (listed,) = results["ListActors"]
        assert [actor["actor_id"] for actor in listed["actors"]] == ["foreign-node"]

        with LearnerClient(learner) as client:
            # 2 trajectories are a batch: what was played in JavaScript has been learnt from
            wait_until(lambda: client.status().updates == 1, "an update with the rollout")
            wait_until(lambda: client.actors()[0].state is ActorState.LEFT, "the end of its stream")
            (actor,) = client.actors()
            assert (actor.rollouts, actor.env_steps) == (1, 16)
            assert client.status().rejected_rollouts == 0

    def test_accepts_members_of_a_dict_in_any_order(self, node):
        """An actor reads the learner's description, then offers and sends the members of a Dict in another order."""
        with listening() as actors:
            done = _run(node, NODE / "any_order.mjs", actors.addresses[0], ROOT / "proto", timeout=DEADLINE_S)
            assert done.returncode == 0, done.stderr
            batch, *_ = actors.collect_outputs("cpu")
        described, agreed = (json.loads(line) for line in done.stdout.splitlines())
        assert described == {
            "members": ["near", "far"],
            "network": "auto",
            "n_rollout_steps": T,
            "batch_size": N_ENVS,
            "n_envs": N_ENVS,
            "max_message_bytes": str(4 << 20),
        }
        assert agreed == {"offered": ["far", "near"], "order": ["near", "far"], "acknowledged": "1"}
        columns = batch.substeps[FLAT_SUBSTEP]
        np.testing.assert_array_equal(columns.observation["near"], np.full((T, N_ENVS, 2), 0.5, np.float32))
        np.testing.assert_array_equal(columns.observation["far"], np.full((T, N_ENVS, 2), 50.0, np.float32))

    @pytest.mark.parametrize("recurrence", ["lstm", "gru"])
    def test_node_computes_a_policy_with_moments_frames_and_a_state(self, node, recurrence):
        """The learner replays what JavaScript computed by the documentation alone, over the ends of episodes."""
        n_envs, n_steps = 2, 14
        spec = PolicySpec(
            hidden_sizes=(8,), recurrence=recurrence, recurrent_size=5, normalize_observations=True, frame_stack=3
        )
        observation = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        flat = {FLAT_SUBSTEP: SubstepSpaces(observation=observation, action=spaces.Discrete(4))}
        algorithm = Impala(flat, spec, ImpalaSettings(), seed=0)
        rng = np.random.default_rng(0)
        # far from the first weights and moments, so that a mistake shows
        state = {
            name: array + (rng.uniform(0.2, 0.6, array.shape).astype(array.dtype) if array.dtype.kind == "f" else 1)
            for name, array in algorithm.policy_state().items()
        }
        algorithm.policy.load_state_arrays(state)
        serving = ServingOptions(addresses=("127.0.0.1:0",), collect_timeout_s=DEADLINE_S)
        with RemoteDistributedActors(
            algorithm.policy, n_steps, n_envs, envs_per_actor=n_envs, serving=serving
        ) as actors:
            command = [node, NODE / "recurrent.mjs", actors.addresses[0], ROOT / "proto"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                batches = [actors.collect_outputs("cpu")[0] for _ in range(2)]
                played, errors = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, errors
        session = json.loads(played)
        assert session["acknowledged"] == "2"
        assert session["otherActions"] == 0
        assert session["stateDifference"] < 1e-5
        for batch in batches:
            columns = batch.substeps[FLAT_SUBSTEP]
            replayed = replayed_log_prob(algorithm.policy, batch)
            np.testing.assert_allclose(replayed, columns.log_prob, atol=1e-5)
            assert columns.log_prob.std() > 0.01
        assert sum(int((batch.terminated | batch.truncated).sum()) for batch in batches) > 4
        assert batches[1].substeps[FLAT_SUBSTEP].initial_state.abs().max() > 0.01
