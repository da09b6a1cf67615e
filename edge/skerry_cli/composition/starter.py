"""Whoever has started a process, what it reports to them, and with which words it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from skerry_cli.home.errors import CannotStart
from skerry_cli.output import complain, note
from skerry_cli.report import Lines
from skerry_regions.models.sources import Progress
from skerry_regions.process.lifeline import Lifeline
from skerry_regions.process.startup import Interrupted


def run_to_the_end(run: Callable[[], None], *failures: type[Exception]) -> int:
    """Run a process's part until it ends; return its exit status.

    `CannotStart` and `failures` are reported in a sentence.
    """
    expected: tuple[type[Exception], ...] = (CannotStart, *failures)
    try:
        run()
    except expected as error:
        return complain(str(error))
    except Interrupted:
        note("Stopped before it was ready.")
        return 130
    note("Stopped.")
    return 0


class Starter:
    """Whoever has started this process: a supervisor at the other end of a lifeline, or a person.

    A process outlives its supervisor, whose successor finds it, unless it is to end with it.
    """

    def __init__(self, lifeline: int | None) -> None:
        """`lifeline` is a descriptor; None where a person has started us."""
        self._lifeline = None if lifeline is None else Lifeline(lifeline)
        self.is_abandoned = False  # the supervisor died
        self.progress: Progress = (
            Lines().show if self._lifeline is None else self._lifeline.progress
        )

    def end_with_supervisor(self, stop: asyncio.Event) -> None:
        """Set `stop` when the supervisor is no more, on the running loop."""

        def gone() -> None:
            self.is_abandoned = True
            stop.set()

        if self._lifeline is not None:
            self._lifeline.watch(gone)

    @property
    def is_supervisor(self) -> bool:
        return self._lifeline is not None

    def ready(self, sentence: str, **report: Any) -> None:
        """Report that we are ready: with a report to a supervisor, in a sentence to a person."""
        if self._lifeline is None:
            note(sentence)
        else:
            self._lifeline.ready(report)
