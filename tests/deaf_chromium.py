#!/usr/bin/env python3
"""Starts Chromium deaf to changes of the machine's networks.

Chromium ends its connections with `ERR_NETWORK_CHANGED` when an interface comes or goes, as those of containers do,
which other tests start beside it, and no switch keeps it from it. It hears of them over a socket of the family
netlink; where it gets none, it takes the network for steady. `CHROMIUM` is the program.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

# The number of the system call `socket`; on other processors Chromium is started as it is.
SOCKET = {"x86_64": 41, "aarch64": 198}

# <linux/prctl.h>, <linux/seccomp.h>
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
# <linux/bpf_common.h>: load a word of `struct seccomp_data`, whose number is at 0 and whose first argument is at 16
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06


def refuse_netlink(socket_call: int) -> None:
    """Has this process, and what it becomes, get no sockets of netlink."""
    steps = (
        (LOAD, 0, 0, 0),
        (JUMP_IF_EQUAL, 0, 3, socket_call),
        (LOAD, 0, 0, 16),
        (JUMP_IF_EQUAL, 0, 1, socket.AF_NETLINK),
        (RETURN, 0, 0, ERRNO | errno.EAFNOSUPPORT),
        (RETURN, 0, 0, ALLOW),
    )
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    filtered = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(program)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = (ctypes.c_int, *4 * (ctypes.c_ulong,))
    for option, value, address in (
        (PR_SET_NO_NEW_PRIVS, 1, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filtered)),
    ):
        if prctl(option, value, address, 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    if (socket_call := SOCKET.get(platform.machine())) is not None:
        refuse_netlink(socket_call)
    os.execv(os.environ["CHROMIUM"], sys.argv)
