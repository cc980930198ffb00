"""Disables garbage collection during imports, because it would slow down the start of a learner."""

import contextlib
import gc
from collections.abc import Iterator


class _Process:
    """Facts about this process. A count of the exempted objects would visit each of them."""

    keeps_imports = False


def keep_imports() -> None:
    """Marks this process as rollcast's own, and exempts the modules imported so far from garbage collection.

    Call this first in a rollcast process. `uncollected_imports` then exempts later imports, too.
    """
    _Process.keeps_imports = True
    gc.freeze()


@contextlib.contextmanager
def uncollected_imports() -> Iterator[None]:
    """Disables garbage collection during imports in the `with` block. Later collections skip the imported objects.

    Modules live as long as their process, and a full collection would visit all 200,000 objects of torch's modules. In
    a process that has not called `keep_imports`, such as a user's program, later collections do visit them.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if _Process.keeps_imports:
            gc.freeze()
        gc.enable()
