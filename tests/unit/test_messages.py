"""The troubleshooting page has a row for each message that a user can meet, and each row belongs to a message."""

import ast
import itertools
import re

import pytest

from docs.messages import VALUE, Message, error_classes, messages, messages_of, page_of_messages, sources
from tests.documents import section_of

# They pass on the text of another error or warning, which has a row of its own.
PASSED_ON = {"actor/acting/process", "actor/statistics/epoch_aggregator", "learner/checkpoints/store"}

WAITS = "When it waits"
ERRORS = "A command ends with an error"
LOGGED = "The log has a warning or an error"


def rows(heading: str) -> list[str]:
    """Returns the first cells of a section's tables: the beginnings of messages, with `...` for values."""
    return re.findall(r"^\| `([^`]+)` \|", section_of("troubleshoot.md", heading), re.MULTILINE)


def matches(row: str, text: str) -> bool:
    """Returns whether a text begins with what a row says; `...` in the row stands for anything."""
    pattern = "(?s:.*)".join(re.escape(part) for part in row.split(VALUE))
    return re.match(pattern, text) is not None


class TestCollection:
    SOURCE = '''
HINT = "read the log"

class TooColdError(RollcastError):
    """The room is too cold."""

def enter(room, error):
    if room.degrees < 10:
        raise TooColdError(f"{room.name} has {room.degrees} degrees; expected 18; heat it")
    logger.info("entered %s", room)
    logger.warning("%s has %.1f degrees, 90 %% of what it had", room, room.degrees)
    what = f"{room} is dark"
    _log.error("%s", what)
    logger.exception(HINT)

    def leave():
        raise TooColdError("the door" + f" of {room}{error} is frozen")

    raise ValueError("is not ours")
'''

    def collected(self) -> set[tuple[str, str]]:
        tree = ast.parse(self.SOURCE)
        errors = error_classes({"rooms": tree})
        return {(message.kind, message.text) for message in messages_of(tree, "rooms", set(errors))}

    def test_finds_errors_and_log_lines_from_warning_up(self):
        assert self.collected() == {
            ("TooColdError", "... has ... degrees; expected 18; heat it"),
            ("TooColdError", "the door of ... is frozen"),
            ("WARNING", "... has ... degrees, 90 % of what it had"),
            ("ERROR", "... is dark"),
            ("ERROR", "read the log"),
        }

    def test_finds_errors_of_the_whole_tree_of_classes(self):
        kinds = {message.kind for message in messages()}
        assert kinds >= {"TrainingEndedError", "RefusedError", "EnvironmentFailedError", "ActorFailedError"}

    def test_finds_errors_and_log_lines_of_every_package(self):
        found = {(message.module.partition("/")[0], message.is_logged) for message in messages()}
        assert found >= set(itertools.product(("services", "actor", "learner", "tools"), (True, False)))


class TestTroubleshooting:
    @pytest.mark.parametrize(("heading", "is_logged"), [(LOGGED, True), (ERRORS, False)], ids=["log", "errors"])
    def test_each_message_is_found(self, heading: str, is_logged: bool):
        known = rows(heading)
        missing = [
            f"{message.printed}  [{message.module}]"
            for message in messages()
            if message.is_logged is is_logged
            and message.has_words
            # it names the setting, its value and what was expected: the section begins with that
            and message.kind != "ConfigurationError"
            and not any(matches(row, message.printed) for row in known)
        ]
        assert not missing, "give a row of docs/howto/troubleshoot.md to:\n" + "\n".join(missing)

    def test_lines_that_pass_on_another_text_are_known(self):
        assert {message.module for message in messages() if message.is_logged and not message.has_words} == PASSED_ON

    def test_each_class_of_errors_is_found(self):
        made = {message.kind for message in messages() if not message.is_logged}
        named = {row.partition(":")[0] for row in rows(ERRORS)}
        assert made - named == {"ConfigurationError"}
        assert "rollcast prints a `ConfigurationError` without its class" in section_of("troubleshoot.md", ERRORS)

    def test_each_row_belongs_to_a_message(self):
        errors, logged = ([each for each in messages() if each.is_logged is is_logged] for is_logged in (False, True))
        for heading, candidates in ((ERRORS, errors), (LOGGED, logged)):
            unused = [row for row in rows(heading) if not any(matches(row, each.printed) for each in candidates)]
            assert not unused, f"no message begins so: {unused}"

    def test_no_row_of_the_log_covers_what_others_cover(self):
        known = rows(LOGGED)
        found_by = [{row for row in known if matches(row, each.text)} for each in messages() if each.is_logged]
        needed = set().union(*(found for found in found_by if len(found) == 1))
        spare = set(known) - needed
        assert not spare, f"other rows find the same: {spare}"

    def test_each_wait_is_one_of_the_program(self):
        texts = [text for _, text in sources()]
        for row in rows(WAITS):
            words = [part.strip(" ();") for part in row.split(VALUE) if len(part.strip(" ();:")) > 2]
            assert words
            assert all(any(part in text for text in texts) for part in words), row


def test_the_site_lists_every_message():
    page = page_of_messages()
    row = "| the learner is stopping | it to run | reconnect with backoff | `services/limits/stream_gate` |"
    assert row in page.partition("\n## NotReadyError\n")[2].partition("\n## ")[0]
    for message in messages():
        if message.has_words:
            assert f"`{message.module}` |" in page
    assert page.index("\n## ActorFailedError") < page.index("\n## WARNING")


def test_a_message_is_printed_with_its_class():
    assert Message("RefusedError", "no", "a").printed == "RefusedError: no"
    assert Message("ConfigurationError", "no", "a").printed == "no"
    assert Message("WARNING", "no", "a").printed == "no"
