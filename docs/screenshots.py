"""Makes the pictures of docs/howto/dashboard.md from a real run: `python docs/screenshots.py`. Needs Chromium.

It trains CartPole-v1 with three actors, one of which steps slowly, and opens the page of that run in a browser.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser import chromium, dashboard, watcher  # noqa: E402 - the folder of `tests` has to be known before
from tests.processes import free_port, running, wait_until  # noqa: E402

PICTURES: Final = ROOT / "docs" / "pictures"
# The run when its picture is taken, so that there is something to see.
_EVALUATIONS: Final = 6


def main() -> None:
    """Trains, waits until there is something to see, and writes a picture of each theme."""
    PICTURES.mkdir(exist_ok=True)
    address = f"localhost:{free_port()}"
    slow = '{"step_s": 0.004}'
    paced = "tests.soak.environments:paced_cartpole"
    with tempfile.TemporaryDirectory() as folder:
        learner = (
            *("--address", address, "--env-id", paced, "--env-kwargs", '{"step_s": 0.001}', "--seed", 3),
            *("--stop-return", 475, "--total-steps", 1_000_000_000, "--stop-on", "train", "--batch-size", 16),
            *("--run-dir", Path(folder) / "cartpole", "--eval-interval-s", 8, "--checkpoint-interval-s", 20),
        )
        actor = ("--learner-address", address, "--env-id", paced)
        with (
            running("learner", "learner", *learner),
            running("actor", *actor, "--env-kwargs", '{"step_s": 0.001}', "--actor-id", "node-1"),
            running("actor", *actor, "--env-kwargs", '{"step_s": 0.001}', "--actor-id", "node-2"),
            running("actor", *actor, "--env-kwargs", slow, "--actor-id", "left-arm"),
            running("actor", *actor, "--env-kwargs", "{}", "--actor-id", "judge", "--role", "evaluate"),
            dashboard("--learner-address", address) as (url, _),
            chromium() as browser,
        ):
            for scheme in ("light", "dark"):
                with watcher(browser, color_scheme=scheme) as seen:
                    seen.open(url)
                    seen.page.locator("[data-choice=span]").get_by_text("1 min", exact=True).click()
                    seen.page.wait_for_selector('tr[data-actor="left-arm"]', timeout=60_000)
                    evaluated = seen.page.locator(".events .text").filter(has_text="was evaluated")
                    wait_until(lambda evaluated=evaluated: evaluated.count() >= _EVALUATIONS, "evaluations", 180)
                    seen.page.set_viewport_size({"width": 1280, "height": 1120})
                    seen.page.wait_for_timeout(1500)
                    seen.page.screenshot(path=PICTURES / f"dashboard-{scheme}.png")


if __name__ == "__main__":
    main()
