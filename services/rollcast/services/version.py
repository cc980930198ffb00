"""The version of rollcast that is running."""

import functools


@functools.cache
def software_version() -> str:
    """The installed version, or "source" where rollcast runs from a source tree without being installed."""
    # imported here: it takes as long as all else that `rollcast --help` needs
    from importlib import metadata

    try:
        return metadata.version("rollcast")
    except metadata.PackageNotFoundError:
        return "source"
