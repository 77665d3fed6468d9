"""Processes of this machine, as psutil tells of them."""

from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]


def lives(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie has ended."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def processes_in(folder: Path) -> list[psutil.Process]:
    """Those with their working directory in it: both servers, their workers, and what prepares them."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if lives(process) and Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found
