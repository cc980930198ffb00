"""Checks a rollout's header against the agreement at Join, before any memory is allocated for the rollout."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NoReturn

from rollcast.services.columns.columns import Columns, common_fields
from rollcast.services.columns.schema import ColumnSchema, common_schemas, substep_schemas
from rollcast.services.columns.shape import RolloutShape
from rollcast.services.columns.table import COLUMNS, COMMON_COLUMNS, FINAL_AXES, Column
from rollcast.services.errors import InvalidRolloutError, LimitExceededError
from rollcast.services.limits.counts import MAX_COUNT
from rollcast.services.limits.texts import quoted, quoted_names
from rollcast.services.rollouts.layout import CheckedTensor, RolloutLayout
from rollcast.services.rollouts.statistics_codec import statistics_problem
from rollcast.services.spaces.leaf_schema import INT32
from rollcast.services.wire.tensors import tensor_header
from rollcast.v1 import rollout_pb2, tensor_pb2

# The number of layouts that a stream caches.
_MAX_KNOWN: Final = 64

_MAY_BE_ABSENT: Final = tuple(column.name for column in COMMON_COLUMNS if column.is_optional)


class HeaderCheck:
    """Checks the headers of rollouts, with a separate check for each agreed substep. Only one thread may use it.

    Args:
        rollout_shape: The shape of the actor's rollouts, as agreed at Join.
        max_rollout_bytes: The largest rollout, in bytes of its tensors; None: the size for the spaces, T and B.
        actor_id: The required actor of every rollout; None: any actor.
        incarnation: The required incarnation of every rollout; None: any incarnation.
    """

    def __init__(
        self,
        rollout_shape: RolloutShape,
        *,
        max_rollout_bytes: int | None = None,
        actor_id: str | None = None,
        incarnation: int | None = None,
    ) -> None:
        self._actor_id = actor_id
        self._incarnation = incarnation
        self._substeps = {
            key: SubstepHeaderCheck(key, rollout_shape, max_rollout_bytes=max_rollout_bytes)
            for key in rollout_shape.spaces
        }

    def check(self, header: rollout_pb2.Rollout) -> tuple["SubstepHeaderCheck", RolloutLayout]:
        """Checks a whole header, without allocating memory for the rollout.

        Args:
            header: The rollout, without its deferred bytes. It must not change afterwards.

        Returns:
            The check of the rollout's substep, and the layout of its columns.

        Raises:
            InvalidRolloutError: Identity, version, substep, paths, statistics or `deferred` are not as agreed.
            InvalidTensorError: A dtype or shape is not as agreed.
            LimitExceededError: The rollout exceeds `max_rollout_bytes`.
        """
        substeps = header.substeps
        check = self._substeps.get(substeps[0].key) if len(substeps) == 1 else None
        if check is None:
            found = f"the substeps {quoted_names(substep.key for substep in substeps)}"
            refuse(header, found, f"exactly one of {quoted_names(self._substeps)}, as agreed at Join")
        self._check_identity(header)
        return check, check.check(header)

    def _check_identity(self, header: rollout_pb2.Rollout) -> None:
        if self._actor_id is not None and header.actor_id != self._actor_id:
            refuse(header, f"actor_id {quoted(header.actor_id)}", f"{self._actor_id!r}, as this stream was opened")
        if self._incarnation is not None and header.incarnation != self._incarnation:
            refuse(header, f"incarnation {header.incarnation}", f"{self._incarnation}, as this stream was opened")
        if header.sequence < 1:
            refuse(header, "sequence 0", "1, 2, 3, ...")
        if header.policy_version > MAX_COUNT:
            # Batches and logs have 63 bits for it.
            refuse(header, f"policy version {header.policy_version}", f"at most {MAX_COUNT}, more than any run reaches")


class SubstepHeaderCheck:
    """Checks the headers of rollouts of one substep.

    Args:
        key: The substep's key.
        rollout_shape: See `HeaderCheck`.
        max_rollout_bytes: See `HeaderCheck`.
    """

    def __init__(self, key: str, rollout_shape: RolloutShape, *, max_rollout_bytes: int | None) -> None:
        self.key: Final = key
        self.step_shape: Final = rollout_shape.step_shape(key)
        self.n_agents: Final = rollout_shape.spaces[key].n_agents
        self._schemas = substep_schemas(key, rollout_shape)
        self._common_schemas = common_schemas(key, rollout_shape)
        # The names of the columns in the result of `RolloutLayout.read`.
        self.names: Final[Columns[str]] = self._schemas.map(lambda schema: schema.name, Columns)
        self._max_rollout_bytes = max_rollout_bytes
        # Valid headers and their layouts, by number of final observations.
        self._known: dict[int, tuple[rollout_pb2.Rollout, RolloutLayout]] = {}

    def check(self, header: rollout_pb2.Rollout) -> RolloutLayout:
        """Returns the layout of the columns of a rollout of this substep; see `HeaderCheck.check`."""
        self._check_statistics(header)
        n_final = header.final_index.shape[0] if header.final_index.shape else 0
        header_before, layout = self._known.get(n_final, (None, None))
        if header_before is not None and layout is not None and _has_same_tensors(header, header_before):
            return layout
        layout = self._check_columns(header)
        if layout.is_reusable:
            if len(self._known) == _MAX_KNOWN:
                self._known.clear()
            # Without episodes and events, which may be large. A part of a message keeps the whole message in memory.
            kept = _tensors_of(header)
            self._known[n_final] = kept, self._check_columns(kept)
        return layout

    def _check_columns(self, header: rollout_pb2.Rollout) -> RolloutLayout:
        columns = list(self._columns(header))
        for schema, proto, _, n_bytes in columns:
            if proto is not None and proto.deferred and (not n_bytes or proto.data):
                found = f"column {schema.name} deferred, of {n_bytes} bytes, {len(proto.data)} of them inline"
                refuse(header, found, "a deferred tensor to have bytes, and none of them inline")
        self._check_limit(header, columns)
        return RolloutLayout(columns)

    def _check_statistics(self, header: rollout_pb2.Rollout) -> None:
        n_steps, n_trajectories = self.step_shape
        if len(header.episodes) > n_steps * n_trajectories:
            refuse(header, f"{len(header.episodes)} episodes", f"at most {n_steps * n_trajectories}, one a step")
        for episode in header.episodes:
            if episode.env_index >= n_trajectories:
                found = f"an episode of environment {episode.env_index}"
                refuse(header, found, f"an environment below {n_trajectories}")
        if problem := statistics_problem(header):
            refuse(header, *problem)
        if len(header.env_seeds) not in (0, n_trajectories):
            refuse(header, f"{len(header.env_seeds)} env_seeds", f"{n_trajectories}, one an environment, or none")
        if header.policy_versions and len(header.policy_versions) != n_steps * n_trajectories:
            found = f"{len(header.policy_versions)} policy_versions"
            refuse(header, found, f"{n_steps * n_trajectories}, one a step, or none")

    def _columns(self, header: rollout_pb2.Rollout) -> Iterator[CheckedTensor]:
        """Yields every column with a checked header, in the order of the message's fields."""
        n_final = self._count_final(header)
        substep = header.substeps[0]
        for column in COLUMNS:
            yield from _tensors(header, substep, column, column.arrays(self._schemas), n_final)
        for column in COMMON_COLUMNS:
            yield from _tensors(header, header, column, {"": self._common_schemas[column.name]}, n_final)

    def _count_final(self, header: rollout_pb2.Rollout) -> int:
        if not header.HasField("final_index"):
            return 0
        what = describe(header, "final_index")
        _, shape, _ = tensor_header(header.final_index, dtype=INT32, shape=(-1, 2), what=what)
        if shape[0] > math.prod(self.step_shape):
            refuse(header, f"{shape[0]} final observations", f"at most {math.prod(self.step_shape)}, one a step")
        return shape[0]

    def _check_limit(self, header: rollout_pb2.Rollout, columns: list[CheckedTensor]) -> None:
        limit = self._max_rollout_bytes
        if limit is None or (total := sum(column.n_bytes for column in columns)) <= limit:
            return
        largest = max(columns, key=lambda column: column.n_bytes)
        raise LimitExceededError(
            f"actor {quoted(header.actor_id)}, rollout {header.sequence} has {total} bytes, {largest.n_bytes} of them "
            f"in column {largest.schema.name}; expected at most {limit}; lower n_rollout_steps or n_envs, or raise "
            "--limits.max-rollout-bytes of the learner",
            limit="max_rollout_bytes",
        )


def _tensors_of(header: rollout_pb2.Rollout) -> rollout_pb2.Rollout:
    """Returns a copy of the fields that `_has_same_tensors` compares."""
    present: dict[str, Any] = {
        column.name: getattr(header, column.name) for column in COMMON_COLUMNS if header.HasField(column.name)
    }
    kept = rollout_pb2.Rollout(substeps=header.substeps, **present)
    kept.DiscardUnknownFields()
    return kept


def _has_same_tensors(a: rollout_pb2.Rollout, b: rollout_pb2.Rollout) -> bool:
    """Returns whether two headers have the same tensors at the same positions. It makes few calls to protobuf."""
    for name in _MAY_BE_ABSENT:
        if a.HasField(name) != b.HasField(name):
            return False
    return bool(common_fields(a) == common_fields(b) and a.substeps == b.substeps)


def describe(header: rollout_pb2.Rollout, column: str) -> str:
    """Returns the beginning of a message: actor, rollout and column.

    Args:
        header: The rollout.
        column: The column's name.
    """
    return f"actor {header.actor_id!r}, rollout {header.sequence}: column {column}"


def refuse(header: rollout_pb2.Rollout, found: str, expected: str, limit: str = "") -> NoReturn:
    """Refuses a rollout.

    Args:
        header: The rollout.
        found: The problem, with its value.
        expected: The expectation.
        limit: The exceeded limit; empty: no limit was exceeded.

    Raises:
        InvalidRolloutError: Always.
    """
    raise InvalidRolloutError(
        f"actor {quoted(header.actor_id)}, rollout {header.sequence} has {found}; expected {expected}; sending it "
        "again will not help: correct the actor",
        limit=limit,
    )


def _tensors(
    header: rollout_pb2.Rollout,
    message: rollout_pb2.Rollout | rollout_pb2.SubstepColumns,
    column: Column,
    schemas: Mapping[str, ColumnSchema],
    n_final: int,
) -> Iterator[CheckedTensor]:
    """Yields the tensors of a message's column, with checked headers."""
    field: Any = getattr(message, column.name)
    is_there = len(field) > 0 if column.is_tree else message.HasField(column.name)
    n_rows = n_final if column.axes == FINAL_AXES else None
    if not schemas:
        if is_there:
            refuse(header, f"a column {column.name}", f"none: {column.absence}")
    elif column.is_tree and (is_there or n_rows != 0):
        yield from _leaves(header, field, schemas, n_rows)
    elif column.is_tree:
        for schema in schemas.values():
            yield CheckedTensor(schema, None, (0, *schema.shape[1:]), 0)
    elif is_there or not column.is_optional:
        # An omitted column reads as an empty tensor, whose dtype is refused.
        yield _checked(header, schemas[""], field, n_rows)


def _leaves(
    header: rollout_pb2.Rollout,
    leaves: Iterable[tensor_pb2.NamedTensor],
    schemas: Mapping[str, ColumnSchema],
    n_final: int | None = None,
) -> Iterator[CheckedTensor]:
    paths: list[str] = []
    columns: list[CheckedTensor] = []
    for leaf in leaves:
        paths.append(leaf.path)
        if leaf.path in schemas:
            columns.append(_checked(header, schemas[leaf.path], leaf.tensor, n_final))
    if len(paths) != len(schemas) or set(paths) != schemas.keys():
        column = next(iter(schemas.values())).name.split("/", 2)[1]
        refuse(
            header, f"column {column} with paths {quoted_names(paths)}", f"{quoted_names(schemas)}, as agreed at Join"
        )
    return iter(columns)


def _checked(
    header: rollout_pb2.Rollout, schema: ColumnSchema, proto: tensor_pb2.Tensor, n_final: int | None = None
) -> CheckedTensor:
    if n_final is None:
        shape, n_bytes = schema.shape, schema.n_bytes
    else:
        shape, n_bytes = (n_final, *schema.shape[1:]), n_final * schema.n_bytes
    # The tensor is nearly always as agreed. The precise check takes three times as long, and only its message is
    # needed.
    if proto.dtype != schema.dtype_number or proto.shape != list(shape):
        tensor_header(proto, dtype=schema.leaf.dtype, shape=shape, what=describe(header, schema.name))
    return CheckedTensor(schema, proto, shape, n_bytes)
