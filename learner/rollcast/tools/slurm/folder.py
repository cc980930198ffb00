"""Names the files and the jobs of a run on Slurm."""

import hashlib
import re
from enum import StrEnum
from pathlib import Path
from typing import Final

# Characters that are replaced in names of jobs: squeue's --name takes a list of names, separated by commas.
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Job(StrEnum):
    """The jobs of a run."""

    LEARNER = "learner"
    ACTORS = "actors"
    EVALUATORS = "evaluators"


class SlurmFolder:
    """The folder `slurm` in the directory of a run, on a file system that all nodes share.

        learner.sh  actors.sh  evaluators.sh          the scripts of the jobs
        learner.yaml  actors.yaml  evaluators.yaml    the settings of their processes
        logs/                                         a file for each process, by job, index and attempt
        rendezvous/                                   address, certificates and tokens; for the owner only

    Attributes:
        run_dir: The directory of the run, absolute.
        path: The folder itself.
        logs: The folder of logs.
        rendezvous: The folder of address, certificates and tokens.
        address_file: The file to which the learner writes its address.
    """

    def __init__(self, run_dir: Path) -> None:
        """Takes the directory of a run, which need not exist."""
        self.run_dir: Final = run_dir.absolute()
        self.path: Final = self.run_dir / "slurm"
        self.logs: Final = self.path / "logs"
        self.rendezvous: Final = self.path / "rendezvous"
        self.address_file: Final = self.rendezvous / "learner.address"

    @property
    def address(self) -> str:
        """The learner's address for clients: `file:` and the path of the file that the learner writes."""
        return f"file:{self.address_file}"

    def script(self, job: Job) -> Path:
        """Returns the path of a job's script."""
        return self.path / f"{job}.sh"

    def settings(self, job: Job) -> Path:
        """Returns the path of the settings of a job's processes."""
        return self.path / f"{job}.yaml"

    def job_name(self, job: Job) -> str:
        """Returns the name under which Slurm lists a job; no other run uses it."""
        # two runs in different folders may have the same name
        digest = hashlib.sha256(str(self.run_dir).encode()).hexdigest()[:8]
        return f"{job}-{_UNUSUAL.sub('-', self.run_dir.name)}-{digest}"
