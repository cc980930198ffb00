"""The check of the policies that actors are given finds those that were never cast."""

import numpy as np

from rollcast.services.policies.encodings import PolicyEncoding
from tests.chaos.policies import GivenVersion, digest_of, find_wrong, read_policies


def test_a_digest_knows_every_number_and_name():
    state = {"a": np.zeros(3, np.float32), "b": np.ones((2, 2), np.float32)}
    others = (
        {"a": state["a"], "c": state["b"]},
        {"a": state["a"], "b": state["b"].reshape(4)},
        {"a": state["a"], "b": np.nextafter(state["b"], 2, dtype=np.float32)},
    )
    assert digest_of(dict(reversed(state.items()))) == digest_of(state)
    assert len({digest_of(state), *map(digest_of, others)}) == 4


def test_wrong_and_unknown_versions_are_found(tmp_path):
    (path := tmp_path / "a.policies").write_text("1 aa FULL\n2 bb DELTA\n3 cc DELTA\n")
    given = read_policies(path)
    assert given[1] == GivenVersion(2, "bb", PolicyEncoding.DELTA)
    assert find_wrong("a", given, {1: {"aa"}, 2: {"xx", "bb"}, 3: {"cc"}}) == []
    assert find_wrong("a", given, {1: {"aa"}, 2: {"xx"}}) == [
        "a was given a version 2 of the policy (DELTA) that was never cast",
        "a was given a version 3 of the policy (DELTA) that was never cast",
    ]
    assert read_policies(tmp_path / "none") == []
