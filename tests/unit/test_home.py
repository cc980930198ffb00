"""Home leads everywhere: to each page, and in two clicks to the answers of what users ask."""

import re
from pathlib import Path

import pytest

from tests.documents import PAGES, ROOT, without_blocks

HOME = ROOT / "docs" / "index.md"
# Asked before the pages were read: the page that answers, its heading, and words of the answer.
QUESTIONS = {
    "my actor hangs": ("troubleshoot.md", "When it waits", "named actor"),
    "my environment crashes sometimes": ("failing_environments.md", "Keep the actor", "drop_episode"),
    "the return does not rise": ("troubleshoot.md", "When it does not learn", "rollcast doctor"),
    "what does this error mean": ("troubleshoot.md", "A command ends with an error", "..."),
    "which algorithm for continuous actions": ("choose_algorithm.md", "Which algorithm", "actions are continuous"),
    "which settings do I change first": ("tune.md", "What to change first", "learning-rate"),
    "can I resume with another learning rate": ("resume.md", "What resuming does", "learning rates"),
    "how do I continue from a trained policy": ("resume.md", "With another run's policy", "--initial-policy"),
    "what does lag 3/10 mean": ("policy_lag.md", "Staleness", "mean 3, largest 10"),
    "how many actors on 8 cores": ("expensive_environments.md", "Expensive environments", "One actor for each core"),
    "how do I connect a second machine": ("connect_machines.md", "Two machines", "--learner-address"),
    "is the port safe on the internet": ("secure.md", "Trust", "--insecure"),
    "does it run with PettingZoo": ("several_agents.md", "Several agents", "pettingzoo:make"),
    "does PPO work with masks and a recurrent state": ("support_matrix.md", "What goes with what", "mask"),
    "does it run on Python 3.13 or Windows": ("compatibility.md", "Python, systems and libraries", "Windows"),
    "how do I use the policy on a robot": ("serve_policy.md", "In Python", "load_policy"),
    "how do I get the same result twice": ("reproduce.md", "Reproducing a run", "--deterministic"),
    "is a rollout lost when the learner dies": ("delivery.md", "What is promised", "acknowledged"),
    "how do I see the run in Grafana": ("monitor.md", "In containers", "Grafana"),
    "which files does a run write": ("file_formats.md", "What is in it", "checkpoint"),
    "how do I mask invalid actions": ("action_masks.md", "Action masks", "action_mask"),
    "how do I train an LSTM policy": ("recurrent_policies.md", "Recurrent policies", "lstm"),
    "how do I train by self-play": ("several_agents.md", "Several agents", "self-play"),
    "my GPU is idle": ("gpu.md", "Use a GPU", "waits for rollouts"),
    "does my replay buffer fit into memory": ("replay_buffer.md", "The memory of a replay buffer", "are available"),
    "how do I keep the best policy": ("evaluate.md", "Results", "The best policy"),
    "can I log to Weights & Biases": ("monitor.md", "Trackers", "wandb"),
    "how do I export to ONNX": ("export.md", "Export it", "rollcast export"),
    # asked later by newcomers, and by people with a simulator, a cluster, another library, another language
    "is the policy kept when I press Ctrl-C": ("stop_and_restart.md", "Stop", "saves its last policy"),
    "how do I watch the agent play": ("serve_policy.md", "Serve a policy", "--video"),
    "where is my run saved": ("file_formats.md", "A run's folder", "policy_best"),
    "a step of my simulator takes two seconds": (
        "expensive_environments.md",
        "Steps of seconds",
        "1,024 s",
    ),
    "my simulator is written in C++": ("environments_elsewhere.md", "Start", "C++"),
    "can a step have a time limit": ("failing_environments.md", "An environment that fails", "--step-timeout-s"),
    "which observation spaces may I use": ("environments.md", "Which spaces you may use", "nested Dict"),
    "how do I choose a level at a reset": ("environments.md", "Seeds", "--env-kwargs"),
    "which ports do I open in the firewall": ("connect_machines.md", "Ports", "MASTER_PORT"),
    "how much memory does a learner need": ("installation.md", "Memory and cores", "replay buffer"),
    "what happens when a node is drained": ("kubernetes.md", "How pods start and end", "SIGTERM to the learner"),
    "does Slurm's time limit end my run": ("slurm.md", "Time limits, dead nodes, preemption", "requeues"),
    "how do I replace a certificate": ("secure.md", "Replace certificates and tokens", "at the next connection"),
    "may learner and actors have different versions": ("compatibility.md", "Versions of rollcast", "same protocol"),
    "how do I scale the actors automatically": ("kubernetes.md", "As many actors as the learner needs", "KEDA"),
    "what is ent_coef called": ("from_sb3.md", "Hyperparameters", "--ppo.entropy-cost"),
    "where are the callbacks": ("from_sb3.md", "Callbacks", "EvalCallback"),
    "can I load a model of Stable-Baselines3": ("from_sb3.md", "A run", "reads only its own policies"),
    "where is VecNormalize when I use the policy": ("serve_policy.md", "In Python", "Normalised"),
    "how do I write an actor in Go": ("protocol.md", "Join", "process_nonce"),
    "how are tensors encoded": ("protocol.md", "What a rollout holds", "little-endian"),
    "how large may a message be": ("protocol.md", "Large rollouts, and fast ones", "max_message_bytes"),
    "do I send a rollout again when the stream breaks": ("protocol.md", "End and reconnect", "again"),
    "which status codes mean: try again": ("protocol.md", "Status codes", "try again with backoff"),
}


def links(page: Path) -> set[Path]:
    """Returns the files of the project that a page links to."""
    targets = re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", without_blocks(page.read_text(encoding="utf-8")))
    return {(page.parent / target).resolve() for target in targets if "://" not in target}


def section(page: str, heading: str) -> str:
    """Returns the text below a heading, up to the next of its level or above."""
    text = PAGES[page].read_text(encoding="utf-8")
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no heading {heading!r}"
    return found[2]


def test_each_page_is_one_click_away():
    pages = {path for path in PAGES.values() if path not in {HOME, ROOT / "README.md"}}
    assert pages - links(HOME) == set()


def test_what_readers_want_has_twelve_rows_with_one_link_each():
    rows = re.findall(r"^\| (?!I want|---)(.*) \|$", HOME.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 12
    assert [row.count("](") for row in rows] == [1] * 12


def test_the_four_sections_follow():
    headings = re.findall(r"^## (.*)$", HOME.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == ["Tutorials", "How-to guides", "Reference", "Explanation", "Development"]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_within_two_clicks(question: str):
    page, heading, words = QUESTIONS[question]
    first = links(HOME)
    second = {path for each in first if each.suffix == ".md" for path in links(each)}
    assert PAGES[page] in first | second
    assert words in section(page, heading)


def test_only_reference_pages_are_longer_than_300_lines():
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "reference"]
    lengths = {page.name: len(page.read_text(encoding="utf-8").splitlines()) for page in pages}
    assert {name: n for name, n in lengths.items() if n > 300} == {}
