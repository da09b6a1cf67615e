"""The fields of a request that say what its output may be, as they go to the child."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class OutputAsked(Struct):
    """Those of `TextFields`: a format, by OpenAI's name or by vLLM's, and tools."""

    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    tools: list[dict[str, Any]] | None = None
    functions: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    function_call: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
