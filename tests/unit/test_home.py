"""Home leads everywhere: to each page, and in two clicks to the answers of what users ask."""

import re
from pathlib import Path

import pytest

from tests.documents import PAGES, ROOT, without_blocks

HOME = ROOT / "docs" / "index.md"
# Asked before the pages were written: the page that answers, its heading, and words of the answer.
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
