"""System prompts that an operator has computed before anyone calls."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skerry_regions.models.catalog import ModelSpec, is_packaged
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.topology.spec import WarmUp

if TYPE_CHECKING:
    from skerry_edge.text.model import TextModel

MAX_FILE_BYTES = 32 << 20
FIRST_WORDS = ("a", "1")  # of users' turns, alike in no tokenizer


class PromptsError(Exception):
    """A file of prompts that cannot be used; the message names it."""


def read_prompts(path: Path) -> tuple[str, ...]:
    """Return the JSON list of system prompts in a file. Raises PromptsError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise PromptsError(f"{path}: more than {MAX_FILE_BYTES} bytes")
        data = path.read_bytes()
        prompts = msgspec.json.decode(data, type=list[str])
        return msgspec.convert({"model": "-", "system_prompts": prompts}, WarmUp).system_prompts
    except OSError as error:
        raise PromptsError(f"{path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PromptsError(f"{path}: {error}") from None


def tokenize(spec: ModelSpec, files: ModelFiles, prompts: Sequence[str]) -> list[list[int]]:
    """Return what every conversation with each of these system prompts begins with.

    Raises `InvalidInput` or `TaskNotSupported` when the chat template takes no system prompt.
    """
    from skerry_edge.text.model import (
        TextModel,  # heavy, and a node with no prompts has no use for it
    )

    text = TextModel(files, context_window=spec.context_window, is_foreign=not is_packaged(spec))
    try:
        return [_common_ids(text, prompt) for prompt in prompts]
    finally:
        text.close()


def _common_ids(text: TextModel, prompt: str) -> list[int]:
    system = {"role": "system", "content": prompt}
    one, two = (
        text.encode(text.render([system, {"role": "user", "content": word}]))
        for word in FIRST_WORDS
    )
    pairs = zip(one, two, strict=False)
    return [id_ for id_, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
