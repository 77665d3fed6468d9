"""Free ports on the loopback address."""

from __future__ import annotations

import random
import socket
import threading
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOWEST = 15_000
_HIGHEST = 32_767
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 200

_given: set[int] = set()
_given_lock = threading.Lock()


def free_port() -> int:
    """A free port below the range that outgoing connections use.

    A port of that range could be lost while its server is stopped: a client that tries to reconnect may be
    given this very port as its own end, connect to itself, and keep the server from starting again.
    """
    highest = min(_HIGHEST, _first_ephemeral_port() - 1)
    with _given_lock:
        for _ in range(_TRIES if highest > _LOWEST else 0):
            port = random.randint(_LOWEST, highest)
            if port not in _given and _is_free(port):
                _given.add(port)
                return port
    return _any_port()


def _first_ephemeral_port() -> int:
    try:
        return int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _HIGHEST + 1


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        # As the servers do: connections of the past that still linger don't count.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _any_port() -> int:
    with socket.socket() as candidate:
        candidate.bind((LOOPBACK, 0))
        port: int = candidate.getsockname()[1]
        return port
