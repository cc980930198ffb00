"""Environments in real processes, which are really killed."""

import contextlib
import copy
import functools
import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcast.actor.environments.failures import EnvironmentFailedError, EnvironmentLostError
from rollcast.actor.statistics.events import LogStatsLevel
from rollcast.actor.statistics.wrapper import events_in
from rollcast.actor.vector.sequential import SequentialVectorEnv
from rollcast.actor.vector.subproc import SubprocVectorEnv
from rollcast.services.errors import ConfigurationError, InvalidSpaceError, RefusedError
from tests.event_environments import FiringEnv
from tests.processes import DEADLINE_S, ROOT, environment, is_alive, wait_until
from tests.unit.actor.sample_environments import IMAGE_SPACES, OBSERVATION_SPACES, NumberedEnv, SampledEnv
from tests.unit.actor.vector.test_arrays import LEAVES, SPACES
from tests.vector_comparison import assert_same, assert_same_play
from tests.vector_environments import (
    ClosingEnv,
    DrawingEnv,
    GrowingInfoEnv,
    LargeInfoEnv,
    MisbehavingEnv,
    OtherSpaceEnv,
    TellingEnv,
    TwoReasonsError,
    UnreadableInfoEnv,
    UnreadableSpaceEnv,
    UnsendableInfoEnv,
)

MODES = list(AutoresetMode)


@pytest.fixture(scope="module", autouse=True)
def forkserver():
    """Imports what the environments need once, not in every process."""
    multiprocessing.set_forkserver_preload(["rollcast.actor.vector.child", "tests.vector_environments"])
    SubprocVectorEnv([NumberedEnv]).close()


@pytest.fixture(autouse=True)
def nothing_stays(forkserver):
    """Every test gives back its descriptors, those of its memory among them, and its processes."""
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    # an exception that a test has caught holds frames, and these the memory
    wait_until(lambda: gc.collect() >= 0 and len(os.listdir("/proc/self/fd")) <= descriptors, "descriptors given back")


def are_gone(pids):
    return not any(map(is_alive, pids))


class TestTheTwins:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("env", [TellingEnv, DrawingEnv])
    def test_both_vectors_return_the_same_values(self, env, mode):
        factories = [env] * 5
        twin = SequentialVectorEnv(factories, autoreset_mode=mode)
        ours = SubprocVectorEnv(factories, autoreset_mode=mode, envs_per_process=2)
        assert len(ours.pids) == 3
        assert assert_same_play(ours, twin, 60) > 30
        assert ours.statistics.epoch_stats() == twin.statistics.epoch_stats()
        ours.close(), twin.close()
        assert ours.pids == ()

    @pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
    def test_both_vectors_consume_the_same_seeds(self, mode):
        twin = SequentialVectorEnv([TellingEnv] * 3, autoreset_mode=mode)
        ours = SubprocVectorEnv([TellingEnv] * 3, autoreset_mode=mode, envs_per_process=1)
        for vector in (ours, twin):
            vector.seed([10, 20, 30, 11, 21, 31, 12, 22])
        for _ in range(2):
            assert_same_play(ours, twin, 20, seed=None)
        ours.close(), twin.close()

    @pytest.mark.parametrize("start_method", ["fork", "spawn"])
    def test_values_do_not_depend_on_the_start_method(self, start_method):
        twin = SequentialVectorEnv([DrawingEnv] * 3)
        ours = SubprocVectorEnv([DrawingEnv] * 3, start_method=start_method, envs_per_process=2, copy=False)
        assert_same_play(ours, twin, 20)
        ours.close(), twin.close()

    def test_both_vectors_agree_in_every_observation_space(self):
        every = spaces.Dict(OBSERVATION_SPACES | IMAGE_SPACES)
        factories = [lambda: SampledEnv(copy.deepcopy(every), spaces.Discrete(3))] * 2
        ours, twin = SubprocVectorEnv(factories), SequentialVectorEnv(factories)
        assert_same_play(ours, twin, 10)
        ours.close(), twin.close()

    @settings(max_examples=10, suppress_health_check=list(HealthCheck))
    @given(SPACES, LEAVES, st.integers(1, 4))
    def test_both_vectors_agree_in_random_spaces(self, observation_space, action_space, n_envs):
        factories = [lambda: SampledEnv(copy.deepcopy(observation_space), action_space)] * n_envs
        ours, twin = SubprocVectorEnv(factories, start_method="fork"), SequentialVectorEnv(factories)
        assert_same_play(ours, twin, 10)
        ours.close(), twin.close()

    @pytest.mark.parametrize("mode", MODES)
    def test_both_vectors_agree_on_infos_whose_containers_grow(self, mode):
        twin = SequentialVectorEnv([GrowingInfoEnv] * 3, autoreset_mode=mode)
        ours = SubprocVectorEnv([GrowingInfoEnv] * 3, autoreset_mode=mode, envs_per_process=2)
        assert assert_same_play(ours, twin, 20)
        told = twin.reset(seed=7)[1], twin.step(np.zeros(3, int))[4]
        assert [infos["seen"].tolist() for infos in told] == [[[]] * 3, [[1]] * 3], "each info as it was told"
        ours.close(), twin.close()

    def test_both_vectors_agree_on_infos_larger_than_a_pipe(self):
        ours, twin = SubprocVectorEnv([LargeInfoEnv] * 2), SequentialVectorEnv([LargeInfoEnv] * 2)
        assert_same_play(ours, twin, 5)
        ours.close(), twin.close()


def test_both_vectors_reach_attributes_and_methods():
    with_processes = SubprocVectorEnv([TellingEnv] * 3, envs_per_process=2)
    with_processes.reset(seed=3)
    assert with_processes.call("add", 2, factor=5) == (11, 11, 11)
    with_processes.set_attr("difficulty", [2, 3, 4])
    assert with_processes.get_attr("difficulty") == (2, 3, 4)
    assert with_processes.np_random_seed == (3, 4, 5)
    assert len(with_processes.render()) == 3
    assert with_processes.get_actor_rewards() is None
    with_processes.close(), with_processes.close()
    with pytest.raises(RefusedError, match="is closed"):
        with_processes.step(np.zeros(3, int))


def assert_hangs(play, message):
    """Plays with more and more time for what does not hang, which on a busy machine may be late, too."""
    for timeout_s in (0.5, 2.0, 8.0, 32.0):
        with pytest.raises(EnvironmentLostError, match=rf"within {timeout_s} s") as lost:
            play(timeout_s)
        if re.search(message, str(lost.value)):
            return
    raise AssertionError(f"{lost.value}; expected {message}")


class TestFirstReady:
    def test_first_ready_plays_the_same_as_lockstep(self):
        twin = SequentialVectorEnv([TellingEnv] * 4, autoreset_mode="SameStep")
        ours = SubprocVectorEnv([TellingEnv] * 4, autoreset_mode="SameStep", envs_per_process=2)
        assert_same(ours.reset(seed=5), twin.reset(seed=5))
        expected = [twin.step(np.zeros(4, int)) for _ in range(20)]
        n_played = [0] * 4
        ours.send(np.zeros(4, int))
        while min(n_played) < 20:
            ready = ours.recv()
            for k, index in enumerate(ready.env_indices.tolist()):
                if n_played[index] < 20:
                    observations, rewards, terminated, truncated, infos = expected[n_played[index]]
                    np.testing.assert_array_equal(ready.observations[k], observations[index])
                    assert ready.rewards[k] == rewards[index]
                    assert ready.terminated[k] == terminated[index]
                    assert ready.truncated[k] == truncated[index]
                    if terminated[index] or truncated[index]:
                        np.testing.assert_array_equal(ready.infos["final_obs"][index], infos["final_obs"][index])
                n_played[index] += 1
            ours.send(np.zeros(len(ready.env_indices), int), ready.env_indices)
        ready = ours.recv(4)
        assert sorted(ready.env_indices.tolist()) == [0, 1, 2, 3]
        ours.close(), twin.close()

    def test_recv_does_not_wait_for_slow_environments(self, monkeypatch):
        monkeypatch.setattr("rollcast.actor.vector.subproc._CLOSE_GRACE_S", 0.2)
        ours = SubprocVectorEnv([functools.partial(MisbehavingEnv, "hang", 1), NumberedEnv], envs_per_process=1)
        ours.reset(seed=0)
        ours.send(np.zeros(2, int))
        for _ in range(3):
            ready = ours.recv()
            assert ready.env_indices.tolist() == [1]
            ours.send(np.zeros(1, int), ready.env_indices)
        with pytest.raises(RefusedError, match=r"environments \[0\] are in a step"):
            ours.send(np.zeros(1, int), np.array([0]))
        with pytest.raises(RefusedError, match=r"call recv\(\) first"):
            ours.step(np.zeros(2, int))
        ours.close()

    def test_rejects_indices_of_half_a_process(self):
        ours = SubprocVectorEnv([NumberedEnv] * 2, envs_per_process=2)
        ours.reset(seed=0)
        with pytest.raises(ConfigurationError, match=r"env_indices is \[1\]; expected either all .*\[\[0, 1\]\]"):
            ours.send(np.zeros(1, int), np.array([1]))
        with pytest.raises(ConfigurationError, match="n_min is 1; expected 1 to 0"):
            ours.recv()
        ours.close()

    def test_recv_reports_dead_and_hanging_processes(self):
        def lose(what, timeout_s):
            with contextlib.closing(
                SubprocVectorEnv([functools.partial(MisbehavingEnv, what, 1)], timeout_s=timeout_s)
            ) as ours:
                ours.reset(seed=0)
                ours.send(np.zeros(1, int))
                ours.recv()

        with pytest.raises(EnvironmentLostError, match="by signal 9"):
            lose("kill", DEADLINE_S)
        assert_hangs(functools.partial(lose, "hang"), "has not returned from step")


class TestFailures:
    def play(self, factories, **arguments):
        """Plays until something is raised, closes twice, and raises it again."""
        env = SubprocVectorEnv(factories, **arguments)
        pids = env.pids
        try:
            env.reset(seed=7)
            for _ in range(4):
                env.step(np.zeros(env.num_envs, int))
        finally:
            env.close(), env.close()
            assert are_gone(pids)

    @pytest.mark.parametrize(
        ("what", "at", "message"),
        [
            ("raise", 2, r"environment 2 \(seed 9\) raised ValueError in step\(\): the pole is broken"),
            ("raise", 0, r"environment 2 \(seed 9\) raised ValueError in reset\(\)"),
            ("raise", -1, r"environment 2 \(seed None\) raised ValueError in make\(\)"),
            ("exit", 2, r"environment 2 \(seed 9\) raised SystemExit in step\(\): sys.exit\(3\) was called"),
            (
                "raise without a message",
                2,
                r"environment 2 \(seed 9\) raised WithoutMessageError in step\(\): \(no message: LookupError",
            ),
            ("dtype", 2, r"environment 2 \(seed 9\) .* the observation is complex64\[3\]; expected float64\[3\]"),
            ("shape", 2, r"environment 2 \(seed 9\) .* the observation is float64\[2\]; expected float64\[3\]"),
            ("close", 2, r"environment 2 \(seed 9\) raised RuntimeError in step\(\): the simulator is closed"),
        ],
    )
    @pytest.mark.parametrize("envs_per_process", [1, 4])
    def test_error_names_environment_and_seed(self, what, at, message, envs_per_process):
        factories = [MisbehavingEnv, MisbehavingEnv, functools.partial(MisbehavingEnv, what, at), MisbehavingEnv]
        with pytest.raises(EnvironmentFailedError, match=message) as caught:
            self.play(factories, envs_per_process=envs_per_process)
        assert caught.value.env_index == 2
        assert "Traceback" in caught.value.exception_traceback
        if what in {"raise", "exit", "close"}:
            assert "tests/vector_environments.py" in caught.value.exception_traceback
        assert caught.value.exception_traceback in caught.value.__notes__[0]

    @pytest.mark.parametrize(
        ("what", "at", "message"),
        [
            ("kill", 2, r"environment 1 \(seed 8\) was in step\(\) when its process, .* 0 to 1, ended by signal 9"),
            ("kill", 0, r"environment 1 \(seed 8\) was in reset\(\) when its process, .* ended by signal 9"),
            ("kill", -1, r"was in make\(\) when its process, with environments 0 to 1, ended by signal 9"),
            ("end", 2, r"environment 1 \(seed 8\) was in step\(\) when its process, .* ended with exit code 4"),
            ("end with 1", 2, r"ended with exit code 1; .*; its output shows the reason; correct the environment$"),
        ],
    )
    def test_reports_process_that_ends(self, what, at, message):
        factories = [MisbehavingEnv, functools.partial(MisbehavingEnv, what, at), MisbehavingEnv]
        with pytest.raises(EnvironmentLostError, match=message):
            self.play(factories, envs_per_process=2)

    @pytest.mark.parametrize("at", [2, 0, -1])
    def test_reports_environment_that_hangs(self, at):
        doing = {2: "step", 0: "reset", -1: "make"}[at]
        factories = [MisbehavingEnv, functools.partial(MisbehavingEnv, "hang", at)]
        assert_hangs(
            lambda timeout_s: self.play(factories, envs_per_process=1, timeout_s=timeout_s),
            rf"environment 1 .*not returned from {doing}\(\) within ",
        )

    def test_reports_process_killed_between_steps(self):
        env = SubprocVectorEnv([NumberedEnv] * 2, envs_per_process=1)
        env.reset(seed=0)
        pids = env.pids
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(EnvironmentLostError, match=r"environment 1 .* ended by signal 9"):
            for _ in range(3):
                env.step(np.zeros(2, int))
        with pytest.raises(RefusedError, match="has failed: EnvironmentLostError"):
            env.reset()
        env.close(), env.close()
        assert are_gone(pids)

    def test_failing_close_does_not_keep_others_open(self):
        self.play([functools.partial(MisbehavingEnv, "raise in close", 99), MisbehavingEnv])

    def test_reports_info_that_cannot_be_sent(self):
        message = (
            r"environment 1 \(seed 8\) returned a wrong value from step\(\): its info cannot be sent .*_thread.lock"
        )
        with pytest.raises(EnvironmentFailedError, match=message):
            self.play([TellingEnv, UnsendableInfoEnv], envs_per_process=2)

    def test_reports_result_that_cannot_be_sent(self):
        env = SubprocVectorEnv([TellingEnv, UnsendableInfoEnv], envs_per_process=2)
        env.reset(seed=7)
        message = r"environment 1 \(seed 8\) returned a wrong value from call\(\): the result cannot be sent"
        with pytest.raises(EnvironmentFailedError, match=message):
            env.get_attr("lock")
        assert env.get_attr("name") == (7, 8)
        env.close()

    @pytest.mark.parametrize("start_method", multiprocessing.get_all_start_methods())
    def test_reports_what_cannot_be_read_where_it_arrives(self, start_method):
        problem = r"cannot be sent to another process: TwoReasonsError.__init__\(\) missing 1 .* 'second'"
        factories = [TellingEnv, UnreadableInfoEnv, TellingEnv]
        with contextlib.closing(SubprocVectorEnv(factories, start_method=start_method, envs_per_process=2)) as env:
            env.reset(seed=7)
            for use, what in (
                (lambda: env.get_attr("last_error"), r"call\(\): the result"),
                (lambda: env.step(np.zeros(3, int)), r"step\(\): its info"),
            ):
                assert env.get_attr("name") == (7, 8, 9)
                with pytest.raises(EnvironmentFailedError, match=rf"environment 1 \(seed 8\) .* {what} {problem}"):
                    use()
        with pytest.raises(EnvironmentFailedError, match=rf"environment 0 .* make\(\): the description .* {problem}"):
            SubprocVectorEnv([UnreadableSpaceEnv], start_method=start_method)

    @pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
    def test_reports_factory_that_cannot_be_read_in_its_process(self, start_method):
        factory = functools.partial(NumberedEnv, TwoReasonsError("no", "never"))
        with pytest.raises(EnvironmentFailedError, match=r"environment 1 .* raised TypeError in make\(\): TwoReasons"):
            SubprocVectorEnv([NumberedEnv, factory], start_method=start_method, envs_per_process=1)

    def test_infos_that_nobody_reads_stay_in_their_process(self):
        env = SubprocVectorEnv([UnsendableInfoEnv] * 2, info_keys=["name"])
        env.reset(seed=7)
        assert env.step(np.zeros(2, int))[4]["name"].tolist() == [7, 8]
        env.close()

    def test_rejects_different_spaces(self):
        for envs_per_process in (1, 2):
            with pytest.raises(InvalidSpaceError, match=r"environment 1 has observation_space .* environment 0"):
                SubprocVectorEnv([MisbehavingEnv, OtherSpaceEnv], envs_per_process=envs_per_process)

    @pytest.mark.parametrize("start_method", multiprocessing.get_all_start_methods())
    def test_refused_environments_are_closed(self, tmp_path, caplog, start_method):
        factories = [functools.partial(ClosingEnv, tmp_path, n_values) for n_values in (1, 2, 3)]
        with pytest.raises(InvalidSpaceError, match="environment 1 has observation_space"):
            SubprocVectorEnv(factories, start_method=start_method, envs_per_process=1)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]
        assert "killed" not in caplog.text

    def test_rejects_factory_that_cannot_be_sent(self):
        lock = threading.Lock()
        with pytest.raises(ConfigurationError, match="cannot be sent to a process"):
            SubprocVectorEnv([lambda: lock])

    def test_rejects_factory_of_something_else(self):
        with pytest.raises(EnvironmentFailedError, match=r"ConfigurationError in make\(\): the factory returned a int"):
            SubprocVectorEnv([lambda: 3])

    @pytest.mark.parametrize(
        "arguments", [{"start_method": "teleport"}, {"envs_per_process": 0}, {"timeout_s": 0.0}], ids=str
    )
    def test_rejects_arguments_out_of_range(self, arguments):
        with pytest.raises(ConfigurationError, match=next(iter(arguments))):
            SubprocVectorEnv([NumberedEnv], **arguments)


PROGRAM = """
import os, signal, sys, threading
import numpy as np
from rollcast.actor.vector.subproc import SubprocVectorEnv
from tests.vector_environments import MisbehavingEnv

if __name__ == "__main__":
    method, state = sys.argv[1:]
    env = SubprocVectorEnv(
        [lambda: MisbehavingEnv("hang" if state == "hanging" else "", 1)] * 2, start_method=method, envs_per_process=1
    )
    env.reset(seed=0)
    if state == "hanging":
        env.send(np.zeros(2, int))
    print(*env.pids, flush=True)
    if state == "forgotten":
        sys.exit()
    threading.Event().wait()
"""


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_program_without_a_guard_is_told_so(tmp_path, start_method):
    program = tmp_path / "program.py"
    program.write_text(
        "from rollcast.actor import EnvironmentFactory, SubprocVectorEnv\n"
        f"SubprocVectorEnv([EnvironmentFactory('CartPole-v1')] * 2, start_method={start_method!r})"
    )
    ended = subprocess.run(
        [sys.executable, program], env=environment(), capture_output=True, text=True, check=False, timeout=100
    )
    assert ended.stderr.splitlines()[-1].startswith("rollcast.actor.environments.failures.EnvironmentLostError")
    assert 'put this code below `if __name__ == "__main__":`' in ended.stderr.splitlines()[-1]
    assert "memory" not in ended.stderr


class TestTheParentsEnd:
    @pytest.mark.parametrize(
        ("start_method", "state"),
        [
            *(("forkserver", "hanging"), ("forkserver", "forgotten"), ("fork", "waiting"), ("spawn", "hanging")),
        ],
    )
    def test_processes_end_when_their_parent_ends(self, tmp_path, start_method, state):
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        with subprocess.Popen(
            [sys.executable, "-W", "error", program, start_method, state],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as parent:
            try:
                assert parent.stdout is not None
                assert parent.stderr is not None
                line = parent.stdout.readline()
                pids = [int(word) for word in line.split()]
                assert len(pids) == 2, parent.stderr.read()
            finally:
                if state != "forgotten":
                    parent.send_signal(signal.SIGKILL)
                parent.wait(DEADLINE_S)
            wait_until(lambda: are_gone(pids), "the workers have ended")
            # whoever still held the other end would keep this from returning
            assert parent.stderr.read() == ""


def test_daemonic_process_may_have_a_vector():
    """Actors are daemons to multiprocessing, which allows them no children of their own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("forkserver").Process(target=_play_in_a_daemon, args=(sender,), daemon=True)
    process.start()
    assert receiver.poll(60)
    assert receiver.recv() == 3
    process.join(DEADLINE_S)
    assert process.exitcode == 0
    process.close(), receiver.close(), sender.close()


def _play_in_a_daemon(sender):
    env = SubprocVectorEnv([NumberedEnv] * 3)
    observation, _ = env.reset(seed=0)
    sender.send(len(observation))
    env.close()
    assert multiprocessing.current_process().daemon


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_events_leave_their_processes_with_the_last_step(mode):
    """Nothing but that step has an info, so nothing else is pickled."""
    played = []
    for make in (SequentialVectorEnv, functools.partial(SubprocVectorEnv, envs_per_process=1)):
        vector_env = make([FiringEnv, functools.partial(FiringEnv, 7)], autoreset_mode=mode)
        vector_env.reset(seed=0)
        infos = [vector_env.step(np.zeros(2, np.int64))[4] for _ in range(30)]
        played.append([list(events_in(info, are_final=mode is AutoresetMode.SAME_STEP)) for info in infos])
        assert [bool(info) for info in infos] == [bool(events) for events in played[-1]]
        assert vector_env.statistics.get_stats_value("doorbell", LogStatsLevel.EPOCH) == 2.0
        vector_env.close()
    assert played[0] == played[1]
    # with a row for the reset, episodes take a step more
    assert sum(map(len, played[0])) == (10 if mode is AutoresetMode.SAME_STEP else 8)
