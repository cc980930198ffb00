import pytest
from rich.cells import cell_len

from rollcast.learner.commands.top_relays import relay_lines
from rollcast.learner.watching.relays import RelayActors

RELAYS = (
    RelayActors(relay_id="rack-2", n_actors=250, n_gone=250),
    RelayActors(relay_id="rack-3", n_actors=2, n_silent=1, n_gone=1),
    RelayActors(relay_id="site-a.example.org", n_actors=250, n_silent=3, env_steps_per_second=12_345.0),
    RelayActors(relay_id="", n_actors=1, env_steps_per_second=50.0),
)


def drawn(relays=RELAYS, *, n_lines: int | None = None, width: int = 80) -> list[str]:
    return [line.plain.rstrip() for line in relay_lines(relays, n_lines=n_lines, width=width)]


def test_each_relay_has_its_actors_and_their_rate():
    assert drawn() == [
        "relays             actors silent   gone steps/s",
        "rack-2                250      0    250       0 all gone",
        "rack-3                  2      1      1       0 all silent or gone",
        "site-a.example.org    250      3      0   12.3k",
        "(directly)              1      0      0      50",
    ]


def test_run_without_relays_has_no_table():
    assert drawn(()) == []


def test_heading_says_how_many_relays_are_shown_of_how_many():
    assert [line.split()[0] for line in drawn(n_lines=3)] == ["relays,", "rack-2", "rack-3"]
    assert drawn(n_lines=3)[0].startswith("relays, 2 of 3 ")
    assert drawn(n_lines=4)[0].startswith("relays ")
    assert len(drawn(n_lines=5)) == 5
    assert len(drawn(n_lines=50)) == 5


@pytest.mark.parametrize("n_lines", [-7, 0, 1])
def test_heading_does_not_stand_alone(n_lines):
    assert drawn(n_lines=n_lines) == []


@pytest.mark.parametrize("width", [1, 5, 19, 20, 28, 36, 44, 60, 64, 200])
def test_fits_any_width(width):
    hostile = RelayActors(relay_id="\x1b[2J漢字\n" * 40, n_actors=10**9, n_silent=10**9)
    for line in relay_lines((hostile, *RELAYS), n_lines=None, width=width):
        assert cell_len(line.plain) <= max(width, 1)
        assert line.plain.isprintable()


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
