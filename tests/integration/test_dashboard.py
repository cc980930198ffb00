"""`rollcast dashboard` in a real headless Chromium: what the page shows is what the API says."""

import contextlib
import dataclasses
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil
import pytest

from rollcast.services.client.client import LearnerClient
from rollcast.services.history.history import EventSeverity, HistoryEvent
from rollcast.services.security.security import ServerSecurity
from rollcast.services.status.status import ActorState, LearningFinding, Phase
from rollcast.tools.dashboard.figures import actor_row
from rollcast.tools.watching import wording
from rollcast.tools.watching.run_view import RunView
from tests import deaf_chromium
from tests.browser import Watcher, chromium, dashboard, watcher
from tests.histories import actor, busy_run, points, relayed_run, serve_history, status, update
from tests.processes import ended, free_port, refused, rollcast, wait_until
from tests.zygote import ForkedProcess

HOSTILE = '<img src=x onerror="alert(1)">${alert(2)}`</script><script>alert(3)</script>'
# The page's; a learner may take it for that of any role.
TOKEN = "t" * 40
SIZE = {"width": 1400, "height": 1300}

# The contrast of each element's text with the page below it, from 1 to 21, by WCAG.
CONTRASTS = """(elements) => {
  const parse = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (rgb) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const below = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  return elements.map((element) => {
    const both = [light(parse(getComputedStyle(element).color)), light(below(element))].sort((a, b) => b - a);
    return (both[0] + 0.05) / (both[1] + 0.05);
  });
}"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


class Dashboard(NamedTuple):
    """The dashboard that the tests of this file share: each test serves learners of its own, at addresses of its own.

    A learner keeps its address: the page goes on with its history when another run answers there.
    """

    url: str
    process: ForkedProcess
    addresses: tuple[str, ...]
    unused: Iterator[int]
    tab: Watcher

    def open(self, number):
        """Opens the page of a learner, in a window as wide as most."""
        self.tab.page.emulate_media(color_scheme="light")
        self.tab.page.set_viewport_size(SIZE)
        return self.tab.open(f"{self.url}{number}")

    @contextlib.contextmanager
    def shown(self, first, **options):
        """Opens the page of a run."""
        number = next(self.unused)
        with serve_run(first, self.addresses[number], **options) as served:
            seen = self.open(number)
            seen.page.locator("[role=alert]").first.wait_for(state="hidden")
            yield seen, served


@pytest.fixture(scope="module")
def pages(browser):
    addresses = tuple(f"127.0.0.1:{free_port()}" for _ in range(10))
    options = ("--learner-address", ",".join(addresses), "--host-names", "page.example")
    with dashboard(*options, ROLLCAST_TOKEN=TOKEN) as (url, process), watcher(browser) as tab:
        yield Dashboard(url, process, addresses, itertools.count(), tab)


@pytest.fixture
def first():
    return busy_run(3)


@contextlib.contextmanager
def serve_run(first, address="127.0.0.1:0", **options):
    """Serves a run of which there is nothing new."""
    with serve_history(first, address, **options) as served:
        served.history.set_next(
            dataclasses.replace(first, run=None, points=(), evaluations=(), lanes=(), curves=(), events=())
        )
        yield served


def security_of(folder, role):
    """The security of a learner that knows the page's token, with a role."""
    file = folder / "tokens"
    file.write_text(f"{role}:{TOKEN}\nactor:{'a' * 32}\n")
    file.chmod(0o600)
    return ServerSecurity.from_files(tokens_file=file)


def focus_ring(seen):
    """The shadow of the first button when the last link loses the focus to it."""
    seen.page.locator("nav a").last.focus()
    seen.page.keyboard.press("Tab")
    return seen.page.evaluate("getComputedStyle(document.activeElement).boxShadow")


class TestWhatItShows:
    def test_numbers_charts_and_actors_are_those_of_the_api_and_nothing_comes_from_elsewhere(self, pages, first):
        with pages.shown(first) as (seen, served):
            with LearnerClient(served.address) as learner:
                told = next(iter(learner.watch_history()))
            view = RunView()
            view.apply(told)
            seen.wait_for_text("main .sentence", wording.headline(view))
            assert seen.text(".phase") == "TRAINING"
            assert seen.text(".run") == "LunarLander-v3 · ppo · lander-3"
            assert seen.figure("env steps") == f"{told.status.env_steps:,}"
            assert seen.figure("queue") == f"{told.status.queue_size} of {told.status.queue_capacity}"
            assert seen.figure("mean return") == f"{told.status.mean_return:.1f}"
            assert seen.figure("publish lag") == "p50 12 ms"
            assert seen.figure("data staleness") == "p50 400 ms"
            seen.page.wait_for_selector('tr[data-actor="node-1"]')
            for one in told.actors:
                assert seen.cells(one.actor_id) == actor_row(one)["cells"]
            for one in told.actors:
                seen.wait_for_lane(one.actor_id)
            assert seen.text('tr[data-actor="left-arm"] .number') == "v790"
            for name in ("evaluation", "best"):
                wait_until(
                    lambda name=name: (
                        [[5000, 214.3]] in [one["data"] for one in seen.series("return") if one["name"] == name]
                    ),
                    f"the {name} in the chart",
                )
            (speed,) = [one for one in seen.series("speed") if one["name"] == "env steps/s"]
            assert [y for _, y in speed["data"]] == [point.env_steps_per_second for point in first.points]
            (loss,) = seen.series("metric")
            assert (loss["name"], loss["data"]) == ("ppo/policy_loss", [[100, 0.5], [200, 0.25]])
            seen.page.locator("[data-settings] summary").click()
            seen.wait_for_text("[data-settings] pre", "discount: 0.99")
            (lag,) = seen.series("lag")
            assert lag["data"] == [60.0, 30.0, 10.0, 0, 0]
            seen.page.locator('tr[data-actor="node-2"]').focus()
            seen.page.keyboard.press("Enter")
            seen.wait_for_text("[data-actor-card]", "node-2")
            seen.wait_for_text("[data-actor-card] .whole", "Connection reset by peer")
            elsewhere = [
                address
                for address in seen.requested
                if urlsplit(address).netloc != urlsplit(pages.url).netloc and not address.startswith(("data:", "blob:"))
            ]
            assert len(seen.requested) > 5
            assert elsewhere == []
            assert seen.complaints == []

    def test_updates_are_shown_without_loading_again_and_their_texts_are_texts(self, pages, first):
        with pages.shown(first) as (seen, served):
            assert not seen.page.locator("[data-learning]").is_visible()
            found = tuple(LearningFinding("rule", f"{HOSTILE} {i}", "try --ppo.normalize-rewards") for i in range(2))
            later = dataclasses.replace(first.status, env_steps=99_999_999, findings=found)
            event = HistoryEvent(time_s=61.0, severity=EventSeverity.ERROR, who=HOSTILE, text=HOSTILE, detail="so")
            hostile = actor(HOSTILE, last_error=HOSTILE, idle_s=99.0, via=(HOSTILE,))
            served.history.set_next(update(61.0, status=later, actors=(*first.actors, hostile), events=(event,)))
            seen.wait_for_text('[data-figure="env steps"]', "99,999,999")
            seen.wait_for_text("[data-learning]", "1; try --ppo.normalize-rewards")
            assert seen.text("[data-learning]").count("try --ppo.normalize-rewards") == 2
            seen.wait_for_text(".lanes tbody", HOSTILE[:20])
            seen.wait_for_text("[data-relays] tbody", HOSTILE)
            seen.wait_for_text(".events .who", HOSTILE[:20])
            seen.page.locator(".events .error summary").first.click()
            seen.wait_for_text(".events .error pre", "so")
            seen.page.locator(".lanes tbody tr", has_text=HOSTILE[:20]).click()
            seen.wait_for_text("[data-actor-card]", HOSTILE[:20])
            assert seen.page.locator("img").count() == 0
            assert seen.complaints == []
            ended = dataclasses.replace(first.status, phase=Phase.FINISHED)
            served.history.first = dataclasses.replace(first, status=ended)
            served.history.set_next(update(62.0, status=ended, actors=first.actors))
            seen.page.wait_for_selector("[data-learning]", state="hidden")
            seen.wait_for_text(".phase", "FINISHED")
        # the learner is gone: nothing new comes that would draw the page
        seen.page.reload()
        seen.page.wait_for_selector('tr[data-actor="left-arm"]')
        seen.wait_for_lane("left-arm")

    def test_relays_are_summed_up_and_one_that_loses_its_actors_is_marked(self, pages):
        first = relayed_run(20)
        well = dataclasses.replace(
            first,
            actors=tuple(dataclasses.replace(one, state=ActorState.STREAMING, idle_s=0.1) for one in first.actors),
        )
        with pages.shown(well) as (seen, served):
            seen.wait_for_text("[data-relays] tbody", "rack-1")
            assert seen.page.locator("[data-relays] tr.bad").count() == 0
            served.history.set_next(dataclasses.replace(first, run=None, points=(), lanes=()))
            seen.wait_for_text("[data-relays] tr.bad", "all gone")
            rows = seen.page.locator("[data-relays] tbody tr").all_inner_texts()
            assert [row.split() for row in rows] == [
                ["rack-2", "20", "0", "20", "0", "all", "gone"],
                ["rack-3", "20", "1", "0", "102.0k"],
                ["site-a", "20", "1", "0", "102.0k"],
                ["rack-1", "20", "0", "0", "102.0k"],
                ["(directly)", "1", "0", "0", "5.1k"],
            ]
            seen.wait_for_text("main .sentence", "all 20 of relay rack-2 among them")
            seen.page.get_by_label("find an actor").fill("Site-A")
            seen.page.wait_for_selector('tr[data-actor="rack-3-9"]')
            assert seen.page.locator('tr[data-actor^="rack-2-"]').count() == 0
            assert seen.complaints == []

    def test_dark_light_and_a_telephone(self, pages):
        long_name = "rack-2-of-the-second-room-" * 3
        said = HistoryEvent(time_s=59.0, severity=EventSeverity.INFO, who=long_name, text="a-long-word-" * 12)
        first = busy_run(20)
        first = dataclasses.replace(first, events=(*first.events, said))
        background = "getComputedStyle(document.body).backgroundColor"
        with pages.shown(first) as (seen, _):
            seen.page.wait_for_selector(".q-btn")
            assert seen.page.locator("main").count() == 1
            light = seen.page.evaluate(background)
            for scheme, focus in (("light", 28), ("dark", 236)):
                seen.page.emulate_media(color_scheme=scheme)
                wait_until(
                    lambda scheme=scheme: (seen.page.evaluate(background) == light) == (scheme == "light"), scheme
                )
                contrasts = seen.page.locator(".q-btn").evaluate_all(CONTRASTS)
                assert len(contrasts) > 8
                assert min(contrasts) >= 4.5, "as WCAG asks for"
                shadow = f"rgb({focus}, {focus}, {focus}) 0px 0px 0px 3px"
                wait_until(lambda shadow=shadow: focus_ring(seen) == shadow, "a ring around what has the focus")
            seen.page.set_viewport_size({"width": 390, "height": 844})
            seen.page.wait_for_selector('tr[data-actor="left-arm"]')
            assert seen.page.evaluate("document.scrollingElement.scrollWidth") == 390
            assert seen.page.locator('tr[data-actor="left-arm"] canvas').bounding_box()["width"] > 200
            text = seen.page.locator(".events .text", has_text="a-long-word").first
            assert text.evaluate("e => e.scrollWidth <= e.clientWidth"), "nothing of it is cut"

    def test_each_of_several_learners_has_a_page_with_as_many_actors_and_as_much_time_as_there_is(self, pages, first):
        number = next(pages.unused)
        many = dataclasses.replace(busy_run(200), status=status(env_steps=77))
        with serve_run(many, pages.addresses[number]), pages.shown(first) as (seen, _):
            seen.wait_for_text('[data-figure="env steps"]', f"{first.status.env_steps:,}")
            seen.page.get_by_role("link", name=pages.addresses[number]).click()
            seen.wait_for_text('[data-figure="env steps"]', "77")
            seen.wait_for_text(".strips-head", "12 of 200 actors")
            for choice in ("1 h", "1 min"):
                seen.page.locator("[data-choice=span]").get_by_text(choice, exact=True).click()
                seen.wait_for_text("thead .lane-cells", "60 s ago" if choice == "1 min" else "60 min ago")
            rows = seen.page.locator("tbody tr[data-actor]")
            assert [row.get_attribute("data-actor") for row in rows.all()[:3]] == ["", "node-2", "left-arm"]
            seen.page.locator("[data-choice=first]").get_by_text("slowest").click()
            seen.wait_for_text(".strips-head", "the slowest first")
            assert [row.get_attribute("data-actor") for row in rows.all()[:3]] == ["", "left-arm", "node-1"]
            seen.page.get_by_label("find an actor").fill("node-150")
            seen.page.wait_for_selector('tr[data-actor="node-150"]')
            assert seen.complaints == []
            seen.page.goto(f"{pages.url}99")
            seen.wait_for_text("#app", f"There is no page '99'; expected /0 to /{len(pages.addresses) - 1}.")

    def test_a_learner_that_is_not_there_yet_is_awaited_and_all_of_its_run_is_shown(self, pages, first):
        number = next(pages.unused)
        address = pages.addresses[number]
        seen = pages.open(number)
        seen.wait_for_text(".phase", "NO ANSWER")
        seen.wait_for_text("[role=alert]", address)
        long = dataclasses.replace(first, now_s=7200.0, points=points(120, interval_s=60.0))
        with serve_run(long, address):
            seen.wait_for_text(".phase", "TRAINING")
            seen.page.locator("[role=alert]").first.wait_for(state="hidden")
            wait_until(lambda: [60, 100] in seen.series("speed")[0]["data"], "the first minute of two hours")
        seen.wait_for_text("[role=alert]", "Below is its last report, from 2:00:0")
        assert seen.figure("env steps") == f"{first.status.env_steps:,}"


class TestOperating:
    def test_an_operator_saves_pauses_resumes_and_stops_and_is_told_of_a_refusal(self, pages, first, tmp_path):
        with pages.shown(first, security=security_of(tmp_path, "operator")) as (seen, served):
            seen.page.locator("[data-action=checkpoint]").click()
            seen.wait_for_text("[data-outcome]", "The checkpoint is written: /run/checkpoint, with policy v3.")
            seen.page.locator("[data-action=pause]").click()
            seen.wait_for_text("[data-outcome]", "Training is paused.")
            paused = dataclasses.replace(first.status, phase=Phase.PAUSED)
            served.history.set_next(update(61.0, status=paused, actors=first.actors))
            seen.wait_for_text(".phase", "PAUSED")
            seen.page.locator("[data-action=resume]").click()
            seen.wait_for_text("[data-outcome]", "Training continues.")
            assert served.control.calls == ["pause", "resume"]
            # first no, then yes
            seen.page.locator("[data-action=stop]").click()
            seen.wait_for_text(".q-dialog h2", f"Stop {served.address}?")
            seen.page.get_by_role("button", name="Cancel").click()
            seen.wait_for_text("[data-outcome]", "nothing was done")
            assert served.control.calls == ["pause", "resume"]
            seen.page.locator("[data-action=stop]").click()
            seen.page.locator("[data-confirm]").click()
            seen.wait_for_text("[data-outcome]", "The learner ends training: it writes a last checkpoint")
            assert served.control.calls == ["pause", "resume", "stop"]
            served.control.run_dir = ""
            seen.page.locator("[data-action=checkpoint]").click()
            seen.wait_for_text("[data-outcome]", "Checkpoint has failed: the run keeps no directory")

    def test_a_browser_that_was_away_keeps_the_outcome_and_gets_what_it_missed(self, pages, first, tmp_path):
        with pages.shown(first, security=security_of(tmp_path, "operator")) as (seen, served):
            seen.page.locator("[data-action=checkpoint]").click()
            seen.wait_for_text("[data-outcome]", "The checkpoint is written")
            # longer than the timeout of `ui.run_with`
            away = "reconnectionDelay(11000).reconnectionDelayMax(11000).randomizationFactor(0).engine.close()"
            seen.page.evaluate(f"() => {{ window.socket.io.{away} }}")
            paused = dataclasses.replace(first.status, phase=Phase.PAUSED)
            served.history.set_next(update(61.0, status=paused, actors=first.actors))
            seen.wait_for_text(".phase", "PAUSED")
            assert "The checkpoint is written" in seen.text("[data-outcome]")

    def test_a_viewer_has_no_buttons(self, pages, first, tmp_path):
        with pages.shown(first, security=security_of(tmp_path, "viewer")) as (seen, _):
            seen.wait_for_text('[data-figure="env steps"]', f"{first.status.env_steps:,}")
            assert not seen.page.locator("[data-action=stop]").is_visible()

    def test_a_read_only_page_has_no_buttons_and_ends_while_it_is_open(self, browser, first):
        with serve_run(first) as served, watcher(browser) as seen:
            with dashboard("--learner-address", served.address, "--read-only") as (url, process):
                seen.open(url)
                seen.wait_for_text('[data-figure="env steps"]', f"{first.status.env_steps:,}")
                assert not seen.page.locator("[data-action=stop]").is_visible()
                assert ended(process, signal.SIGTERM) == 0
                assert "Traceback" not in process.stdout.read()
                assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            (("--listen-address", "0.0.0.0:0"), "has no login"),
            (("--listen-address", "unix:/tmp/page"), "expected host:port"),
            (("--learner-address", " , "), "expected one address"),
            (("--learner-address", "here"), "expected 'host:port'"),
            (("--token", "x" * 40, "--token-file", "y"), "expected one of them"),
        ],
    )
    def test_wrong_settings_end_it(self, options, told):
        said = refused("dashboard", *options)
        assert told in said

    def test_a_port_that_is_taken_ends_it(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            done = rollcast("dashboard", "--listen-address", f"127.0.0.1:{taken.getsockname()[1]}")
        assert done.returncode == 1
        assert "choose another" in done.stderr

    def test_only_pages_of_its_own_names_are_served(self, pages):
        for headers, code in (({}, 200), ({"Host": "page.example"}, 200), ({"Host": "evil.example"}, 421)):
            assert code_of(urllib.request.Request(f"{pages.url}healthz", headers=headers)) == code


def code_of(request):
    """The status code of an answer, whatever it is."""
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_browser_hears_nothing_of_networks_that_other_tests_start():
    """It would end its connections, and the page would complain."""
    asked = "import socket; socket.socket(socket.AF_INET).close(); socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"
    done = subprocess.run(
        [deaf_chromium.__file__, "-c", asked],
        env={**os.environ, "CHROMIUM": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip().endswith("Address family not supported by protocol")


def test_pages_that_no_browser_opens_do_not_add_up(pages):
    def asked(n):
        assert {code_of(urllib.request.Request(pages.url)) for _ in range(n)} == {200}
        return psutil.Process(pages.process.pid).memory_info().rss

    before = asked(20)
    assert asked(30) - before < 12e6, "a page has 0.9 MB"


def test_ctrl_c_ends_it():
    with dashboard() as (_, process):
        assert ended(process, signal.SIGINT) == 130
        assert "Traceback" not in process.stdout.read()
