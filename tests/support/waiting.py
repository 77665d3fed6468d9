"""Waiting on conditions, never on time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, seconds: float = 30, what: str = "") -> T:
    """Poll until `condition()` is truthy and return its value; fail with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen in {seconds:g} s: {what or condition}")
        time.sleep(0.02)
