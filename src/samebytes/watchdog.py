"""Ends a server when the process that started it dies, however it dies.

Runs as a process of its own, in its own session, by path and with the standard library alone. Its standard input is a
pipe whose other end only the starting process holds. It reads ``session N`` once the server runs, and ``done`` once it
was stopped; end of file without ``done`` means that the starting process is gone.

A server's processes are recognised by their session and by `MARKER` in their environment, which is chosen before the
server starts: so there is no moment at which a server runs that nobody can find.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

MARKER = "SAMEBYTES_LAUNCH"
GRACE_S = 8.0
"""Most seconds between SIGTERM and SIGKILL: with the rest, all is over within 15 as a rule."""
KILL_S = 60.0
"""Most seconds that killed processes get to vanish: the kernel frees their memory first, which a busy host delays."""
QUIET_S = 0.5
"""A process may have been forked and not yet have its new environment: look again for this long."""


def members(nonce: str, session: int | None) -> list[int]:
    """Return the ids of the living processes of one launch, zombies left out.

    Parameters
    ----------
    nonce : str
        Value of `MARKER` in the launch's environment.
    session : int or None
        The launch's session and process group, where known.
    """
    entry = f"{MARKER}={nonce}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                # The command's name may hold anything, brackets included.
                state, _, group, own_session, *_ = stat.read().rpartition(b")")[2].split()
            if state in (b"Z", b"X"):
                continue
            if session is None or session not in (int(group), int(own_session)):
                with open(f"/proc/{name}/environ", "rb") as environ:
                    if entry not in environ.read().split(b"\0"):
                        continue
        except OSError:  # ended meanwhile, or another user's
            continue
        found.append(int(name))
    return found


def end(nonce: str, session: int | None, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> list[int]:
    """End every process of one launch: SIGTERM, up to ``grace_s`` seconds, then SIGKILL.

    Parameters
    ----------
    nonce, session
        As in `members`.
    grace_s : float
        Seconds from SIGTERM to SIGKILL, where something still lives.
    hurry : callable
        Asked meanwhile; true ends the wait.

    Returns
    -------
    list of int
        Processes that live on in spite of all: empty, but for ones the kernel cannot end.
    """
    alive = _send(nonce, session, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while alive and time.monotonic() < deadline and not hurry():
        time.sleep(0.05)
        alive = members(nonce, session)
    deadline = time.monotonic() + KILL_S
    while alive and time.monotonic() < deadline:
        _send(nonce, session, signal.SIGKILL)
        time.sleep(0.05)
        alive = members(nonce, session)
    return alive


def _send(nonce: str, session: int | None, number: signal.Signals) -> list[int]:
    """Signal the launch's processes; those found by name one by one, as they may have left the group."""
    found = members(nonce, session)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return found


def main() -> None:
    """Wait on standard input; the arguments are the launch's nonce and seconds from SIGTERM to SIGKILL."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nonce, grace_s = sys.argv[1], min(float(sys.argv[2]), GRACE_S)
    session = None
    for line in sys.stdin:
        word, _, value = line.strip().partition(" ")
        if word == "done":
            return
        if word == "session":
            session = int(value)
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < QUIET_S:
        if members(nonce, session):
            end(nonce, session, grace_s)
            quiet_since = time.monotonic()
        time.sleep(0.1)


if __name__ == "__main__":
    main()
