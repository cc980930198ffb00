"""Limits gRPC's own output to errors."""

import os


def print_only_errors_of_grpc() -> None:
    """Makes gRPC print only errors, in this process and in processes that it starts later.

    Otherwise a server with TLS prints a notice for every client without TLS, several times per second. The client's own
    error contains the cause. gRPC reads the variable when it is imported, so call this first in a rollcast process. The
    function does not change an existing variable.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
