"""`rollcast dashboard` and `rollcast train --dashboard` beside real runs, in a real Chromium."""

import signal
import urllib.request

import pytest

from rollcast.services.client.client import LearnerClient
from tests.browser import chromium, link_of, watcher
from tests.processes import descendants, ended, free_port, is_alive, running, wait_until

# training that does not end by itself, and leaves the cores to the browser
ENDLESS = (
    *("--env-id", "tests.soak.environments:paced_cartpole", "--env-kwargs", '{"step_s": 0.01}'),
    *("--algorithm", "impala", "--envs-per-actor", 2, "--n-rollout-steps", 16, "--batch-size", 4),
    *("--stop-return", "1e9", "--total-steps", "1000000000"),
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def test_train_shows_its_run_until_it_is_stopped_there(browser, tmp_path):
    address = f"localhost:{free_port()}"
    options = ("--dashboard", "--n-actors", 2, "--address", address, "--run-dir", tmp_path / "run", *ENDLESS)
    with running("learner", "train", *options) as training:
        url = link_of(training)
        with watcher(browser) as seen:
            seen.open(url)
            seen.wait_for_text(".phase", "TRAINING")
            seen.page.wait_for_selector('tr[data-actor="local-1"]')
            seen.page.locator("[data-action=checkpoint]").click()
            seen.wait_for_text("[data-outcome]", str(tmp_path / "run/checkpoints"))
            seen.page.locator("[data-action=pause]").click()
            seen.wait_for_text("[data-outcome]", "Training is paused.")
            seen.wait_for_text(".phase", "PAUSED")
            with LearnerClient(address) as learner:
                told = learner.status()
            seen.wait_for_text('[data-figure="env steps"]', f"{told.env_steps:,}")
            seen.wait_for_text('tr[data-actor=""] .number', f"v{told.policy_version:,}")
            seen.wait_for_text(".events", "local-0")
            for name in ("", "local-0", "local-1"):
                seen.wait_for_lane(name)
            seen.page.locator("[data-action=stop]").click()
            seen.page.locator("[data-confirm]").click()
            seen.wait_for_text("[data-outcome]", "The learner ends training")
            assert ended(training) == 0
            assert seen.complaints == []
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(url, timeout=5)


def test_a_train_with_tokens_has_a_page_without_buttons_which_ends_with_it_when_it_is_killed(browser, tmp_path):
    (tmp_path / "tokens").write_text(f"actor:{'a' * 32}\noperator:{'o' * 32}\n")
    (tmp_path / "tokens").chmod(0o600)
    options = ("--dashboard", "--n-actors", 1, "--run-dir", tmp_path / "run", *ENDLESS)
    with running("learner", "train", *options, "--tokens-file", tmp_path / "tokens") as training:
        with watcher(browser) as seen:
            seen.open(link_of(training))
            seen.wait_for_text(".phase", "TRAINING")
            assert not seen.page.locator("[data-action=stop]").is_visible()
        children = descendants(training)
        assert children
        training.send_signal(signal.SIGKILL)
        wait_until(lambda: not any(is_alive(child) for child in children), "all its processes ended")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--actor-kind", "sequential"), "expected 'subprocess'"),
        (("--dashboard-address", "0.0.0.0:0"), "has no login"),
        (("--dashboard-address", "nowhere.invalid:0", "--insecure"), "cannot be resolved"),
    ],
)
def test_a_page_that_train_cannot_have_ends_it_before_it_trains(refused_here, tmp_path, options, told):
    assert told in refused_here("train", "--dashboard", *options, "--run-dir", tmp_path / "run")[1]
