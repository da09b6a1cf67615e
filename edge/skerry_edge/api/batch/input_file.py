"""Input files of batches: lines of JSON, each a request; checked whole before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from skerry.errors import InvalidJSON, SkerryError
from skerry_edge.api.batch.rows import payload_of
from skerry_edge.api.batch.wire import InputLine, LineError
from skerry_edge.api.bodies import decode
from skerry_edge.ledger.batches import BatchLimits
from skerry_edge.text.prompts import OPENAI_TEMPERATURE
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.queue import NewItem

_decoder = msgspec.json.Decoder(InputLine)
_model_decoder = msgspec.json.Decoder(str)


class BadLine(Exception):
    """A line that is no request of this batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass(slots=True)
class InputFile:
    """Requests of one endpoint and one model, or what is wrong with them."""

    endpoint: str
    resolve: Callable[[str], ModelSpec]  # raises a SkerryError for what is not served
    limits: BatchLimits
    model: ModelSpec | None = None
    items: list[NewItem] = field(default_factory=list)
    errors: list[LineError] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)

    def read(self, chunks: Iterable[bytes]) -> None:
        """Read a file's content, which may take a second; stops when enough is wrong with it."""
        number = 0
        try:
            for number, line in enumerate(_lines(chunks, self.limits.line_bytes), start=1):
                if len(self.items) >= self.limits.file_lines:
                    message = f"At most {self.limits.file_lines} requests."
                    self.errors.append(LineError("too_many_tasks", message, number))
                    return
                if len(self.errors) >= self.limits.reported_errors:
                    return
                if line.strip():
                    self._add(number, line)
            if not self.items and not self.errors:
                self.errors.append(LineError("empty_file", "The file has no requests."))
        except BadLine as bad:  # of the line that follows
            self.errors.append(LineError(bad.code, bad.message, number + 1, bad.param))

    def _add(self, number: int, line: bytes) -> None:
        try:
            self.items.append(self._item(line))
        except BadLine as bad:
            self.errors.append(LineError(bad.code, bad.message, number, bad.param))

    def _item(self, line: bytes) -> NewItem:
        try:
            asked = decode(_decoder, line)
        except InvalidJSON as error:
            raise BadLine("invalid_json_line", error.message) from None
        except SkerryError as error:
            raise BadLine(error.code, error.message, error.param) from None
        if asked.method != "POST":
            raise BadLine("invalid_method", "The method must be POST.", "method")
        if asked.url != self.endpoint:
            raise BadLine("mismatched_url", f"The url must be {self.endpoint}.", "url")
        if asked.custom_id in self._ids:
            raise BadLine("duplicate_custom_id", "Another line has this custom_id.", "custom_id")
        try:
            spec = self._model(asked)
            payload = payload_of(asked.body, spec, OPENAI_TEMPERATURE)
        except SkerryError as error:
            param = error.param and f"body.{error.param}"
            raise BadLine(error.code, error.message, param) from None
        self._ids.add(asked.custom_id)
        return NewItem(payload, asked.custom_id)

    def _model(self, asked: InputLine) -> ModelSpec:
        if "model" not in asked.body:
            raise BadLine("missing_required_parameter", "The body names no model.", "body.model")
        try:
            name = _model_decoder.decode(asked.body["model"])
        except msgspec.ValidationError:
            raise BadLine("invalid_input", "The model must be named.", "body.model") from None
        spec = self.resolve(name)
        if self.model is None:
            self.model = spec
        if spec.id != self.model.id:
            raise BadLine(
                "mismatched_model", f"All requests must be for {self.model.id}.", "body.model"
            )
        return spec


def _lines(chunks: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Yield lines without their ends. Raises BadLine for one that is too long."""
    held = b""
    for chunk in chunks:
        *whole, held = (held + chunk).split(b"\n")
        for line in whole:
            yield _bounded(line, limit)
        _bounded(held, limit)
    if held:
        yield held


def _bounded(line: bytes, limit: int) -> bytes:
    if len(line) > limit:
        raise BadLine("line_too_long", f"A line has at most {limit} bytes.")
    return line
