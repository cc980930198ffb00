"""Tells which paths can be written as UTF-8: in a settings file, and in a message about a socket."""


def is_utf8(text: str) -> bool:
    """Returns whether a text can be written as UTF-8. A path with other bytes cannot: it has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
