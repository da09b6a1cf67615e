"""The fields of Workers AI, OpenAI and Anthropic that do not work here, by kind of request.

`docs/api.md` has them in a table, which a test makes of these, of our structs and of the types of
upstream's own clients.
"""

from __future__ import annotations

from typing import Final

from skerry_edge.api.fields import ENVELOPE, NESTED, Upstream

Neutral = dict[str, tuple[object, ...]]

# Hints to models that think; to others upstream ignores them.
EFFORT: Final[Neutral] = {
    "reasoning": ({},),
    "verbosity": (),
}
# What it is for: who calls, what it costs upstream, how it is cached there.
BOOKKEEPING: Final[Neutral] = {
    "metadata": ({},),
    "safety_identifier": (),
    "service_tier": (),
    "user": (),
}
CACHING: Final[Neutral] = {
    "prompt_cache_key": (),
    "prompt_cache_options": ({},),
    "prompt_cache_retention": (),
}
_FUNCTION: Final = frozenset(("name", "description", "parameters", "input_schema", "strict"))
_CHOICE: Final = frozenset(("type", "function", "name", "allowed_tools", "mode", "tools"))
_CALL: Final = frozenset(("name", "arguments"))
OBJECTS: Final = {
    "messages[].function_call": _CALL,
    "messages[].tool_calls[]": _CALL | {"id", "index", "type", "function"},
    "messages[].tool_calls[].function": _CALL,
    "tools[]": _FUNCTION | NESTED,
    "tools[].function": _FUNCTION,
    "functions[]": _FUNCTION,
    "tool_choice": _CHOICE,
    "function_call": _CHOICE,
    "response_format": frozenset(("type", "schema", "json_schema")),
    ENVELOPE: frozenset(("name", "description", "schema", "strict")),
}
# Of `context_management`: nothing is taken out of the conversation, as Claude Code has it.
KEEP_THINKING: Final = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}

NATIVE_TEXT: Final = Upstream(
    refused={"audio": (), "image": (), "image_b64": ()},
    ignored=EFFORT,
    ignored_inside=("prompt_cache_breakpoint",),
    objects=OBJECTS,
)
NATIVE_TEXTS: Final = Upstream(refused={"image": ()})
CHAT: Final = Upstream(
    refused={
        "audio": (),
        "image": (),
        "modalities": (["text"],),
        "moderation": (),
        "prompt_cache_options.prewarm": (),
        "web_search_options": (),
    },
    ignored=EFFORT
    | BOOKKEEPING
    | {
        "prediction": (),
        "prompt_cache_options.comparison_response_id": (),
        "store": (),
        "stream_options.include_obfuscation": (),
    },
    ignored_inside=("cache_control",),
    echoed=frozenset(("annotations",)),
    objects=OBJECTS,
)
COMPLETIONS: Final = Upstream(
    refused={"suffix": ()},
    ignored=BOOKKEEPING | CACHING | {"stream_options.include_obfuscation": ()},
)
EMBEDDINGS: Final = Upstream(ignored={"user": ()})
RESPONSES: Final = Upstream(
    refused={
        "background": (),
        "context_management": (),
        "conversation": (),
        "image": ({},),
        "moderation": (),
        "prompt": (),
        "prompt_cache_options.prewarm": (),
        "truncation": ("disabled",),
    },
    ignored=EFFORT
    | {name: neutral for name, neutral in BOOKKEEPING.items() if name != "metadata"}
    | {
        "access_programs": ({},),
        "background_options": ({},),
        "max_tool_calls": (),  # of tools that upstream runs itself
        "personality": (),
        "prompt_cache_options.comparison_response_id": (),
        "stream_options": ({}, {"include_obfuscation": False}),
        "text.verbosity": (),
    },
    echoed=frozenset(
        ("annotations", "encrypted_content", "logprobs", "phase", "status", "summary")
    ),
    objects={
        "tools[]": frozenset(("type", "name", "description", "parameters", "strict")),
        "tool_choice": _CHOICE,
    },
)
MESSAGES: Final = Upstream(
    refused={
        "compaction": (),
        "container": (),
        "context_management": ({}, KEEP_THINKING),
        "fallbacks": (),
        "mcp_servers": (),
        "thread": (),
    },
    ignored={
        "betas": (),
        "billing_policy": (),
        "diagnostics": ({},),
        "fallback_credit_token": (),
        "service_tier": (),
        "speed": ("standard",),
        "user_profile_id": (),
        "workspace_id": (),
    },
    ignored_inside=(
        "allowed_callers",
        "defer_loading",
        "eager_input_streaming",
        "input_examples",
    ),
    echoed=frozenset(("citations", "signature")),
    objects={
        "tools[]": frozenset(
            ("type", "name", "description", "input_schema", "strict", "cache_control")
        ),
        "tool_choice": frozenset(("type", "name", "disable_parallel_tool_use")),
    },
)
