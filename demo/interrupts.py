"""Ctrl-C, SIGTERM and a closed terminal: one way out, taken once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Someone wants this process to end. No Exception: nothing that handles errors is to swallow it."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Only the first one counts: a second Ctrl-C must not interrupt the end of the servers.
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted on the first signal, wherever the main thread is."""
    previous = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
