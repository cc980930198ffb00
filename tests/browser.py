"""A headless Chromium for tests of pages, and the dashboards that they open."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

from tests import deaf_chromium
from tests.needs import lacks
from tests.processes import DEADLINE_S, running, wait_until
from tests.zygote import ForkedProcess

# The program of Debian's package and of others.
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Starts a headless Chromium, the one of this machine."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        lacks("chromium", "no Chromium is installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=deaf_chromium.__file__,
            env={**os.environ, "CHROMIUM": program},
            args=["--no-sandbox"],  # it has none for root
        )
        try:
            yield browser
        finally:
            browser.close()


class Watcher:
    """A tab of a browser, and all that went wrong in it.

    Attributes:
        page: The tab.
        requested: Every address that it has asked for.
        complaints: Errors of its scripts, and dialogs that scripts have opened.
        unanswered: The addresses that it waits for, or has not got.
        said: What its scripts wrote to the console.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requested: list[str] = []
        self.complaints: list[str] = []
        self.unanswered: list[str] = []
        self.said: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("request", lambda request: (self.requested.append(request.url), self.unanswered.append(request.url)))
        page.on("requestfinished", lambda request: self.unanswered.remove(request.url))
        page.on("requestfailed", lambda request: self.complaints.append(f"{request.url}: {request.failure}"))
        page.on("websocket", lambda socket: self.requested.append(socket.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def series(self, chart: str) -> list[dict[str, Any]]:
        """Waits until a chart is drawn, and returns its series, as ECharts has them."""
        self.page.wait_for_selector(f"[data-chart={chart}] canvas")
        series: list[dict[str, Any]] = self.page.evaluate(
            """(name) => {
              const id = document.querySelector(`[data-chart=${name}]`).id.slice(1);
              return getElement(id).chart.getOption().series.map((one) => ({name: one.name, data: one.data}));
            }""",
            chart,
        )
        return series

    def open(self, url: str) -> "Watcher":
        """Opens a dashboard and waits until it is drawn; forgets what was before it."""
        self.page.goto("about:blank")
        self.requested.clear()
        self.complaints.clear()
        self.page.goto(url)
        try:
            self.page.wait_for_selector("main .sentence")
        except TimeoutError as error:
            raise AssertionError(
                f"the page is not drawn; complaints: {self.complaints}; unanswered: {self.unanswered}; "
                f"it shows: {self.page.locator('body').inner_text()!r}"
            ) from error
        return self

    def text(self, selector: str) -> str:
        """Returns the text of the first such element."""
        return self.page.locator(selector).first.inner_text()

    def figure(self, name: str) -> str:
        """Returns the value of a figure."""
        return self.text(f'[data-figure="{name}"]')

    def wait_for_text(self, selector: str, wanted: str, timeout_s: float = DEADLINE_S) -> None:
        """Waits until an element has a text in it."""
        seen = self.page.locator(selector).filter(has_text=wanted)
        try:
            seen.first.wait_for(timeout=1000 * timeout_s)
        except TimeoutError as error:
            raise AssertionError(
                f"no {selector} with {wanted!r}: {self.page.locator(selector).all_inner_texts()}; "
                f"complaints: {self.complaints}; its scripts said: {self.said}"
            ) from error

    def cells(self, actor_id: str) -> list[str]:
        """Returns the cells of text in an actor's row."""
        return self.page.locator(f'tr[data-actor="{actor_id}"] td.number').all_inner_texts()

    def wait_for_lane(self, actor_id: str) -> None:
        """Waits until something is painted in an actor's row; to read a canvas takes the browser long."""
        canvas = self.page.locator(f'tr[data-actor="{actor_id}"] canvas')
        painted = (
            "c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
            " return d.some((v, i) => i % 4 == 3 && v > 0); }"
        )
        wait_until(lambda: canvas.evaluate(painted), f"a lane of {actor_id!r}", every_s=0.5)


@contextlib.contextmanager
def watcher(browser: Browser, **options: Any) -> Iterator[Watcher]:
    """Opens a tab with nothing in its cache."""
    context = browser.new_context(viewport={"width": 1400, "height": 1300}, **options)
    context.set_default_timeout(1000 * DEADLINE_S)
    try:
        yield Watcher(context.new_page())
    finally:
        context.close()


@contextlib.contextmanager
def dashboard(*options: object, **variables: str) -> Iterator[tuple[str, ForkedProcess]]:
    """Runs `rollcast dashboard` at a free port, and yields its link."""
    with running("learner", "dashboard", "--listen-address", "127.0.0.1:0", *options, **variables) as process:
        yield link_of(process), process


def link_of(process: ForkedProcess) -> str:
    """Waits until a process prints the link of its dashboard, and returns it."""
    seen: list[str] = []

    def printed() -> bool:
        line = process.stdout.readline()
        seen.append(line)
        assert line or process.poll() is None, f"it has ended: {''.join(seen)}"
        return bool(re.search(r"http://\S+", line))

    wait_until(printed, "the link of the dashboard")
    found = re.search(r"http://\S+", seen[-1])
    assert found is not None
    return found[0]
