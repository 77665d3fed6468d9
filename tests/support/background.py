"""Work at the same time as the test, on a database connection of its own."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from django.db import connection

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> Future[T]:
    """Start `work` in a thread; `result(seconds)` of what is returned waits for it and raises what it raised."""

    def body() -> T:
        try:
            return work()
        finally:
            connection.close()

    executor = ThreadPoolExecutor(1)
    future = executor.submit(body)
    executor.shutdown(wait=False)
    return future
