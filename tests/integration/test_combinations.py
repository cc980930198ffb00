"""Every two choices that go together train and resume together, and every reason to refuse is told in one line."""

import random
from pathlib import Path

import pytest

from tests.matrix.covering import covering, refused_for
from tests.matrix.rules import RULES
from tests.matrix.running import CaseFailedError, command, judge

# a part takes two minutes of a busy machine
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Tests share them out; one test for each case would take pytest longer than some cases.
N_PARTS = 12


@pytest.mark.parametrize("part", range(N_PARTS))
def test_choices_that_go_together_train_and_resume(part: int, tmp_path: Path):
    found = []
    for index, case in enumerate(covering(only_main=True)[part::N_PARTS]):
        folder = tmp_path / str(index)
        folder.mkdir()
        try:
            judge(case, folder)
        except CaseFailedError as error:
            found.append(f"{command(case)}\n  {error}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.says)
def test_what_does_not_go_together_is_refused_at_the_start(rule, tmp_path: Path):
    case = refused_for(rule, random.Random(0))
    assert judge(case, tmp_path).refusal, command(case)
