"""Finds the running version of rollcast."""

import functools


@functools.cache
def software_version() -> str:
    """Returns the installed version, or "source" if rollcast runs from a source tree without being installed."""
    # Imported here, because it takes as long as all other imports of `rollcast --help`.
    from importlib import metadata

    try:
        return metadata.version("rollcast")
    except metadata.PackageNotFoundError:
        return "source"
