"""Every tag that is written is listed, every tag that is listed is written, and the page of metrics has them all."""

import re
from collections.abc import Mapping, Sequence

import pytest

from rollcast.learner.training.update_metrics import UpdateMetrics
from rollcast.learner.writers.metric_names import (
    ALGORITHM_METRICS,
    EVENT_METRICS,
    HISTOGRAMS,
    METRICS,
    algorithm_tag,
)
from tests.documents import PAGES, text_of
from tests.every_algorithm import CASES
from tests.processes import ROOT
from tests.unit.learner.training.test_trainer import KeptMetrics, trainer_of

ALL = (*METRICS, *HISTOGRAMS, *ALGORITHM_METRICS, *EVENT_METRICS)
DOCS = ROOT / "docs"


def documented() -> list[str]:
    return re.findall(r"^\| `[a-z]\S*/\S*` \|.*\|$", text_of("metrics.md"), re.MULTILINE)


def test_docs_have_a_line_for_every_metric_and_no_other():
    expected = [f"| `{metric.tag}` | {metric.unit} | {metric.meaning} |" for metric in ALL]
    assert sorted(documented()) == sorted(expected)


def test_tags_that_other_pages_name_are_listed():
    tags = {metric.tag for metric in ALL}
    groups = "|".join({tag.partition("/")[0] for tag in tags})
    for page in PAGES.values():
        text = page.read_text()
        if page.name in ("from_sb3.md", "from_rllib.md"):  # the first column holds the other library's words
            text = re.sub(r"^\|[^|]*\|", "", text, flags=re.MULTILINE)
        for name in re.findall(rf"`((?:{groups})/[a-z_]+)`", text):
            assert name in tags, f"{page.name} names {name}"


def test_each_tag_is_listed_once():
    tags = [metric.tag for metric in ALL]
    assert len(tags) == len(set(tags))


@pytest.mark.parametrize("name", ["impala", "ppo", "appo", "dqn", "r2d2", "sac: box"])
def test_a_record_of_an_update_has_the_listed_values(name: str):
    case, of_record = CASES[name], UpdateMetrics()
    of_record.add(case.update(case.make("cpu"), case.batches("cpu")))
    listed = {metric.tag for metric in ALGORITHM_METRICS if metric.tag.startswith(f"{case.kind}/")}
    assert {algorithm_tag(case.kind, key) for key in of_record.take()} == listed


class KeptTags(KeptMetrics):
    def write_histograms(self, env_steps: int, histograms: Mapping[str, Sequence[int]]) -> None:
        self.records.append(dict.fromkeys(histograms, 0.0))


def test_trainer_writes_the_listed_tags():
    kept = KeptTags()
    trainer_of(total_steps=200, writers=[kept]).run()
    # test_evaluation has those of evaluations, and only captured updates are replayed
    elsewhere = ("eval/", "speed/replayed_fraction", "replay/", "durable/", "ppo/", "appo/", "dqn/", "r2d2/", "sac/")
    assert {tag for record in kept.records for tag in record} == {
        metric.tag for metric in ALL if not metric.tag.startswith(elsewhere)
    }
