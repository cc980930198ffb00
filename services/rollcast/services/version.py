"""Finds the version of rollcast that is running."""

import functools


@functools.cache
def software_version() -> str:
    """Returns the installed version, or "source" if rollcast runs from a source tree without being installed."""
    # Imported here: it takes as long as everything else that `rollcast --help` needs.
    from importlib import metadata

    try:
        return metadata.version("rollcast")
    except metadata.PackageNotFoundError:
        return "source"
