"""`rollcast slurm` on a real cluster of two nodes: `../shared/slurm/cluster-up` starts one."""

import fcntl
import re
import stat

import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.errors import LearnerUnreachableError
from rollcast.services.security.security import ClientSecurity
from rollcast.services.status.status import ActorState, Phase
from rollcast.tools.slurm.folder import Job, SlurmFolder
from tests.e2e.conftest import locked, wait_until
from tests.needs import lacks
from tests.processes import rollcast
from tests.slurm import begin_now, kill_node, missing, slurm, start_node, state_of, tasks, without_delay

# Training that does not end by itself, in environments that leave the cores to the tests beside it. An actor gathers a
# batch in a third of a second, and a checkpoint follows each update.
ENDLESS = (
    *("--env-id", "tests.soak.environments:paced_cartpole", "--env-kwargs", '{"step_s": 0.005}'),
    *("--n-rollout-steps", "16", "--envs-per-actor", "4", "--batch-size", "4", "--checkpoint-interval-s", "0.01"),
    *("--stop-return", "1e9", "--total-steps", "1000000000"),
)
# Nodes have 8 cores: the learner and two actors fill one, a third actor is on the other.
SIZES = ("--learner-cpus", "2", "--actor-cpus", "3", "--patience-s", "60")


class Run:
    """A run on the cluster, its jobs, and its learner seen through the API, wherever it is."""

    def __init__(self, folder):
        self.folder = SlurmFolder(folder)
        self.jobs = {}
        self._viewer = None

    def submit(self, *options):
        """Submits the run; returns what was printed."""
        done = rollcast("slurm", *options)
        assert done.returncode == 0, done.stderr
        self.jobs |= dict(re.findall(r"^(\w+) +job (\d+)", done.stdout, re.MULTILINE))
        return done.stdout

    def client(self, role="viewer"):
        rendezvous = self.folder.rendezvous
        security = ClientSecurity(tls_ca=rendezvous / "ca.pem", token_file=rendezvous / f"{role}.token")
        return LearnerClient(self.folder.address, timeout_s=30.0, security=security)

    def _asked(self, question):
        """Returns the learner's answer; None while it is away. It may be elsewhere when it is back."""
        try:
            self._viewer = self._viewer or self.client()
            return question(self._viewer)
        except LearnerUnreachableError:
            self.close()
            return None

    def close(self):
        if self._viewer is not None:
            self._viewer.close()
        self._viewer = None

    def streaming(self):
        """Returns the actors that play; none while the learner is away."""
        actors = self._asked(LearnerClient.actors) or ()
        return {actor.actor_id for actor in actors if actor.state is ActorState.STREAMING}

    def status(self):
        """Returns the status, once the learner is there."""
        found = []
        wait_until(lambda: found.append(self._asked(LearnerClient.status)) or found[-1], "the learner")
        return found[-1]

    def wait_for_actors(self, *actors):
        """Waits until these actors play, and no others, and something is learnt from them."""
        wait_until(lambda: self.streaming() == set(actors), f"{actors}, not {self.streaming()}")
        before = self.status().updates
        wait_until(lambda: self.status().updates > before, "updates")

    def begin_actors(self):
        """Lets the actors begin as soon as the learner has begun."""
        self.status()
        without_delay(self.jobs["actors"])

    def log(self, name):
        return (self.folder.logs / f"{name}.log").read_text()

    def learner_node(self):
        return tasks(self.jobs["learner"])[self.jobs["learner"]][1]

    def is_over(self):
        # by their names: actors that were added are an array of their own
        names = (self.folder.job_name(job) for job in Job)
        return not slurm("squeue", "--noheader", f"--name={','.join(names)}")


@pytest.fixture
def run(tmp_path):
    if reason := missing():
        lacks("slurm", reason)
    # A test kills nodes, and its jobs are on those on which they fit: no other test's are there.
    with locked("slurm", fcntl.LOCK_EX):
        for node in ("node1", "node2"):
            if state_of(node) not in ("idle", "mixed", "allocated"):
                start_node(node)
        run = Run(tmp_path / "run")
        try:
            yield run
        finally:
            run.close()
            for job in Job:
                slurm("scancel", "--quiet", f"--name={run.folder.job_name(job)}")
            wait_until(run.is_over, "the end of the jobs")


def test_a_run_trains_through_dead_nodes_signals_scaling_and_scancel_until_it_is_stopped(run):
    """One run for everything, since Slurm takes its time to begin a job."""
    printed = run.submit(*ENDLESS, *SIZES, "--run-dir", run.folder.run_dir, "--actors", "2")
    learner, actors = run.jobs["learner"], run.jobs["actors"]
    run.begin_actors()
    run.wait_for_actors("actor-0", "actor-1")
    for path in (run.folder.rendezvous, *run.folder.rendezvous.iterdir()):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert not (run.folder.rendezvous / "ca.key").exists()
    look = re.search(r"^look at it +\S+ (.*)$", printed, re.MULTILINE)[1]
    assert '"phase": "training"' in rollcast(*look.split(), "--json-output").stdout

    # elastic: more, and fewer
    run.submit("--run-dir", run.folder.run_dir, "--add-actors", "1")
    run.wait_for_actors("actor-0", "actor-1", "actor-2")
    slurm("scancel", f"{actors}_1")
    run.wait_for_actors("actor-0", "actor-2")

    # the node of the learner and of actor-0 dies
    dying = run.learner_node()
    other = {"node1": "node2", "node2": "node1"}[dying]
    kill_node(dying)
    for number in (learner, actors):
        begin_now(number, other)
    run.wait_for_actors("actor-0", "actor-2")
    assert run.learner_node() == other
    assert f"resuming {run.folder.run_dir}: " in run.log(f"learner-{learner}-attempt1")
    assert "attempt1" not in " ".join(path.name for path in run.folder.logs.glob("actor-2-*")), (
        "it has lived through it"
    )
    start_node(dying)

    # what Slurm sends before a time limit
    steps = run.status().env_steps
    slurm("scancel", "--batch", "--signal=TERM", learner)
    begin_now(learner, dying)
    run.wait_for_actors("actor-0", "actor-2")
    assert run.learner_node() == dying
    assert run.status().env_steps >= steps, "nothing was lost: it was told to stop, and saved"
    assert f"resuming {run.folder.run_dir}: " in run.log(f"learner-{learner}-attempt2")

    # cancelled while it saves, and submitted again
    checkpoints = run.folder.run_dir / "checkpoints"
    wait_until(lambda: any(checkpoints.glob(".*.tmp")), "a checkpoint that is being written", every_s=0.02)
    slurm("scancel", learner)
    wait_until(run.is_over, "the end of the learner, which takes its actors along")
    saved = max(int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal())
    run.submit("--resume", run.folder.run_dir, "--actors", "1")
    run.begin_actors()
    run.wait_for_actors("actor-0")
    assert run.status().phase is Phase.TRAINING
    assert saved > 0
    wait_until(lambda: run.status().updates > saved, "updates after those that were saved")

    with run.client("operator") as operator:
        operator.stop()
    wait_until(run.is_over, "the end of all jobs")


def test_of_a_run_whose_actors_slurm_refuses_nothing_stays(run):
    # above the cluster's MaxArraySize
    done = rollcast("slurm", *ENDLESS, "--run-dir", run.folder.run_dir, "--actors", "4000")
    assert done.returncode == 1
    assert "it said: sbatch: error: Batch job submission failed: Invalid job array specification" in done.stderr
    assert "give fewer --actors" in done.stderr
    assert re.search(r"the learner's job \d+, which had been submitted before, is cancelled", done.stderr)
    wait_until(run.is_over, "the end of the learner")
    assert not run.folder.script(Job.LEARNER).exists()
