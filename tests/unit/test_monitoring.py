"""The files of deploy/monitoring name metrics that there are."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from rollcast.actor.acting.actor_metrics import ActorMetrics
from rollcast.learner.writers.exported_names import exported_name
from rollcast.learner.writers.metric_names import ALGORITHM_METRICS, EVENT_METRICS, METRICS
from rollcast.learner.writers.prometheus import PrometheusWriter
from rollcast.services.status.status import ActorInfo, ActorState, LearnerStatus, Phase
from tests.documents import text_of
from tests.needs import lacks
from tests.processes import ROOT

FOLDER = ROOT / "deploy" / "monitoring"


def exported() -> set[str]:
    """Returns the names of all samples that learners and actors can have."""
    actor = ActorInfo(actor_id="a", slot=0, incarnation=1, state=ActorState.STREAMING)
    writer = PrometheusWriter(lambda: LearnerStatus(phase=Phase.TRAINING), lambda: [actor])
    families = [*writer.collect(), *ActorMetrics().collect()]
    samples = {sample.name for family in families for sample in family.samples}
    return samples | {exported_name(metric.tag).whole for metric in (*METRICS, *ALGORITHM_METRICS, *EVENT_METRICS)}


@pytest.mark.parametrize("file", ["alerts.yml", "grafana/rollcast.json"])
def test_every_metric_that_is_named_is_there(file: str):
    named = set(re.findall(r"rollcast_\w+", (FOLDER / file).read_text()))
    assert len(named) > 5
    assert named <= exported()


def test_every_alert_says_what_is_wrong_and_what_to_do_and_is_in_the_documentation():
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    documentation = text_of("monitor.md")
    for rule in group["rules"]:
        assert rule["annotations"].keys() == {"summary", "action"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert f"`{rule['alert']}`" in documentation


def test_every_panel_has_a_query_and_a_place_of_its_own():
    panels = json.loads((FOLDER / "grafana" / "rollcast.json").read_text())["panels"]
    assert all(target["expr"] for panel in panels for target in panel["targets"])
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in panels})


def test_prometheus_finds_every_service_that_has_metrics():
    files = [yaml.safe_load((ROOT / name).read_text()) for name in ("docker-compose.yml", "deploy/compose/relay.yml")]
    services = [service for file in files for service in file["services"].items()]
    exporting = {name for name, service in services if "ROLLCAST_METRICS_ADDRESS" in service.get("environment", {})}
    jobs = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    found = {
        target.partition(":")[0]
        for job in jobs
        for config in job.get("static_configs", [])
        for target in config["targets"]
    }
    found |= {name for job in jobs for config in job.get("dns_sd_configs", []) for name in config["names"]}
    assert found == exporting >= {"learner", "actor", "evaluator", "relay"}


def test_every_file_that_compose_mounts_is_there():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    mounted = [volume.partition(":")[0] for name in ("prometheus", "grafana") for volume in services[name]["volumes"]]
    files = [Path(path) for path in mounted if path.startswith("./")]
    assert len(files) == 5
    assert all((ROOT / path).is_file() for path in files)


def test_alerts_fire_when_they_should_and_no_longer(tmp_path: Path):
    promtool = shutil.which("promtool")
    if promtool is None:
        lacks("promtool", "promtool is not installed (apt-get install prometheus)")
    shutil.copy(FOLDER / "alerts.yml", tmp_path)
    shutil.copy(ROOT / "tests" / "unit" / "alerts_test.yml", tmp_path)
    done = subprocess.run(
        [promtool, "test", "rules", "alerts_test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
