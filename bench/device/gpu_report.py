"""What the programs for a GPU say of each part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

GIGA, TERA = 1e9, 1e12


class Row(Protocol):
    """A dataclass that says itself in a line."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def line(self) -> str: ...


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    of: str = ""  # what bounds it
    share: float | None = None  # of that bound
    wanted: float | None = None  # share, or value where there is no bound

    def line(self) -> str:
        told = f"{self.name}: {self.value:.4g} {self.unit}"
        if self.share is not None:
            told += f", {self.share:.0%} of {self.of}"
        return told if self.wanted is None else f"{told} (wanted {self.wanted:g})"
