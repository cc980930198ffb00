"""A client that speaks no TLS leaves no line in the output of a command that serves with TLS."""

import subprocess
import sys

import pytest

from tests.certificates import make_certificates
from tests.processes import environment

# gRPC reads its settings at its import, so each program is a fresh interpreter. `main` ends it after this function.
PROGRAM = """
import atexit, sys
def meet_a_client_without_tls():
    import grpc
    key, cert = (open(f"{sys.argv[2]}/server.{name}", "rb").read() for name in ("key", "pem"))
    server = grpc.server(None)
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key, cert)]))
    server.start()
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        call = channel.unary_unary("/a/b").future(b"", timeout=60)
        print(call.code().name)
    server.stop(None).wait()
sys.argv[1:] = ["--help", *sys.argv[1:]]
atexit.register(meet_a_client_without_tls)
"""


def lines_of(main: str, certs: object, **variables: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{PROGRAM}\nfrom {main} import main\nmain()", str(certs)],
        capture_output=True,
        text=True,
        check=True,
        env=environment() | variables,
    )
    assert done.stdout.endswith("UNAVAILABLE\n")
    return [line for line in done.stderr.splitlines() if "Handshake failed" in line]


@pytest.mark.parametrize("main", ["rollcast.learner.__main__", "rollcast.actor.__main__"])
def test_a_refused_handshake_prints_no_line(tmp_path, main):
    make_certificates(tmp_path)
    assert lines_of(main, tmp_path) == []


def test_a_refused_handshake_prints_a_line_if_the_user_asks_for_it(tmp_path):
    make_certificates(tmp_path)
    assert lines_of("rollcast.actor.__main__", tmp_path, GRPC_VERBOSITY="INFO")
