"""What `skerry up` says while it starts, and when it is ready: to a terminal or to a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import threading
import time
from typing import Any, Protocol

from skerry_cli.output import note, say


class Reporter(Protocol):
    """Where `skerry up` tells how far it is. Called from any thread."""

    def progress(self, what: str, share: float) -> None:
        """`share` of `what` is done, 0 to 1."""
        ...

    def ready(self, report: dict[str, Any]) -> None:
        """The platform serves: `url`, `account_id`, `api_token`, `models`."""
        ...


class PipeReporter:
    """Reports as JSON lines to the process that waits for us; once it is gone, to nobody."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor  # None: closed, its number may be another's
        self._last: tuple[str, int] = ("", 0)
        self._lock = threading.Lock()

    def progress(self, what: str, share: float) -> None:
        step = (what, int(share * 100))
        with self._lock:
            if step != self._last:
                self._last = step
                self._write({"what": what, "share": share})

    def ready(self, report: dict[str, Any]) -> None:
        with self._lock:
            self._write(report)
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _write(self, report: dict[str, Any]) -> None:
        if self._descriptor is None:
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(self._descriptor, json.dumps(report).encode() + b"\n")


class TerminalReporter:
    """Progress bars while there is something to wait for, then how to use what has started."""

    def __init__(self, *, background: bool = False) -> None:
        self._background = background
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._bars: Bars | Lines = Bars() if sys.stderr.isatty() else Lines()

    def progress(self, what: str, share: float) -> None:
        with self._lock:
            self._bars.show(what, share)

    def ready(self, report: dict[str, Any]) -> None:
        with self._lock:
            self._bars.close()
        seconds = time.monotonic() - self._started
        say(ready_text(report, seconds=seconds, background=self._background))


class LineReporter:
    """For a process that began anew: nobody waits for it, and a log is no place for tokens."""

    def __init__(self) -> None:
        self._lines = Lines()

    def progress(self, what: str, share: float) -> None:
        self._lines.show(what, share)

    def ready(self, report: dict[str, Any]) -> None:
        note(f"Skerry is ready again at {report['url']}.")


class Lines:
    """Without a terminal: one line for each thing begun."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def show(self, what: str, share: float) -> None:
        if what not in self._begun:
            self._begun.add(what)
            note(f"{what} …")

    def close(self) -> None:
        """Nothing to take down."""


class Bars:
    """One bar for each thing that goes on at once; they vanish when all is ready."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._tasks: dict[str, Any] = {}

    def show(self, what: str, share: float) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=1.0)
        self._progress.update(self._tasks[what], completed=share)

    def close(self) -> None:
        self._progress.stop()


def ready_text(report: dict[str, Any], *, seconds: float, background: bool) -> str:
    """What a person needs to know next, with a curl command that works when pasted."""
    url, account, token = report["url"], report["account_id"], report["api_token"]
    model = report["models"][0]
    body = json.dumps({"prompt": "The sea is", "stream": True})
    curl = (
        f"curl -N {shlex.quote(f'{url}/client/v4/accounts/{account}/ai/run/{model}')} \\\n"
        f"    -H {shlex.quote(f'Authorization: Bearer {token}')} \\\n"
        f"    -d {shlex.quote(body)}"
    )
    how_to_stop = "skerry down" if background else "Ctrl-C, or skerry down"
    return (
        f"Skerry is ready after {seconds:.1f} s.\n"
        f"\n"
        f"  URL      {url}\n"
        f"  account  {account}\n"
        f"  token    {token}\n"
        f"  models   {', '.join(report['models'])}\n"
        f"  stop     {how_to_stop}\n"
        f"\n"
        f"  {curl}\n"
    )
