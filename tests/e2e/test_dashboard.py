"""`docker compose --profile dashboard up`, opened in a browser of this machine."""

import pytest

from tests.browser import chromium, watcher
from tests.e2e.conftest import ENDLESS
from tests.e2e.watch import Watch
from tests.processes import wait_until


@pytest.mark.parametrize("compose", [ENDLESS | {"ROLLCAST_DASHBOARD_PORT": "0"}], indirect=True)
def test_its_page_shows_the_run_and_what_the_learner_says(compose):
    compose.run("--profile", "dashboard", "up", "-d", "--no-build", "--scale", "actor=1")
    with Watch(compose.address()) as watch:
        watch.wait_for_training(1)
        wait_until(lambda: compose.is_healthy("dashboard"), "the health of the page")
        (actor,) = watch.incarnations()
        with chromium() as browser, watcher(browser) as seen:
            seen.open(f"http://{compose.address('dashboard', 8080)}/")
            seen.wait_for_text(".phase", "TRAINING")
            seen.page.wait_for_selector(f'tr[data-actor="{actor}"]')
            assert seen.complaints == []
        # its file system is read-only, and it writes nothing
        (container,) = compose.containers("dashboard")
        assert "Traceback" not in container.logs().decode()


@pytest.mark.parametrize(
    "compose",
    [ENDLESS | {"ROLLCAST_DASHBOARD_PORT": "0", "OVERRIDE": "deploy/compose/tls.yml"}],
    indirect=True,
)
def test_with_tls_its_page_is_a_viewers(compose):
    compose.run("--profile", "dashboard", "up", "-d", "--no-build", "--scale", "actor=1")
    wait_until(lambda: compose.is_healthy("dashboard"), "the health of the page")
    with chromium() as browser, watcher(browser) as seen:
        seen.open(f"http://{compose.address('dashboard', 8080)}/")
        seen.wait_for_text(".phase", "TRAINING")
        assert not seen.page.locator("[data-action=stop]").is_visible()
