"""Where files are kept that several runs share."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """This user's cache folder of the project (``XDG_CACHE_HOME``, else ``~/.cache``)."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The specification of that variable: a relative path is to be ignored.
    base = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return base / "messenger"
