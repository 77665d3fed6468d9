"""Processes race on the same fixtures on which they fail."""

from tests.faults.conftest import consume

__all__ = ["consume"]
