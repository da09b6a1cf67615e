"""All ranks of a model but the first, as that one reaches them: how they start, meet and are lost,
whichever library they run on."""

from __future__ import annotations

import contextlib
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from skerry_core.batch import StepResult
from skerry_core.config import ConfigError
from skerry_core.ranks import Part, RankChannel, RankLost, Ranks
from skerry_core.runner import RunnerSetup
from skerry_core.runners.rank_messages import MessageKind, RankMessage, encode, expect, result_of


class RankAnswers:
    """What ranks answer, among results of steps: those that come before they are wanted wait."""

    def __init__(self) -> None:
        self._results = deque[StepResult]()

    def result(self, channel: RankChannel) -> StepResult:
        """Return the next step's result. Raises RankLost."""
        if self._results:
            return self._results.popleft()
        return result_of(self.of(channel, MessageKind.RESULT))

    def of(self, channel: RankChannel, kind: MessageKind) -> RankMessage:
        """Return the next answer of a kind. Raises RankLost."""
        while True:
            message = RankMessage(channel.receive())
            if message.kind is kind:
                return message
            self._results.append(result_of(expect(message, MessageKind.RESULT)))


class OtherRanks:
    """The other ranks, each at the end of a channel. Not for two threads at once."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.channels: list[RankChannel] = []  # in the order of ranks
        self._store = tempfile.TemporaryDirectory(prefix="skerry-ranks-")
        self.place = Path(self._store.name) / "ranks"  # where all meet
        self._lost: RankLost | None = None

    @classmethod
    @contextlib.contextmanager
    def started(cls, setup: RunnerSetup) -> Generator[OtherRanks]:
        """Start them, for a block that opens a model over them; they end where it fails. Raises
        ConfigError, and RankLost."""
        if setup.ranks is None:
            raise ConfigError("there is nothing that starts other ranks")
        others = cls(setup.ranks)
        try:
            for rank in range(1, setup.parallel.num_ranks):
                others.channels.append(setup.ranks.start(replace(setup, rank=rank)))
            yield others
        except BaseException:
            others.close()
            raise

    def meet(self) -> None:
        """Say where all meet, and return once each is to come: none waits for one that cannot.
        Raises RankLost."""
        place = np.frombuffer(str(self.place).encode(), np.uint8)
        for channel in self.channels:
            channel.send(*encode(MessageKind.MEET, [place]))
        for channel in self.channels:
            expect(RankMessage(channel.receive()), MessageKind.MEET)

    def wait_ready(self, build: str, lost: Callable[[], None] = lambda: None) -> None:
        """Wait until each has opened its part; from then on call `lost` back, once, when one is
        gone. Raises RankLost, and ConfigError where one has not this numeric build."""
        for channel in self.channels:
            ready = expect(RankMessage(channel.receive()), MessageKind.READY)
            theirs = ready.array(0, np.uint8).tobytes().decode()
            if theirs != build:
                raise ConfigError(f"a rank computes as {theirs}, the first as {build}")

        def lose(error: RankLost) -> None:
            self._lost = error
            lost()

        self.ranks.when_lost(lose)

    def send(self, parts: Sequence[Part]) -> None:
        """Send a message to each. Raises RankLost."""
        self.check()
        for channel in self.channels:
            channel.send(*parts)

    def check(self) -> None:
        """Raise RankLost once one is gone."""
        if self._lost is not None:
            raise self._lost

    def close(self) -> None:
        """End them. Idempotent."""
        for channel in self.channels:
            channel.close()
        self._store.cleanup()
