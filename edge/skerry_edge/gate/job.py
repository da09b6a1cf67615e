"""What every dialect makes of a prompt: a message to the region, and how its output is read."""

from __future__ import annotations

from dataclasses import dataclass

from skerry_edge.families.family import ReaderSpec
from skerry_edge.gate.caller import Caller
from skerry_edge.text.model import TextModel
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.wire.protocol import Submit


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One prompt of a request, and for whom it is continued."""

    submit: Submit  # of the first choice, without the time that is left
    caller: Caller
    model: ModelSpec
    text: TextModel
    stops: tuple[str, ...] = ()
    num_choices: int = 1
    reader: ReaderSpec | None = None  # of its output, where that may be more than text
    tells_stop_token: bool = False  # in the logprobs
    is_seeded: bool = False  # by the caller
    unenforced: tuple[str, ...] = ()  # paths of what its schemas say and its grammar does not
    ignored: tuple[str, ...] = ()  # fields that change nothing of what this model makes
