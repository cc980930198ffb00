"""Maps tokens to roles, from memory or from a file."""

import enum
import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from rollcast.services.errors import ConfigurationError
from rollcast.services.process.named_files import read_named_file
from rollcast.services.security.watched_files import WatchedFiles

_log = logging.getLogger(__name__)

# Visible ASCII, which a header can carry and people can type. 16 characters cannot be guessed.
_TOKEN: Final = re.compile(r"[!-~]{16,512}")

# The files that this process has warned about, with their modes. A client reads its file at every connection.
_warned: Final[set[tuple[Path, int]]] = set()


class Role(enum.Enum):
    """The role of a token's holder. `rollcast.services.rpcs` lists the calls that each role may make."""

    ACTOR = "actor"
    VIEWER = "viewer"
    OPERATOR = "operator"


class Tokens(Protocol):
    """A map from token to role. It must not block, because the thread that accepts all calls uses it."""

    def role_of(self, token: str) -> Role | None:
        """Returns the role of a token; None for an unknown one."""


class TokenTable:
    """A fixed set of tokens. Safe from any thread.

    It keeps only SHA-256 digests, and compares all digests in constant time at every call. So neither the duration of a
    call nor a dump of this object reveals a token.

    Args:
        roles: The role of each token.

    Raises:
        ConfigurationError: There is no token, or a token is too short or has characters that a header cannot carry.
    """

    def __init__(self, roles: Mapping[str, Role]) -> None:
        if not roles:
            raise ConfigurationError("there is no token; expected at least one line 'role:token'; add one")
        self._digests = tuple((_digest(check_token(token, "a token")), role) for token, role in roles.items())

    def role_of(self, token: str) -> Role | None:
        """Returns the role of a token; None for an unknown one."""
        digest = _digest(token)
        found = None
        for known, role in self._digests:
            if hmac.compare_digest(known, digest):
                found = role
        return found


class TokenFile:
    """The tokens in a file. It reads the file again after each change. Safe from any thread.

    A line is `role:token`, and the role is `actor`, `viewer` or `operator`. Empty lines and lines that begin with # are
    comments. A role may have many tokens. If the file becomes unreadable or malformed, the last tokens stay valid, and
    the log has a warning.

    Args:
        path: The file.

    Raises:
        ConfigurationError: The file cannot be read, or is malformed.
    """

    def __init__(self, path: Path) -> None:
        self._watched = WatchedFiles((path,))
        self._path = path
        self._table = self._read()

    def role_of(self, token: str) -> Role | None:
        """Returns the role of a token; None for an unknown one."""
        if self._watched.have_changed():  # another thread may use the old table for one more call
            try:
                self._table = self._read()
            except ConfigurationError as error:
                _log.warning("the old tokens stay valid: %s", error)
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
                # The message does not show the line, which may contain a token.
                raise ConfigurationError(
                    f"{where} names no role; expected 'actor:TOKEN', 'viewer:TOKEN' or 'operator:TOKEN'; correct it"
                )
            if check_token(token, f"the token in {where}") in roles:
                raise ConfigurationError(f"{where} repeats an earlier token; expected each once; remove one")
            roles[token] = Role(name)
        if not roles:
            raise ConfigurationError(f"{str(self._path)!r} has no token; expected lines 'role:token'; add one")
        return TokenTable(roles)


def check_token(token: str, what: str) -> str:
    """Returns the token if it is well-formed.

    Args:
        token: The token.
        what: A description of the token for the error, which does not show the token itself.

    Raises:
        ConfigurationError: The token is empty, too short or too long, or has characters that a header cannot carry.
    """
    if not _TOKEN.fullmatch(token):
        raise ConfigurationError(
            f"{what} has {len(token)} characters or a forbidden one; expected 16 to 512 letters, digits and "
            "punctuation marks without blanks; make one with: openssl rand -hex 32"
        )
    return token


def read_secret(path: Path) -> str:
    """Reads a secret file. Logs a warning, once for each mode, if users other than the owner can read the file.

    Args:
        path: The file.

    Raises:
        ConfigurationError: The file cannot be read.
    """
    try:
        mode = path.stat().st_mode
        text = read_named_file(path).decode()
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"the file {str(path)!r} cannot be read ({_problem(error)}); expected a text file that this user "
            "may read; correct the path or its mode"
        ) from error
    if mode & 0o007 and (path, mode) not in _warned:
        # Only a warning, because all users of a container can often read the secrets that Docker and Kubernetes mount.
        _warned.add((path, mode))
        _log.warning("%s has mode %03o, so others can read it; expected 600: chmod 600 %s", path, mode & 0o777, path)
    return text


def _problem(error: OSError | UnicodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
