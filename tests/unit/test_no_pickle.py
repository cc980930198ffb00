"""No pickle anywhere, on the wire or in checkpoints: whoever unpickles a stranger's bytes runs a stranger's code."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FORBIDDEN = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}

# It starts this machine's own processes, and hands them their arguments the way multiprocessing does.
LOCAL_PROCESS_LAUNCHER = {
    "actor/rollcast/actor/acting/local_process.py",
    # processes of a vector environment, on this machine: arrays are shared, infos and calls go through their pipes
    "actor/rollcast/actor/vector/shared_memory.py",
    "actor/rollcast/actor/vector/doorbell.py",
    "actor/rollcast/actor/vector/subproc.py",
    "actor/rollcast/actor/vector/child.py",
    "actor/rollcast/actor/vector/child_process.py",
    "learner/rollcast/learner/actors/forkserver.py",
    "learner/rollcast/learner/actors/local_processes.py",
    # the page of a run; what it says comes back as JSON
    "learner/rollcast/tools/dashboard/local.py",
    # the learner's own relays; what they report comes as JSON
    "learner/rollcast/tools/relay/ingest.py",
    # the pipe for what those processes write to stderr; its bytes are read as text
    "services/rollcast/services/process/child_lines.py",
    "tests/unit/services/process/test_child_lines.py",
    # starts the tracker of those processes before a Ctrl-C is held back
    "services/rollcast/services/process/interrupts.py",
    # the forkserver of tests, which has imported what their processes need
    "tests/zygote.py",
    "tests/integration/conftest.py",
    "tests/integration/test_subproc_vector_env.py",
    "tests/unit/actor/vector/test_shared_memory.py",
    "tests/unit/actor/vector/test_doorbell.py",
    # a client that never reads must not do so in the process whose memory is measured
    "tests/attacks/silent_readers.py",
    # nor may the attackers whose cost to others is measured
    "tests/attacks/__main__.py",
    "tests/attacks/hostile_clients.py",
    # an environment that starts a process of its own; an actor process that ends
    "tests/wrong_environments.py",
    "tests/unit/learner/actors/test_local_processes.py",
    # has the start of a process refused
    "tests/integration/test_ingest_processes.py",
    # each combination runs in a process that may hang or die; it is handed a combination, and returns texts
    "tests/matrix/program.py",
    # each suite of faults runs in a process of its own, and returns its report
    "tests/chaos/__main__.py",
    # sees to it that tests leave no process behind
    "tests/conftest.py",
}

SAFE_YAML = {
    *("safe_load", "safe_load_all", "safe_dump", "dump", "YAMLError", "MarkedYAMLError", "SafeLoader", "SafeDumper"),
    "CSafeLoader",
    *("Event", "ScalarEvent", "CollectionStartEvent", "CollectionEndEvent"),
    *("Node", "ScalarNode", "MappingNode", "SequenceNode"),
}

# Nothing pickles without one of these. Other files are not read token by token, which takes seconds.
SUSPECT = re.compile(
    rf"{'|'.join(FORBIDDEN)}|multiprocessing|allow_pickle|torch *\. *(save|load)\b|from torch import.*\b(save|load)\b"
    r"|\b(np|numpy) *\. *load\b|\byaml *\."
)

SKIPPED = {"build", "dist", "runs", "node_modules", "__pycache__"}


def _sources():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        # this file names what it looks for
        if path != Path(__file__) and not any(part in SKIPPED or part.startswith(".") for part in parts):
            yield path.relative_to(ROOT).as_posix()


def violations(source, *, multiprocessing_allowed=False):
    """`line: what` for everything in the source that pickles. Comments and prose may speak of it; code may not.

    A string that is nothing but a forbidden name counts: it is there to be imported by name.
    """
    if not SUSPECT.search(source):
        return []
    forbidden = FORBIDDEN if multiprocessing_allowed else FORBIDDEN | {"multiprocessing"}
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type in {tokenize.NAME, tokenize.STRING, tokenize.OP}
    ]
    found = []
    for index, token in enumerate(tokens):
        line, text = token.start[0], token.string.strip("\"'")
        following = [after.string for after in tokens[index + 1 : index + 3]]
        if token.type != tokenize.OP and text in forbidden:
            found.append(f"{line}: {text}")
        elif text == "torch" and following in ([".", "save"], [".", "load"]):
            found.append(f"{line}: torch.{following[1]}")
        elif text == "torch" and following[:1] == ["import"]:
            names = {after.string for after in tokens[index + 2 :] if after.start[0] == line}
            found.extend(f"{line}: torch.{name}" for name in sorted(names & {"save", "load"}))
        elif text == "allow_pickle" and following != ["=", "False"]:
            found.append(f"{line}: allow_pickle")
        elif text in {"np", "numpy"} and following == [".", "load"] and tokens[index - 1].string != ".":
            # it allocates what a header claims; rollcast.learner.replay.saving.array_file reads what is there
            found.append(f"{line}: {text}.load")
        elif text == "yaml" and following[:1] == ["."] and following[1] not in SAFE_YAML:
            found.append(f"{line}: yaml.{following[1]}")
    return found


def _starts_processes(path):
    """The launcher, and benchmarks, which measure in processes of their own."""
    return path in LOCAL_PROCESS_LAUNCHER or path.startswith("benchmarks/")


def test_nothing_pickles():
    found = {
        path: violations((ROOT / path).read_text(), multiprocessing_allowed=_starts_processes(path))
        for path in _sources()
    }
    assert found
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as cp",
        "import_module('pickle')",
        "torch.save(state, path)",
        "state = torch.load(path, weights_only=True)",
        "from torch import nn, load",
        "np.savez(path, allow_pickle=True)",
        "np.savez(path, allow_pickle=trusted)",
        "np.load(path)",
        "yaml.load(text)",
        "yaml.unsafe_load(text)",
        "import multiprocessing",
        "torch.multiprocessing.spawn(f)",
    ],
)
def test_the_search_finds(source):
    assert violations(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""No pickle here."""',
        "# pickle would run it",
        "np.savez(path, allow_pickle=False)",
        "yaml.safe_load(text)",
        "picklable = True",
        "safetensors.torch.save_file(state, path)",
        "model.load(path)",
    ],
)
def test_the_search_lets_pass(source):
    assert not violations(source)


def test_the_launcher_may_start_processes_and_nothing_more():
    assert not violations("import multiprocessing", multiprocessing_allowed=True)
    assert violations("import pickle", multiprocessing_allowed=True)
