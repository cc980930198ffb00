"""Imports of a process collect no garbage, and nothing looks at their objects later; a user's program is left alone."""

import subprocess
import sys

PREPARE = """
import gc
frozen = gc.get_freeze_count()
from rollcast.services.process.imports import keep_imports, uncollected_imports

collections = []
gc.callbacks.append(lambda phase, info: collections.append(phase))

def import_much(*, error=False):
    del collections[:]
    with uncollected_imports():
        import decimal, fractions, mailbox
        kept = [[] for _ in range(100_000)]
        if error:
            raise ImportError
        assert not collections
    return kept
"""


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_imports_collect_nothing_and_are_exempted_in_a_process_of_rollcast():
    run("keep_imports(); kept = import_much(); assert gc.isenabled() and gc.get_freeze_count() > 100_000")


def test_a_users_program_keeps_its_objects_where_collections_find_them():
    run("kept = import_much(); assert gc.isenabled() and gc.get_freeze_count() == frozen")


def test_collections_begin_after_an_import_that_failed():
    run("keep_imports()\ntry: import_much(error=True)\nexcept ImportError: assert gc.isenabled()\nelse: 1 / 0")


def test_collections_that_the_user_has_switched_off_stay_off():
    run("gc.disable(); kept = import_much(); assert not gc.isenabled()")


def test_imports_within_imports_stay_uncollected():
    run("keep_imports()\nwith uncollected_imports(): import_much(); assert not gc.isenabled()")
