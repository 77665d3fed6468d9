"""Ctrl-C, SIGTERM and a closed terminal: one way out, taken once, and never in the middle of taking something up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Someone wants this process to end. No Exception: nothing that handles errors is to swallow it."""


class _State:
    depth = 0
    pending = False


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Only the first one counts: a second Ctrl-C must not interrupt the end of the servers.
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    if _State.depth:
        _State.pending = True
    else:
        raise Interrupted


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted on the first signal, wherever the main thread is, unless it is within `held`.

    After that the signals stay ignored, for this process is about to end; else the old handlers return.
    """
    previous = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """Raise Interrupted at the end of this rather than within.

    For what has to be known to those who clean up before anything may interrupt: a process and the variable that
    holds it, a folder and its owner. Keep it short, and end it within the `try` that cleans up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread alone
        return
    _State.depth += 1
    try:
        yield
    finally:
        _State.depth -= 1
        if _State.pending and not _State.depth:
            _State.pending = False
            raise Interrupted
