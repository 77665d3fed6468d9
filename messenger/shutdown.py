"""Asking a process to stop: SIGTERM and SIGINT as something every wait can include."""

import contextlib
import os
import select
import signal
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Self


class StopSignal:
    """Set by SIGTERM or SIGINT (once or more often) or by `stop()`.

    On exit the old handlers return, unless this is the `end_of_process`: from there on the signals are ignored, for
    who asks to stop once more, while the interpreter winds up, must not turn a good end into a signal's.

    A pipe rather than `threading.Event`: a handler runs in the middle of the main thread's own
    `Event.wait`, where `Event.set` may meet the lock that the interrupted wait holds.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, *, end_of_process: bool = False) -> None:
        self._end_of_process = end_of_process
        self._stopped = False
        self._previous: dict[signal.Signals, object] = {}
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._on_signal) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if self._end_of_process else handler)  # type: ignore[arg-type]
        os.close(self._read)
        os.close(self._write)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask to stop; may be called any number of times."""
        self._stopped = True
        with contextlib.suppress(OSError):  # a full pipe already says what it has to say
            os.write(self._write, b"x")

    def is_set(self) -> bool:
        """Whether someone asked to stop."""
        return self._stopped

    def wait(self, seconds: float, *, also: Sequence[int] = ()) -> bool:
        """Wait until asked to stop, until a descriptor of `also` is readable, or `seconds`; whether to stop."""
        if not self._stopped:
            select.select([self._read, *also], [], [], max(0.0, seconds))
        return self._stopped
