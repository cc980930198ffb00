"""Tokens in the header of a call."""

import pytest

from rollcast.services.security.bearer import token_in


def test_finds_the_token_among_other_metadata():
    assert token_in((("user-agent", "x"), ("authorization", "Bearer abc"))) == "abc"


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (),
        (("authorization", "abc"),),
        (("authorization", "bearer abc"),),
        (("authorization", b"Bearer abc"),),
        (("authorization", "Bearer abc"), ("authorization", "Bearer def")),
    ],
)
def test_finds_no_token_in_anything_else(metadata):
    assert token_in(metadata) is None
