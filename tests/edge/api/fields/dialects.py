"""Every dialect, what of its fields works, is ignored or refused, and examples of them."""

from __future__ import annotations

import functools
import typing
from dataclasses import dataclass
from typing import Any, Literal

from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params
from cloudflare.types.ai import ai_run_params
from msgspec.structs import fields as struct_fields
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import input_token_count_params, response_create_params
from tests.edge.scripted_region import MODEL

from skerry_edge.api.anthropic import messages
from skerry_edge.api.bodies import Body
from skerry_edge.api.openai import chat, completions, embeddings
from skerry_edge.api.responses import responses
from skerry_edge.api.workers_ai import classification, native

Verdict = Literal["works", "refused", "named"]

TURNS = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
FORMAT = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}
SAMPLING: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "seed": 1,
    "temperature": 0.5,
    "max_tokens": 4,
    "top_p": 0.5,
    "stream": False,
}
CACHING: dict[str, Any] = {
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
}
OPENAI: dict[str, Any] = {
    **SAMPLING,
    "logit_bias": {"65": 1},
    "n": 2,
    "stop": "x",
    "stream_options": {"include_usage": True},
}


@dataclass(frozen=True)
class Dialect:
    """A kind of request: what decodes it, upstream's types of it, and what it takes to work."""

    name: str
    body: Body[Any]
    upstream: tuple[Any, ...]
    least: dict[str, Any]  # a whole request
    works: dict[str, Any]  # a value of each field that works
    path: str = ""  # below …/ai

    @property
    def fields(self) -> list[str]:
        """Return upstream's names, but for what is in the URL."""
        return sorted({name for each in self.upstream for name in hints(each)} - {"account_id"})

    def neutral(self, name: str) -> tuple[Any, ...]:
        """Return the values of a field that ask for nothing."""
        upstream = self.body.upstream
        return {**upstream.refused, **upstream.ignored}.get(name, ())

    def verdict(self, name: str) -> Verdict | None:
        """Return how a field is handled; None where that is not decided."""
        if name == "lora":  # known, to be refused with an error of its own
            return "refused"
        if name in {each.encode_name for each in struct_fields(self.body.kind)}:
            return "works"
        if name in self.body.upstream.refused:
            return "refused"
        listed = name in self.body.upstream.ignored or name in self.body.upstream.ignored_inside
        return "named" if listed else None


@functools.cache
def hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


DIALECTS = [
    Dialect(
        "Workers AI, text generation",
        native._input_body,
        (
            ai_run_params.Prompt,
            ai_run_params.Messages,
            ai_run_params.ImageToText,
            ai_run_params.Variant12,
            ai_run_params.Variant13,
        ),
        {"prompt": "x"},
        SAMPLING
        | {"top_k": 2, "repetition_penalty": 1.5, "raw": True, "ignore_eos": True}
        | {"response_format": {"type": "json_object"}, "tools": [TOOL], "functions": [FUNCTION]},
        f"/run/{MODEL}",
    ),
    Dialect(
        "Workers AI, text embeddings",
        embeddings._input_body,
        (ai_run_params.TextEmbeddings, ai_run_params.MultimodalEmbeddings),
        {"text": "x"},
        {},
    ),
    Dialect(
        "Workers AI, text classification",
        classification._text_body,
        (ai_run_params.TextClassification,),
        {"text": "x"},
        {},
    ),
    Dialect(
        "`/ai/v1/chat/completions`",
        chat._body,
        (chat_create_params.CompletionCreateParamsStreaming,),
        {"model": MODEL, "messages": TURNS},
        OPENAI
        | {"function_call": "none", "functions": [FUNCTION], "logprobs": True, "top_logprobs": 0}
        | {"max_completion_tokens": 4, "parallel_tool_calls": True, "tool_choice": "auto"}
        | CACHING
        | {"response_format": {"type": "json_object"}, "tools": [TOOL]},
        "/v1/chat/completions",
    ),
    Dialect(
        "`/ai/v1/completions`",
        completions._body,
        (completion_create_params.CompletionCreateParamsStreaming,),
        {"model": MODEL, "prompt": "x"},
        OPENAI | {"best_of": 1, "echo": True, "logprobs": 1},
        "/v1/completions",
    ),
    Dialect(
        "`/ai/v1/embeddings`",
        embeddings._request_body,
        (embedding_create_params.EmbeddingCreateParams,),
        {"model": MODEL, "input": "x"},
        {},
    ),
    Dialect(
        "`/ai/v1/responses`",
        responses._body,
        (response_create_params.ResponseCreateParamsStreaming,),
        {"model": MODEL, "input": "x"},
        {"include": ["message.output_text.logprobs"], "instructions": "x", "temperature": 0.5}
        | {"max_output_tokens": 4, "metadata": {"a": "b"}, "parallel_tool_calls": True}
        | {"store": False, "stream": False, "text": {"format": {"type": "text"}}}
        | {"tool_choice": "auto", "tools": [{"type": "function"} | FUNCTION], "top_logprobs": 0}
        | {"top_p": 0.5}
        | CACHING,
        "/v1/responses",
    ),
    Dialect(
        "`/ai/v1/responses/input_tokens`",
        responses._count_body,
        (input_token_count_params.InputTokenCountParams,),
        {"model": MODEL, "input": "x"},
        {"instructions": "x", "parallel_tool_calls": True, "text": {"format": {"type": "text"}}}
        | {"tool_choice": "auto", "tools": [{"type": "function"} | FUNCTION]},
        "/v1/responses/input_tokens",
    ),
    Dialect(
        "`/ai/v1/messages`",
        messages._body,
        (
            message_create_params.MessageCreateParamsStreaming,
            beta_create_params.MessageCreateParamsStreaming,
        ),
        {"model": MODEL, "messages": TURNS, "max_tokens": 8},
        {"output_config": {"format": FORMAT}, "stop_sequences": ["x"], "stream": False}
        | {"cache_control": {"type": "ephemeral"}, "metadata": {"user_id": "u"}}
        | {"system": "x", "tool_choice": {"type": "auto"}, "inference_geo": "global"}
        | {"tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}]},
        "/v1/messages",
    ),
    Dialect(
        "`/ai/v1/messages/count_tokens`",
        messages._count_body,
        (
            message_count_tokens_params.MessageCountTokensParams,
            beta_count_tokens_params.MessageCountTokensParams,
        ),
        {"model": MODEL, "messages": TURNS},
        {"output_config": {"format": FORMAT}, "system": "x", "tool_choice": {"type": "auto"}}
        | {"cache_control": {"type": "ephemeral"}}
        | {"tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}]},
        "/v1/messages/count_tokens",
    ),
]
