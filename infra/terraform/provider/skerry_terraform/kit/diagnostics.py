"""What a provider reports to people: errors and warnings, with the path of the value they are
about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from skerry_terraform.kit.messages import Message, message


class Key(str):
    """A step into a map; a plain `str` is an attribute's name, an `int` a list's index."""


Path = tuple[str | int, ...]

_SEVERITIES = {"error": 1, "warning": 2}


class ProviderError(Exception):
    """Something that the person who runs Terraform can mend. `path` is of the value at fault."""

    def __init__(self, summary: str, detail: str = "", path: Path = ()) -> None:
        super().__init__(f"{summary}: {detail}" if detail else summary)
        self.summary = summary
        self.detail = detail
        self.path = path


@dataclass(frozen=True, slots=True)
class Diagnostic:
    severity: Literal["error", "warning"]
    summary: str
    detail: str = ""
    path: Path = ()

    def message(self) -> Message:
        return message(
            "Diagnostic",
            severity=_SEVERITIES[self.severity],
            summary=self.summary,
            detail=self.detail,
            attribute=path_message(self.path) if self.path else None,
        )


@dataclass(slots=True)
class Diagnostics:
    """Collects them during one call."""

    all: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def error(self, summary: str, detail: str = "", path: Path = ()) -> None:
        self.all.append(Diagnostic("error", summary, detail, path))

    def warning(self, summary: str, detail: str = "", path: Path = ()) -> None:
        self.all.append(Diagnostic("warning", summary, detail, path))

    def add(self, error: ProviderError) -> None:
        self.error(error.summary, error.detail, error.path)

    def messages(self) -> list[Message]:
        return [each.message() for each in self.all]


def path_message(path: Path) -> Message:
    return message("AttributePath", steps=[_step(step) for step in path])


def _step(step: str | int) -> Message:
    match step:
        case Key():
            return message("Step", element_key_string=step)
        case str():
            return message("Step", attribute_name=step)
        case _:
            return message("Step", element_key_int=step)
