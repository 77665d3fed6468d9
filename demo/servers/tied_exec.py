"""Becomes another program whose life is tied to the process that started it.

Run as a script: ``tied_exec.py PARENT_PID DEATH_SIGNAL UID GID PROGRAM [ARGUMENT...]``; UID and GID are ``-``
to stay who we are. A script of its own, and not a ``preexec_fn``, because running Python between fork and
exec in a process with threads can deadlock (and Python 3.12 warns of it). It imports nothing of this package:
it runs isolated, by its path.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>: the signal this process gets when the thread that started it ends."""


def drop_privileges(uid: str, gid: str) -> None:
    """Become the given user, with no other group; ``-`` changes nothing."""
    if uid == "-":
        return
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))


def die_with_parent(parent_pid: int, death_signal: int) -> None:
    """Ask the kernel for a signal at the parent's death; does nothing where there is no such thing."""
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    # The parent may have died before the request: then no signal will ever come.
    if os.getppid() != parent_pid:
        sys.exit("the parent is already gone")


def main(arguments: list[str]) -> None:
    """Drop privileges, tie this process to its parent, become the program."""
    parent_pid, death_signal, uid, gid, *program = arguments
    # In this order: the kernel clears the death signal when a process changes its user.
    drop_privileges(uid, gid)
    die_with_parent(int(parent_pid), int(death_signal))
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
