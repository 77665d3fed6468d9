"""Waiting on conditions, never on time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds until what was to happen has not: enough for a machine that does much else; a test that passes waits less."""


def wait_until(condition: Callable[[], T], *, seconds: float = PATIENCE, what: str = "") -> T:
    """Poll until `condition()` is truthy and return its value; fail with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        last = time.monotonic() > deadline  # asked first, so that a machine that stalls here looks once more
        value = condition()
        if value:
            return value
        if last:
            raise AssertionError(f"did not happen in {seconds:g} s: {what or condition}")
        time.sleep(0.02)
