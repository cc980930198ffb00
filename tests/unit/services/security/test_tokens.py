"""Tokens: the file's format, what is refused, and that none is ever shown."""

import logging
import os

import pytest

from rollcast.services.errors import ConfigurationError
from rollcast.services.security.bearer import token_in
from rollcast.services.security.tokens import Role, TokenFile, TokenTable, check_token, read_secret

ACTOR, VIEWER, OPERATOR = "actor-token-0123456789", "viewer:token-0123456789", "operator-token-012345"


def write(path, text, mode=0o600):
    """As whoever rotates tokens does: a new file takes the old one's place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)
    return path


@pytest.fixture
def file(tmp_path):
    return write(
        tmp_path / "tokens", f"# the robots\nactor:{ACTOR}\n\n  viewer:{VIEWER}  \n  # me\noperator:{OPERATOR}\n"
    )


class TestTable:
    def test_role_of_a_token_is_found(self):
        table = TokenTable({ACTOR: Role.ACTOR, OPERATOR: Role.OPERATOR})
        assert table.role_of(ACTOR) is Role.ACTOR
        assert table.role_of(OPERATOR) is Role.OPERATOR
        assert table.role_of(VIEWER) is None

    @pytest.mark.parametrize(
        "token", ["", ACTOR[:-1], ACTOR + "x", ACTOR.upper(), " " + ACTOR, "\udc80" * 20, "é" * 20]
    )
    def test_unknown_token_has_no_role(self, token):
        assert TokenTable({ACTOR: Role.ACTOR}).role_of(token) is None

    def test_keeps_no_token(self):
        assert ACTOR not in repr(vars(TokenTable({ACTOR: Role.ACTOR})))

    def test_rejects_table_without_tokens(self):
        with pytest.raises(ConfigurationError, match="there is no token"):
            TokenTable({})


class TestFile:
    def test_lines_comments_and_colons(self, file):
        tokens = TokenFile(file)
        assert [tokens.role_of(token) for token in (ACTOR, VIEWER, OPERATOR)] == list(Role)

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ("", "has no token"),
            ("# actor:0123456789abcdef\n", "has no token"),
            ("actor:\n", "the token in line 1 of .* has 0 characters"),
            ("\nactor:short\n", "the token in line 2 of .* has 5 characters"),
            (f"actor:{'x' * 513}\n", "has 513 characters"),
            ("actor:0123456789 abcdef\n", "a forbidden one"),
            (f"{ACTOR}\n", "line 1 of .* names no role; expected 'actor:TOKEN'"),
            (f"admin:{ACTOR}\n", "names no role"),
            (f"actor:{ACTOR}\nviewer:{ACTOR}\n", "line 2 of .* repeats an earlier token"),
        ],
    )
    def test_rejects_malformed_file(self, tmp_path, text, match):
        with pytest.raises(ConfigurationError, match=match) as caught:
            TokenFile(write(tmp_path / "tokens", text))
        assert ACTOR not in str(caught.value)

    def test_rejects_missing_file(self, tmp_path):
        with pytest.raises(ConfigurationError, match=r"cannot be read \(No such file or directory\)"):
            TokenFile(tmp_path / "tokens")

    def test_warns_once_of_a_file_that_others_can_read(self, file, caplog):
        for mode in (0o644, 0o666):
            file.chmod(mode)
            for _ in range(3):  # as a client that reconnects does
                TokenFile(file)
            assert caplog.text.count(f"has mode {mode:o}, so others can read it; expected 600") == 1
        assert ACTOR not in caplog.text

    def test_is_read_again_when_it_changes(self, file, caplog):
        caplog.set_level(logging.INFO)
        tokens = TokenFile(file)
        write(file, f"operator:{ACTOR}\n")
        assert tokens.role_of(ACTOR) is Role.OPERATOR
        assert tokens.role_of(VIEWER) is None
        assert caplog.text.count("read the tokens of") == 1
        assert ACTOR not in caplog.text

    @pytest.mark.parametrize("spoil", [lambda path: write(path, "nonsense"), os.unlink])
    def test_spoilt_file_changes_nothing_until_it_is_corrected(self, file, caplog, spoil):
        tokens = TokenFile(file)
        spoil(file)
        assert tokens.role_of(ACTOR) is Role.ACTOR
        assert tokens.role_of(ACTOR) is Role.ACTOR
        assert caplog.text.count("the old tokens stay valid") == 1
        write(file, f"viewer:{ACTOR}\n")
        assert tokens.role_of(ACTOR) is Role.VIEWER


def test_a_secret_is_read_and_a_token_checked_without_being_shown(tmp_path):
    assert read_secret(write(tmp_path / "token", f"{ACTOR}\n")).strip() == ACTOR
    with pytest.raises(ConfigurationError, match="--token has 6 characters") as caught:
        check_token("hidden", "--token")
    assert "hidden" not in str(caught.value)


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
