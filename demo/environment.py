"""Makes the virtual environment and installs what the lock says, where that is not done yet.

`make` runs it with whatever `python3` there is, before anything is installed: it uses the standard library alone,
and a syntax that an old Python can read far enough to say that it is too old.
"""

import filecmp
import re
import shutil
import subprocess
import sys
from pathlib import Path

MINIMUM = (3, 11)
NEWER = ["python3.14", "python3.13", "python3.12", "python3.11"]
FOLDER = Path(".venv")
LOCK = Path("requirements-dev.lock")
INSTALLED = FOLDER / LOCK.name
"""A copy of the lock that was installed, written last: an interrupted installation is begun anew."""
PYTHON = FOLDER / "bin" / "python"

TOO_OLD = "Python 3.11 or newer is needed, and python3 is {}: install it, or name it with make PYTHON=/path/to/it."
NO_VENV = "Python lacks venv: install it (Debian and Ubuntu: apt-get install python3-venv), then run make again."
FAILED = "The packages could not be installed; pip's message above says why. Run make again when that is mended."


def is_current() -> bool:
    """Whether there is nothing to do."""
    try:
        return filecmp.cmp(str(LOCK), str(INSTALLED), shallow=False) and _succeeds([str(PYTHON), "-c", ""])
    except OSError:
        return False


def find_python() -> str:
    """A Python that is new enough: this one, or one that lies beside it under its own name."""
    if sys.version_info >= MINIMUM:
        return sys.executable
    for name in NEWER:
        if shutil.which(name):
            return name
    sys.exit(TOO_OLD.format(".".join(map(str, sys.version_info[:3]))))


def make_folder(python: str) -> None:
    """An empty virtual environment."""
    if not _succeeds([python, "-c", "import ensurepip, venv"]):
        sys.exit(NO_VENV)
    if subprocess.call([python, "-m", "venv", "--clear", str(FOLDER)]) != 0:
        sys.exit(NO_VENV)


def install() -> None:
    """What the lock says, with progress."""
    total = len(re.findall(r"^\S+==", LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    print(f"Installing up to {total} packages into {FOLDER}: a minute or so, this once.", flush=True)
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--require-hashes"]
    command = [str(PYTHON), "-m", "pip", "install", *options, "-r", str(LOCK)]
    count = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, universal_newlines=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            words = line.split()
            if words[:1] == ["Collecting"]:
                count += 1
                tell(f"  {count:3} {words[1]}")
            elif words[:1] == ["Installing"]:
                tell(f"  unpacking {count} packages ...")
    if pip.returncode != 0:
        sys.exit(FAILED)
    shutil.copyfile(str(LOCK), str(INSTALLED))
    tell(f"Installed {count} packages.")
    if sys.stdout.isatty():
        print()


def tell(what: str) -> None:
    """Say it: on one line of a terminal, which the next takes over, or on a line of its own."""
    print("\r\033[K" + what if sys.stdout.isatty() else what, end="" if sys.stdout.isatty() else "\n", flush=True)


def _succeeds(command: "list[str]") -> bool:
    return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0


if __name__ == "__main__" and not is_current():
    make_folder(find_python())
    install()
