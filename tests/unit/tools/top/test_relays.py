import pytest

from rollcast.tools.top.relays import relay_lines
from rollcast.tools.watching.relays import RelayActors

RELAYS = (
    RelayActors(relay_id="rack-2", n_actors=250, n_gone=250),
    RelayActors(relay_id="rack-3", n_actors=2, n_silent=1, n_gone=1),
    RelayActors(relay_id="site-a.example.org", n_actors=250, n_silent=3, env_steps_per_second=12_345.0),
    RelayActors(relay_id="", n_actors=1, env_steps_per_second=50.0),
)


def drawn(relays=RELAYS, *, n_lines: int | None = None, width: int = 80) -> list[str]:
    return [line.plain.rstrip() for line in relay_lines(relays, n_lines=n_lines, width=width)]


@pytest.mark.parametrize("n_lines", [-7, 0, 1])
def test_heading_does_not_stand_alone(n_lines):
    assert drawn(n_lines=n_lines) == []


def test_narrow_terminals_keep_names_then_actors_then_those_that_are_gone():
    titles = [drawn(width=width)[0].split()[1:] for width in (19, 20, 28, 36, 44)]
    assert titles == [
        [],
        ["actors"],
        ["actors", "gone"],
        ["actors", "silent", "gone"],
        ["actors", "silent", "gone", "steps/s"],
    ]


def test_relay_whose_actors_are_all_gone_stands_out():
    styles = [str(line.style) for line in relay_lines(RELAYS, n_lines=None, width=80)]
    assert styles == ["dim", "bold red", "yellow", "yellow", ""]
