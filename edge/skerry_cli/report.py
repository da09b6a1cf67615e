"""What `skerry up` says while it starts, and when it is ready: to a terminal or to a pipe."""

from __future__ import annotations

import logging
import shlex
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from skerry_cli.output import note, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from skerry_cli.logs import LogForm
    from skerry_regions.models.catalog import ModelSpec
    from skerry_regions.models.problems import LeftOut


FIRST_PROMPT = "Why is the sky blue?"

logger = logging.getLogger(__name__)


class Reachable(Protocol):
    """URL, account and token that a platform is called with."""

    @property
    def url(self) -> str: ...
    @property
    def account_id(self) -> str: ...
    @property
    def api_token(self) -> str: ...


class StartReporter(Protocol):
    """Reports the progress of `skerry up`. Called from any thread."""

    def progress(self, what: str, share: float) -> None:
        """Report that `share` of `what` is done, 0 to 1."""
        ...

    def ready(self, report: dict[str, Any]) -> None:
        """Report that the platform serves: `url`, `account_id`, `api_token`, `models`."""
        ...


class TerminalReporter:
    """Progress while there is something to wait for, then how to use what has started: bars and
    sentences for a person, JSON lines for a program."""

    def __init__(self, form: LogForm | None = None, *, background: bool = False) -> None:
        """`form` is what the operator requested; by default it depends on what stdout and stderr
        are."""
        self._background = background
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._is_json = form == "json" or (form is None and not sys.stdout.isatty())
        self._progress: Bars | Lines
        if form is None and sys.stderr.isatty():
            self._progress = Bars()
        elif form == "text" or (form is None and background):
            self._progress = Bars() if sys.stderr.isatty() else Lines()
        else:
            self._progress = Lines(partial(logger.info, "%s"))  # JSON lines of a log

    def progress(self, what: str, share: float) -> None:
        with self._lock:
            self._progress.show(what, share)

    def ready(self, report: dict[str, Any]) -> None:
        with self._lock:
            self._progress.close()
        seconds = time.monotonic() - self._started
        if self._is_json:
            say(orjson.dumps(report | {"seconds": round(seconds, 3)}).decode())
        else:
            say(ready_text(report, seconds=seconds, background=self._background))


class LineReporter:
    """Reports of a restarted process: none waits for them, and a log is no place for tokens."""

    def __init__(self) -> None:
        self.progress = Lines().show

    def ready(self, report: dict[str, Any]) -> None:
        note(f"Skerry is ready again at {report['url']}.")


class Lines:
    """Without a terminal: one line for each thing begun, written by `write`."""

    def __init__(self, write: Callable[[str], None] = lambda what: note(f"{what} …")) -> None:
        self._write = write
        self._begun: set[str] = set()

    def show(self, what: str, share: float) -> None:
        if what not in self._begun:
            self._begun.add(what)
            self._write(what)

    def close(self) -> None:
        """Do nothing: there is nothing to take down."""


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
            TextColumn("{task.fields[bytes]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._tasks: dict[str, Any] = {}
        self._first: dict[str, tuple[float, float]] = {}  # when each was first seen, and its share

    def show(self, what: str, share: float) -> None:
        now = time.monotonic()
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=1.0, bytes="")
            self._first[what] = (now, share)
        size = getattr(what, "size", 0)
        then, before = self._first[what]
        told = sizes(size, share, (share - before) * size, now - then) if size else ""
        self._progress.update(self._tasks[what], completed=share, bytes=told)

    def close(self) -> None:
        self._progress.stop()


def sizes(size: int, share: float, fetched: float, seconds: float) -> str:
    """Return how much of `size` bytes is there, and how fast `fetched` of them came."""
    done = f"{size * share / 1e6:,.1f} of {size / 1e6:,.1f} MB"
    return f"{done}, {fetched / seconds / 1e6:,.1f} MB/s" if seconds > 0.5 else done


def ready_report(
    config: Reachable,
    specs: Sequence[ModelSpec],
    left_out: Sequence[LeftOut],
    notes: Sequence[str] = (),
    *,
    console: str | None = None,
) -> dict[str, Any]:
    """Return what `StartReporter.ready` reports of a platform; `notes` say what is amiss.
    `console` is an address that logs one browser in."""
    return {
        "url": config.url,
        "console": console,
        "account_id": config.account_id,
        "api_token": config.api_token,
        "models": [spec.id for spec in specs],
        "left_out": [f"{each.model}: {each.reason}" for each in left_out],
        "notes": list(notes),
        "example": next((spec.id for spec in specs if not spec.is_encoder), None),
    }


def ready_text(report: dict[str, Any], *, seconds: float, background: bool) -> str:
    """Return what a person needs to know next, with commands that work when pasted."""
    url, account, token = report["url"], report["account_id"], report["api_token"]
    left_out = "".join(f"  LEFT OUT {each}\n" for each in report.get("left_out", ()))
    if left_out:
        left_out += "           (`skerry status` says more)\n"
    notes = "".join(f"  NOTE     {each}\n" for each in report.get("notes", ()))
    address = report.get("console")
    console = f"  console  {address}\n" if address else ""
    how_to_stop = "skerry down" if background else "Ctrl-C, or skerry down"
    text = (
        f"Skerry is ready after {seconds:.1f} s.\n"
        f"\n"
        f"  URL      {url}\n"
        f"{console}"
        f"  account  {account}\n"
        f"  token    {token}\n"
        f"  models   {', '.join(report['models'])}\n"
        f"  stop     {how_to_stop}\n"
        f"{left_out}{notes}"
    )
    if (model := report["example"]) is None:
        return text
    run = f"{url}/client/v4/accounts/{account}/ai/run/{model}"
    body = orjson.dumps({"prompt": FIRST_PROMPT, "stream": True}).decode()
    return (
        f"{text}\n"
        f"Try it in another terminal:\n"
        f"\n"
        f"  skerry run {model} {shlex.quote(FIRST_PROMPT)}\n"
        f"\n"
        f"  curl -N {shlex.quote(run)} \\\n"
        f"    -H {shlex.quote(f'Authorization: Bearer {token}')} \\\n"
        f"    -d {shlex.quote(body)}\n"
    )
