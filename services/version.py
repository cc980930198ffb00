"""The version of rollcast that is running."""

import functools
from importlib import metadata


@functools.cache
def software_version() -> str:
    """The installed version, or "source" where rollcast runs from a source tree without being installed."""
    try:
        return metadata.version("rollcast")
    except metadata.PackageNotFoundError:
        return "source"
