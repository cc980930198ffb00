"""Imports modules without collecting garbage, which would take a sixth of the start of a learner."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

# The number of objects that Python itself has exempted: 375 in Python 3.12, none in others.
_EXEMPTED_AT_START: Final = gc.get_freeze_count()


def keep_imports() -> None:
    """Says that this process is rollcast's own, and exempts from collection what it has imported so far.

    Call it first of all in a rollcast process; `uncollected_imports` then exempts what it imports, too.
    """
    gc.freeze()


@contextlib.contextmanager
def uncollected_imports() -> Iterator[None]:
    """Imports in the body collect no garbage. Later collections skip the objects that they made.

    Modules live as long as their process, and torch's have 200,000 objects: each full collection would visit all. In a
    process that never called `keep_imports`, such as a user's own program, later collections do visit them.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() > _EXEMPTED_AT_START:
            gc.freeze()
        gc.enable()
