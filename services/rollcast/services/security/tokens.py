"""Tokens: who holds one may do what its role may."""

import enum
import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from rollcast.services.errors import ConfigurationError
from rollcast.services.security.watched_files import WatchedFiles

_log = logging.getLogger(__name__)

# What a header may carry and nobody mistypes: visible ASCII. 16 characters are the least that cannot be tried out.
_TOKEN: Final = re.compile(r"[!-~]{16,512}")


class Role(enum.Enum):
    """What the holder of a token does; `rollcast.services.security.authorization` says which calls that takes."""

    ACTOR = "actor"
    VIEWER = "viewer"
    OPERATOR = "operator"


class Tokens(Protocol):
    """Knows whose a token is. Called from any thread, also from the one that serves all calls: it must not block."""

    def role_of(self, token: str) -> Role | None:
        """The role of a token; None: nobody's."""


class TokenTable:
    """Tokens that do not change. Safe from any thread.

    Only their SHA-256 digests are kept, and every one of them is compared in constant time at every call, so that
    neither its duration nor a dump of this object says anything about a token.

    Args:
        roles: Whose each token is.

    Raises:
        ConfigurationError: There is none, or one is too short or has characters that no header carries.
    """

    def __init__(self, roles: Mapping[str, Role]) -> None:
        if not roles:
            raise ConfigurationError("there is no token; expected at least one line 'role:token'; add one")
        self._digests = tuple((_digest(check_token(token, "a token")), role) for token, role in roles.items())

    def role_of(self, token: str) -> Role | None:
        """The role of a token; None: nobody's."""
        digest = _digest(token)
        found = None
        for known, role in self._digests:
            if hmac.compare_digest(known, digest):
                found = role
        return found


class TokenFile:
    """The tokens of a file, read again when it has changed. Safe from any thread.

    A line is `role:token`, with a role of `actor`, `viewer` and `operator`; empty lines and lines that begin with # are
    comments. A role may have many tokens. A file that cannot be read any more, or is malformed, changes nothing: the
    tokens that were read last go on, and the log says so.

    Args:
        path: The file.

    Raises:
        ConfigurationError: It cannot be read, or is malformed.
    """

    def __init__(self, path: Path) -> None:
        self._watched = WatchedFiles((path,))
        self._path = path
        self._table = self._read()

    def role_of(self, token: str) -> Role | None:
        """The role of a token; None: nobody's."""
        if self._watched.have_changed():  # of two threads one may still see the old table, for one call
            try:
                self._table = self._read()
            except ConfigurationError as error:
                _log.warning("the tokens stay as they were: %s", error)
            else:
                _log.info("read the tokens of %s again", self._path)
        return self._table.role_of(token)

    def _read(self) -> TokenTable:
        text = read_secret(self._path)
        roles: dict[str, Role] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            name, _, token = line.strip().partition(":")
            where = f"line {number} of {str(self._path)!r}"
            if name not in {role.value for role in Role}:
                # not the line itself: what stands there may be a token
                raise ConfigurationError(
                    f"{where} names no role; expected 'actor:TOKEN', 'viewer:TOKEN' or 'operator:TOKEN'; correct it"
                )
            if check_token(token, f"the token in {where}") in roles:
                raise ConfigurationError(f"{where} has a token that is in a line above; expected each once; remove one")
            roles[token] = Role(name)
        if not roles:
            raise ConfigurationError(f"{str(self._path)!r} has no token; expected lines 'role:token'; add one")
        return TokenTable(roles)


def check_token(token: str, what: str) -> str:
    """Returns a token that can be one.

    Args:
        token: The token.
        what: What to call it in the error, which does not show it.

    Raises:
        ConfigurationError: It is empty, too short or too long, or has characters that no header carries.
    """
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"{what} has {len(token)} characters or one that is not allowed; expected 16 to 512 letters, digits and "
            "punctuation marks without blanks; make one with: openssl rand -hex 32"
        )
    return token


def read_secret(path: Path) -> str:
    """Reads a file that only its owner should be able to read; says so in the log where others can.

    Args:
        path: The file.

    Returns:
        Its text.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"the file {str(path)!r} cannot be read ({error.__class__.__name__}); expected a text file that this user "
            "may read; correct the path or its mode"
        ) from error
    if mode & 0o007:
        # no error: secrets that Docker and Kubernetes mount are often readable by all of a container
        _log.warning("%s has mode %03o, so others can read it; expected 600: chmod 600 %s", path, mode & 0o777, path)
    return text


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
