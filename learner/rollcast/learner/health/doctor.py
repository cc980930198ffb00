"""Applies the rules to a run in progress, record by record, or to the files of any run."""

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rollcast.learner.health.rules import Record, RunRecords, find
from rollcast.learner.runs.curves import flat_settings, read_records
from rollcast.learner.runs.directory import RunDirectory
from rollcast.services.errors import ConfigurationError
from rollcast.services.spaces.spaces import EnvironmentSpaces
from rollcast.services.status.status import LearningFinding

# The number of stored records: all of the first ones, for comparisons, and evenly spread later ones.
_N_FIRST: Final = 64
_N_KEPT: Final = 1024
# The rules are applied again after this relative increase of records, because they use half of a run.
_GROWTH: Final = 0.05


class LearningDoctor:
    """A bounded writer of metrics that finds problems of training. One thread writes, any thread may call `findings`.

    A write only stores the record. The rules are applied when `findings` is called.

    Args:
        settings: The run's settings, as in `settings.yaml`.
        spaces: The environment's spaces; None: unknown.
        records: The earlier records of a resumed run.
    """

    def __init__(
        self, settings: Mapping[str, Any], spaces: EnvironmentSpaces | None, records: Iterable[Record] = ()
    ) -> None:
        self._settings = flat_settings(settings)
        self._spaces = spaces
        self._lock = threading.Lock()  # guards everything below
        self._records: list[Record] = []
        # The step between stored records after the first ones.
        self._every = 1
        self._n_written = 0
        self._n_judged = 0
        self._findings: tuple[LearningFinding, ...] = ()
        for record in records:
            self._keep(record)

    def write(self, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Keeps a record; see `MetricsWriter.write`."""
        with self._lock:
            self._keep({"env_steps": env_steps, **metrics})

    def close(self) -> None:
        """Does nothing: the findings stay available until the process ends."""

    def findings(self) -> tuple[LearningFinding, ...]:
        """Returns the problems of training, worst first; empty with too few records."""
        with self._lock:
            if self._n_written <= (1.0 + _GROWTH) * self._n_judged:
                return self._findings
            n_written, records = self._n_written, tuple(self._records)
        findings = tuple(find(RunRecords(records=records, settings=self._settings, spaces=self._spaces)))
        with self._lock:
            self._n_judged, self._findings = n_written, findings
        return findings

    def _keep(self, record: Record) -> None:
        self._n_written += 1
        if self._n_written > _N_FIRST and self._n_written % self._every:
            return
        self._records.append(record)
        if len(self._records) > _N_KEPT:
            self._every *= 2
            self._records = [*self._records[:_N_FIRST], *self._records[_N_FIRST::2]]


def read_run(run: RunDirectory) -> RunRecords:
    """Reads the records for the rules from a run's folder. The run may be in progress. Writes and locks no file.

    Raises:
        ConfigurationError: The folder is not a run.
    """
    settings = run.read_settings()
    try:
        spaces = run.read_policy("last").spaces
    except ConfigurationError:
        # A run that was killed before it saved a policy; rules about spaces find no problem.
        spaces = None
    return RunRecords(records=list(read_records(run.metrics_path)), settings=flat_settings(settings), spaces=spaces)
