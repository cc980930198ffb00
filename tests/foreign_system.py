"""Makes this process look like one of Windows or macOS, as far as rollcast's own code can tell.

    python -m tests.foreign_system win32 PROGRAM.py [ARGUMENTS]

Modules and functions of POSIX that the system lacks are gone for everything that is imported from now on. The libraries
are imported before: they have wheels for these systems, and would load other files there.
"""

import contextlib
import enum
import importlib
import os
import runpy
import select
import signal
import socket
import sys
from importlib.abc import MetaPathFinder

LACKS_WINDOWS = {
    None: (
        "fcntl",
        "resource",
        "termios",
        "tty",
        "pty",
        "pwd",
        "grp",
        "readline",
        "syslog",
        "posix",
        "_posixsubprocess",
    ),
    os: (
        *("fork", "forkpty", "getuid", "geteuid", "getgid", "getpgid", "getppgid", "killpg", "setsid", "nice", "uname"),
        *("statvfs", "sched_yield", "sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create", "mkfifo"),
        *("pread", "pwrite", "pwritev", "posix_fallocate", "fdatasync", "register_at_fork", "eventfd", "openpty"),
        *("chown", "fchmod", "wait", "waitid", "WNOHANG", "O_CLOEXEC", "getloadavg", "sysconf"),
    ),
    signal: (
        *("SIGHUP", "SIGQUIT", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGALRM", "SIGWINCH"),
        *("SIGTSTP", "pthread_kill", "pthread_sigmask", "sigwait", "sigtimedwait", "setitimer", "alarm", "pause"),
    ),
    select: ("poll", "epoll", "EPOLLIN", "POLLIN"),
    socket: ("AF_UNIX", "socketpair"),
}
LACKS_MACOS = {
    None: (),
    os: (
        *("sched_getaffinity", "sched_setaffinity", "pidfd_open", "memfd_create", "posix_fallocate", "fdatasync"),
        *("eventfd",),
    ),
    signal: ("sigtimedwait",),
    select: ("epoll", "EPOLLIN"),
    socket: (),
}
# Imported before the system changes: what rollcast and its extras import.
LIBRARIES = (
    *("numpy", "gymnasium", "gymnasium.wrappers", "gymnasium.envs.classic_control", "grpc", "grpc_health.v1.health"),
    *("grpc_status.rpc_status", "google.protobuf", "google.rpc.error_details_pb2", "pydantic_settings", "yaml"),
    *("safetensors.numpy", "threadpoolctl", "prometheus_client", "xxhash", "zstandard", "multiprocessing.connection"),
    *("multiprocessing.reduction", "multiprocessing.resource_tracker", "multiprocessing.pool", "concurrent.futures"),
    *("asyncio", "http.server", "ctypes", "tempfile", "shutil", "subprocess", "uuid", "platform", "logging.handlers"),
    *("grpc_reflection.v1alpha.reflection", "onnx", "onnxruntime", "torch", "rich.console", "cryptography.x509"),
    *("nicegui", "fastapi", "uvicorn", "docker", "matplotlib.pyplot", "pettingzoo", "torch.utils.tensorboard"),
)


class _Lacking(MetaPathFinder):
    """Finds nothing that the system lacks."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {fullname!r}: this system has none", name=fullname)


def become(system: str) -> None:
    """Takes away what a system lacks: "win32" or "darwin"."""
    for name in LIBRARIES:
        with contextlib.suppress(ModuleNotFoundError):  # an extra that this installation lacks
            importlib.import_module(name)
    lacks = LACKS_WINDOWS if system == "win32" else LACKS_MACOS
    for owner, names in lacks.items():
        if owner is None:
            sys.meta_path.insert(0, _Lacking(names))
            for name in names:
                sys.modules.pop(name, None)
            continue
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    there = {name: number for name, number in signal.Signals.__members__.items() if name not in lacks[signal]}
    signal.Signals = enum.IntEnum("Signals", there)
    sys.platform = system


if __name__ == "__main__":
    become(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
