"""Compiles the parts with a switch point before each statement, and with a fault in them if one is wanted."""

import ast
import builtins
import importlib.machinery
from pathlib import Path
from types import CodeType

from tests.simulation.scheduler import PAUSE, READY

ROOT = Path(__file__).parents[2]

# The modules in which any statement may be the last before another thread goes on. Elsewhere only waits, locks and
# messages are switch points.
_STEPPED = (
    "actor/rollcast/actor/connection/",
    "learner/rollcast/learner/durable/coverage.py",
    "learner/rollcast/learner/durable/log.py",
    "learner/rollcast/learner/batching/",
    "learner/rollcast/learner/queueing/",
    "learner/rollcast/learner/serving/",
    "learner/rollcast/tools/relay/",
    "learner/rollcast/learner/replay/inserter.py",
    "learner/rollcast/learner/replay/rate_limiter.py",
    "services/rollcast/services/limits/bytes_in_flight.py",
    "services/rollcast/services/policies/subscribers.py",
    "services/rollcast/services/process/waiting.py",
    "services/rollcast/services/streams/bundle_link.py",
    "services/rollcast/services/streams/bundle_service.py",
    "services/rollcast/services/streams/bundled_stream.py",
    "services/rollcast/services/streams/service.py",
    "services/rollcast/services/streams/stream_order.py",
    "services/rollcast/services/streams/uplink.py",
)
_READY = "__rollcast_ready__"


class _Steps(ast.NodeTransformer):
    """Puts a switch point before each statement of a function."""

    def __init__(self) -> None:
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self._depth:
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    setattr(node, name, [each for statement in block for each in _stepped(statement)])
        return node


def _stepped(statement: ast.stmt) -> list[ast.stmt]:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    if is_text or isinstance(statement, (ast.Nonlocal, ast.Global, ast.FunctionDef, ast.Pass)):
        return [statement]
    # Most of the time no other task could go on: a look at those that could costs a tenth of a call.
    call = ast.Expr(ast.Call(ast.Name(PAUSE, ast.Load()), [], []))
    switch_point = ast.If(ast.Name(_READY, ast.Load()), [call], [])
    return [ast.copy_location(switch_point, statement), statement]


def instrument(fault: tuple[str, str, str] | None = None) -> None:
    """Has the parts compiled so from now on. Call it before their import.

    Args:
        fault: A module's file, a text in it, and what takes its place.

    Raises:
        ValueError: The text is not there once.
    """
    if fault is not None:
        n_found = (ROOT / fault[0]).read_text().count(fault[1])
        if n_found != 1:
            raise ValueError(
                f"{fault[1]!r} is {n_found} times in {fault[0]}; expected once; correct the table of faults"
            )
    real = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        path = Path(loader.get_filename(fullname))
        if not path.is_relative_to(ROOT):
            return real(loader, fullname)
        name = path.relative_to(ROOT).as_posix()
        is_wrong = fault is not None and name == fault[0]
        if not is_wrong and not name.startswith(_STEPPED):
            return real(loader, fullname)
        text = path.read_text()
        if fault is not None and is_wrong:
            text = text.replace(fault[1], fault[2])
        tree = ast.parse(text)
        if name.startswith(_STEPPED):
            tree = ast.fix_missing_locations(_Steps().visit(tree))
        return compile(tree, str(path), "exec")

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]
    setattr(builtins, _READY, READY)
