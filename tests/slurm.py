"""The real Slurm cluster of this machine, whose nodes a test kills and starts again."""

import getpass
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil

from tests.processes import DEADLINE_S, environment, wait_until

# as cluster-up has it
HOME = Path(os.environ.get("SLURM_HOME", Path(tempfile.gettempdir()) / "slurm-cluster"))


def slurm(*command, may_say=None):
    """Runs one of Slurm's commands and returns what it printed; `may_say` is an error that is none."""
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    is_fine = done.returncode == 0 or (may_say is not None and may_say in done.stderr)
    assert is_fine, f"{' '.join(command)} ended with {done.returncode}: {done.stderr}"
    return done.stdout.strip()


def missing():
    """Returns what a test with a cluster lacks; empty if it lacks nothing."""
    if shutil.which("sinfo") is None:
        return "no Slurm is installed (sinfo)"
    if os.geteuid() != 0:
        return "a test kills nodes of the cluster, which needs root"
    nodes = ("sinfo", "--noheader", "--Node", "--format=%N")
    asked = subprocess.run(nodes, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    if asked.returncode != 0:
        return f"no Slurm cluster answers (sinfo): {asked.stderr.strip()}"
    if not all((HOME / f"slurmd-{node}.pid").is_file() for node in ("node1", "node2")):
        return f"the cluster is not that of cluster-up, whose nodes tests may kill: {HOME} has no slurmd-node1.pid"
    return ""


def tasks(number):
    """Returns the tasks of a job or array in the queue: number -> (state, node)."""
    rows = slurm(
        *("squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%i|%F|%T|%N"),
    ).splitlines()
    fields = [row.strip().split("|") for row in rows]
    return {task: (state, node) for task, job, state, node in fields if job == number}


def kill_node(node):
    """Kills a node as a power cut does: its daemon, and every process of its jobs, at once.

    Slurm would notice after its SlurmdTimeout, and is told.
    """
    on_node = slurm("squeue", "--noheader", f"--nodelist={node}", "--format=%A").split()
    daemon = psutil.Process(int((HOME / f"slurmd-{node}.pid").read_text()))
    steps = [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(" ".join(process.info["cmdline"] or ()).startswith(f"slurmstepd: [{job}.") for job in on_node)
    ]
    assert steps, f"{node} runs no job"
    doomed = [daemon, *steps, *(child for step in steps for child in step.children(recursive=True))]
    for process in doomed:
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(doomed, timeout=10)
    slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=killed")


def start_node(node):
    """Starts a killed node again, and waits until Slurm uses it."""
    slurm("slurmd", "-N", node)
    wait_until(lambda: state_of(node) in ("idle", "mixed", "allocated"), f"{node} in use", every_s=0.25)


def state_of(node):
    return slurm("sinfo", "--noheader", f"--nodes={node}", "--format=%T").rstrip("*")


def without_delay(number):
    """Lets jobs begin that wait for another one which has begun; Slurm looks at that every 30 seconds."""
    slurm("scontrol", "update", f"JobId={number}", "Dependency=", may_say="no longer pending")


def begin_now(number, node):
    """Lets a job begin that Slurm holds for two minutes because it was in the queue before.

    It begins on another node: on the one where it was, Slurm takes it only after these two minutes.
    """
    wait_until(
        lambda: {state for state, _ in tasks(number).values()} == {"PENDING"}, f"{number} in the queue", every_s=0.25
    )
    for task in tasks(number):
        slurm("scontrol", "update", f"JobId={task}", "StartTime=now", f"ReqNodeList={node}")
