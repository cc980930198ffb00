"""Tells which texts can be settings: a run stores its settings in a YAML file, which is UTF-8."""


def is_utf8(text: str) -> bool:
    """Returns whether a text can be written as UTF-8. A path with other bytes cannot: it has lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
