"""What a command says: answers on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Print a line of the command's answer."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Print a line for the person at the terminal, not part of the answer. Nothing fails for want
    of it: stderr may be a log on a full disk."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def printable(text: str) -> str:
    """Return a text that others wrote without what would steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def complain(text: str) -> int:
    """Say what went wrong and what to do; returns the exit status of a failed command."""
    note(f"skerry: {text}")
    return 1
