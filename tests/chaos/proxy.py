"""A TCP proxy between actors and their learner, which can be told to do what networks do."""

import contextlib
import math
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final, Literal, get_args

# The faults that change bytes of the next message, by its sender: the actor or client, or the learner or actor that it
# has dialled.
DamageUp = Literal["flip", "garble", "inflate", "flip_turn"]
DamageDown = Literal["flip_policy", "flip_actions"]
Damage = Literal[DamageUp, DamageDown]
NetworkFault = Literal["delay", "cut", "half_close", "stall", "black_hole", Damage]
_DOWN: Final[tuple[Damage, ...]] = get_args(DamageDown)

_CHUNK_BYTES = 1 << 16
_LOOK_S = 0.1
_CONNECT_TIMEOUT_S = 5.0
# A chunk that is as long has a rollout at its end, or a part of a policy. One of nine bytes has the head of a frame of
# HTTP/2.
_ROLLOUT_BYTES = 1024
_FRAME_HEAD_BYTES = 9
_MESSAGE_HEAD_BYTES = 5
_DATA = 0


class ThinLine:
    """The rate of a line that all connections share, in one direction. Any thread may call.

    Invariant: bytes pass one after the other, each piece in its time; a thread that comes late for the next piece, by
    `slack_s` at most, is forgiven.

    Args:
        slack_s: The lateness that counts as the scheduler's, in seconds.
    """

    def __init__(self, bytes_per_s: float, slack_s: float = 0.005) -> None:
        self._bytes_per_s, self._slack_s = bytes_per_s, slack_s
        self._lock = threading.Lock()  # guards the time
        self._free_at = -math.inf

    def take(self, n_bytes: int, now: float) -> float:
        """Takes the line for bytes, and returns the seconds until they have passed; `now` is the clock's time."""
        with self._lock:
            begins = self._free_at if now - self._free_at < self._slack_s else now
            self._free_at = begins + n_bytes / self._bytes_per_s
            return max(0.0, self._free_at - now)


class Link:
    """One proxied connection, with a thread for each direction.

    Args:
        client: The actor's end.
        server: The learner's end.
        rng: Draws the bit that a flip hits.
        lines: The shared lines to the learner and from it; None: they are as fast as this machine.
    """

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        rng: random.Random,
        lines: tuple[ThinLine, ThinLine] | None = None,
    ) -> None:
        self._ends = (client, server)
        self._rng = rng
        self._over = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        self._swallow = False
        self.delay_s = 0.0
        self._damage: Damage | None = None
        self.damaged = threading.Event()
        # Written by the thread of that direction only.
        self.n_bytes_down = 0
        self._threads = [
            threading.Thread(target=self._pump, args=(*pair, line), name=f"chaos-link-{way}", daemon=True)
            for way, pair, line in zip(
                ("up", "down"), ((client, server), (server, client)), lines or (None, None), strict=True
            )
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_open(self) -> bool:
        """True while it still carries anything."""
        return not self._over.is_set() and any(thread.is_alive() for thread in self._threads)

    def cut(self) -> None:
        """Ends it with RST in both directions, as a machine that was switched off and on again does."""
        self._over.set()
        self._flowing.set()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_CONNECT_TIMEOUT_S)
        for end in self._ends:
            end.close()

    def half_close(self) -> None:
        """Tells the learner that nothing more comes from the actor; the other direction stays open."""
        with contextlib.suppress(OSError):
            self._ends[1].shutdown(socket.SHUT_WR)

    def stall(self, *, stalled: bool) -> None:
        """Forwards nothing until told otherwise; nothing is lost."""
        if stalled:
            self._flowing.clear()
        else:
            self._flowing.set()

    def swallow(self) -> None:
        """Takes everything and forwards nothing any more, without ever ending the connection."""
        self._swallow = True

    def damage(self, fault: Damage) -> None:
        """Flips one bit of the next bytes; `damaged` is set when that is done.

        Args:
            fault: `flip` hits a rollout; `garble` hits any bytes, also those that tell HTTP/2 where a frame ends;
                `inflate` adds 64 KiB to the length of a rollout's message, so that the learner waits for the rest;
                `flip_policy` hits a policy on its way to the actor; `flip_turn` and `flip_actions` hit a message of any
                size, and no bytes around it.
        """
        self.damaged.clear()
        self._damage = fault

    def _pump(self, source: socket.socket, target: socket.socket, line: ThinLine | None) -> None:
        source.settimeout(_LOOK_S)
        try:
            while not self._over.is_set():
                try:
                    chunk = source.recv(_CHUNK_BYTES)
                except TimeoutError:
                    continue
                if self.delay_s:
                    self._over.wait(self.delay_s)
                if line is not None:
                    self._over.wait(line.take(len(chunk), time.monotonic()))
                while not self._flowing.wait(_LOOK_S) and not self._over.is_set():
                    pass
                if self._over.is_set():
                    return
                if self._swallow:
                    continue
                if not chunk:
                    target.shutdown(socket.SHUT_WR)
                    return
                if self._damage and (source is self._ends[1]) == (self._damage in _DOWN):
                    chunk = self._flip_a_bit(chunk)
                self._send(target, chunk)
                if source is self._ends[1]:
                    self.n_bytes_down += len(chunk)
        except OSError:
            # an end is gone: the other is to learn of it, which a RST would tell it
            self._over.set()
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _flip_a_bit(self, chunk: bytes) -> bytes:
        changed = bytearray(chunk)
        if self._damage in ("flip_turn", "flip_actions"):
            message = _find_message(chunk)
            if message is None:
                return chunk
            changed[self._rng.choice(message)] ^= 1 << self._rng.randrange(8)
            self._damage = None
            self.damaged.set()
            return bytes(changed)
        if len(chunk) < (_FRAME_HEAD_BYTES if self._damage == "garble" else _ROLLOUT_BYTES):
            return chunk
        if self._damage == "inflate":
            length = _find_length(chunk)
            if length is None:
                return chunk
            changed[length + 1] ^= 1  # of 64 KiB
        else:
            start = 0 if self._damage == "garble" else len(chunk) // 2
            changed[self._rng.randrange(start, len(chunk))] ^= 1 << self._rng.randrange(8)
        self._damage = None
        self.damaged.set()
        return bytes(changed)

    def _send(self, target: socket.socket, chunk: bytes) -> None:
        left = memoryview(chunk)
        while left and not self._over.is_set():
            try:
                left = left[target.send(left) :]
            except TimeoutError:
                continue


def _find_length(chunk: bytes) -> int | None:
    """Returns the place of a message's 4-byte length, in a frame that begins with a whole message of rollouts."""
    for message, n_message in _messages(chunk):
        if _ROLLOUT_BYTES // 2 < n_message < 1 << 16:
            return message + 1
    return None


def _find_message(chunk: bytes) -> range | None:
    """Returns the places of the bytes of a whole message, in a frame that begins with it."""
    for message, n_message in _messages(chunk):
        first = message + _MESSAGE_HEAD_BYTES
        if n_message and first + n_message <= len(chunk):
            return range(first, first + n_message)
    return None


def _messages(chunk: bytes) -> Iterator[tuple[int, int]]:
    """Yields the place and the length of the message at the beginning of each frame of data that has all of it."""
    frame = 0
    while len(chunk) >= frame + _FRAME_HEAD_BYTES + _MESSAGE_HEAD_BYTES:
        n_bytes, kind = int.from_bytes(chunk[frame : frame + 3]), chunk[frame + 3]
        message = frame + _FRAME_HEAD_BYTES
        n_message = int.from_bytes(chunk[message + 1 : message + _MESSAGE_HEAD_BYTES])
        if kind == _DATA and not chunk[message] and n_message < n_bytes:
            yield message, n_message
        frame = message + n_bytes


class Proxy:
    """Listens for actors and forwards to the learner. `inject` and `heal` may be called from any one thread.

    Args:
        learner_port: The learner's port on this machine; an attribute, which counts for new connections.
        seed: The seed of the bits that flips hit.
        bytes_per_s: The rate in each direction, of all connections together; None: as fast as this machine.
        own_host: The address from which the learner sees it call.
    """

    def __init__(
        self, learner_port: int, seed: int, *, bytes_per_s: float | None = None, own_host: str = "127.0.0.1"
    ) -> None:
        self.learner_port = learner_port
        self._own_host = own_host
        self._lines = None if bytes_per_s is None else (ThinLine(bytes_per_s), ThinLine(bytes_per_s))
        self._rng = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_LOOK_S)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()  # guards the links
        self._links: list[Link] = []
        self._n_bytes_down_before = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="chaos-proxy", daemon=True)
        self._thread.start()

    @property
    def n_bytes_down(self) -> int:
        """The bytes that the learner has sent to its actors."""
        with self._lock:
            return self._n_bytes_down_before + sum(link.n_bytes_down for link in self._links)

    def inject(self, fault: NetworkFault, delay_s: float, timeout_s: float) -> bool:
        """Injects a fault into every open connection.

        Args:
            delay_s: The time by which `delay` delays each piece, in seconds.
            timeout_s: The longest wait of a fault that changes bytes for bytes to change, in seconds.

        Returns:
            True if a connection was open.
        """
        links = self._open_links()
        for link in links:
            match fault:
                case "delay":
                    link.delay_s = delay_s
                case "cut":
                    link.cut()
                case "half_close":
                    link.half_close()
                case "stall":
                    link.stall(stalled=True)
                case "black_hole":
                    link.swallow()
                case "flip" | "garble" | "inflate" | "flip_turn" | "flip_policy" | "flip_actions":
                    link.damage(fault)
        if fault in get_args(Damage):
            return bool(links) and links[-1].damaged.wait(timeout_s)
        return bool(links)

    def heal(self) -> None:
        """Ends delays and stalls; other faults of a connection stay."""
        for link in self._open_links():
            link.delay_s = 0.0
            link.stall(stalled=False)

    def close(self) -> None:
        """Ends every connection, and the proxy. Idempotent."""
        self._closing.set()
        self._thread.join(_CONNECT_TIMEOUT_S)
        self._listener.close()
        for link in self._links:
            link.cut()

    def _open_links(self) -> list[Link]:
        with self._lock:
            return [link for link in self._links if link.is_open]

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            try:
                server = socket.create_connection(
                    ("127.0.0.1", self.learner_port), _CONNECT_TIMEOUT_S, source_address=(self._own_host, 0)
                )
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._lines is not None:  # a thin line has no megabytes under way, in which pings would be late
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK_BYTES)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK_BYTES)
            # within the lock: a link that carries anything already is one that faults find
            with self._lock:
                link = Link(client, server, random.Random(self._rng.random()), self._lines)
                dead = [known for known in self._links if not known.is_open]
                self._links = [*(known for known in self._links if known.is_open), link]
                self._n_bytes_down_before += sum(known.n_bytes_down for known in dead)
            for known in dead:
                known.cut()


class Ways:
    """The proxies of a process that has several addresses, as one `Proxy`.

    Args:
        proxies: The proxies, in the order of the addresses.
    """

    def __init__(self, proxies: Sequence[Proxy]) -> None:
        self._proxies = proxies
        self.address = ",".join(proxy.address for proxy in proxies)

    def inject(self, fault: NetworkFault, delay_s: float, timeout_s: float) -> None:
        """Injects a fault into every open connection; see `Proxy.inject`."""
        for proxy in self._proxies:
            proxy.inject(fault, delay_s, timeout_s)

    def heal(self) -> None:
        """Ends delays and stalls; see `Proxy.heal`."""
        for proxy in self._proxies:
            proxy.heal()

    def close(self) -> None:
        """Ends every connection, and the proxies. Idempotent."""
        for proxy in self._proxies:
            proxy.close()
