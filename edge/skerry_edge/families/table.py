"""The families, each an entry with what a template of one of its models holds.

To add a family, add its entry here, its published template to `tests/data/templates`, and what that
template can lay out to `tests/edge/families/transcripts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from skerry_edge.families.family import CallStyle, Family, MessageStyle, Reasoning

THINK: Final = Reasoning(
    begin="<think>", end="</think>", closing="\n</think>\n\n", shown_by=("</think>",)
)
_THINK_TOKENS: Final = ("<think>", "</think>")
_TOOL_CALL_TOKENS: Final = ("<tool_call>", "</tool_call>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A family, and what a template of one of its models holds."""

    family: Family
    marks: tuple[str, ...]


HERMES_CALLS: Final = CallStyle(encoding="json", begin="<tool_call>\n", end="\n</tool_call>")

TAUGHT: Final = Family(name="taught", calls=HERMES_CALLS, reasoning=THINK, is_templated=False)
"""Of models that were trained to call no tools: they are shown an example."""

HERMES: Final = Family(
    name="hermes",
    calls=HERMES_CALLS,
    reasoning=THINK,
    tokens=(*_TOOL_CALL_TOKENS, *_THINK_TOKENS),
)
LLAMA: Final = Family(
    name="llama",
    calls=CallStyle(encoding="json", begin="", end="", arguments_key="parameters"),
)
HARMONY: Final = Family(
    name="harmony",
    calls=CallStyle(encoding="json", begin="", end=""),
    reasoning=Reasoning(
        begin="<|channel|>analysis<|message|>",
        end="<|end|>",
        closing="<|end|><|start|>assistant<|channel|>final<|message|>",
        shown_by=("analysis",),
        history="thinking",
    ),
    messages=MessageStyle(
        start="<|start|>",
        channel="<|channel|>",
        constrain="<|constrain|>",
        message="<|message|>",
        ends=("<|end|>", "<|call|>", "<|return|>"),
        thought="analysis",
        answer="final",
        call="commentary",
        recipient="functions.",
    ),
    tokens=(
        *("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
        *("<|end|>", "<|call|>", "<|return|>"),
    ),
)
_DEEPSEEK_TOKENS: Final = (
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", *_THINK_TOKENS),
)
_FENCED_TEACHING: Final = """You can call any of the following function tools to satisfy the \
user's requests:

{tools}

Example function tool call syntax:

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>example_function_name
```json
{{"arg1": "some_value"}}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"""  # as llama.cpp's template has it
DEEPSEEK_FENCED: Final = Family(  # V3, R1
    name="deepseek-r1",
    calls=CallStyle(
        encoding="head",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        separator="\n```json\n",
        end="\n```<｜tool▁call▁end｜>",
        lead="",
    ),
    reasoning=THINK,
    teaching=_FENCED_TEACHING,
    tokens=_DEEPSEEK_TOKENS,
)
_DEEPSEEK_TEACHING: Final = """## Tools
You have access to the following tools:

{tools}

IMPORTANT: ALWAYS adhere to this exact format for tool use:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments\
<｜tool▁call▁end｜>{{additional_tool_calls}}<｜tool▁calls▁end｜>

Where:
- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces"""  # its model card
DEEPSEEK: Final = Family(  # V3.1
    name="deepseek-v3.1",
    calls=CallStyle(
        encoding="head",
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        begin="<｜tool▁call▁begin｜>",
        separator="<｜tool▁sep｜>",
        end="<｜tool▁call▁end｜>",
        lead="",
        between="",
    ),
    reasoning=THINK,
    teaching=_DEEPSEEK_TEACHING,
    tokens=_DEEPSEEK_TOKENS,
)
_MISTRAL_THINK: Final = Reasoning(
    begin="[THINK]", end="[/THINK]", closing="[/THINK]", shown_by=("[/THINK]",), history="chunks"
)
_MISTRAL_TOKENS: Final = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]")
MISTRAL_LIST: Final = Family(  # of tokenizers up to v7
    name="mistral-v7",
    calls=CallStyle(encoding="list", begin="[TOOL_CALLS]", end="", lead="", between=", "),
    tokens=("[TOOL_CALLS]",),
    is_marked_by_tokens=True,
    ids="nine",  # its templates refuse others
)
MISTRAL_IDS: Final = Family(  # v11
    name="mistral-v11",
    calls=CallStyle(
        encoding="head",
        begin="[TOOL_CALLS]",
        call_id="[CALL_ID]",
        separator="[ARGS]",
        end="",
        lead="",
        between="",
    ),
    reasoning=_MISTRAL_THINK,
    tokens=_MISTRAL_TOKENS,
    is_marked_by_tokens=True,
    ids="nine",
)
MISTRAL: Final = replace(  # v13 and later
    MISTRAL_IDS, name="mistral", calls=replace(MISTRAL_IDS.calls, call_id=""), ids="any"
)
QWEN_CODER: Final = Family(  # Qwen3-Coder, Qwen3.5, Nemotron 3
    name="qwen-coder",
    calls=CallStyle(
        encoding="tags",
        begin="<tool_call>\n",
        name=("<function=", ">\n"),
        key=("<parameter=", ">\n"),
        value_end="\n</parameter>\n",
        end="</function>\n</tool_call>",
        lead="\n\n",
    ),
    reasoning=THINK,
    tokens=(*_TOOL_CALL_TOKENS, *_THINK_TOKENS),
)
GLM_LINES: Final = Family(  # GLM 4.5 and 4.6
    name="glm-4.5",
    calls=CallStyle(
        encoding="tags",
        begin="<tool_call>",
        name=("", "\n"),
        key=("<arg_key>", "</arg_key>\n<arg_value>"),
        value_end="</arg_value>\n",
        end="</tool_call>",
    ),
    reasoning=THINK,
    tokens=(
        *(*_TOOL_CALL_TOKENS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        *_THINK_TOKENS,
    ),
)
GLM: Final = replace(  # 4.7 and later
    GLM_LINES,
    name="glm",
    calls=replace(
        GLM_LINES.calls,
        name=("", ""),
        key=("<arg_key>", "</arg_key><arg_value>"),
        value_end="</arg_value>",
        lead="",
        between="",
    ),
)
KIMI: Final = Family(  # K2
    name="kimi",
    calls=CallStyle(
        encoding="head",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        begin="<|tool_call_begin|>",
        prefix="functions.",
        counts=":",
        separator="<|tool_call_argument_begin|>",
        end="<|tool_call_end|>",
        lead="",
        between="",
    ),
    reasoning=THINK,
    tokens=(
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_argument_begin|>", "<|tool_call_end|>", *_THINK_TOKENS),
    ),
    ids="counter",  # others in a conversation keep it from calling at all
)
GRANITE: Final = Family(  # 3; Granite 4 is Hermes
    name="granite",
    calls=CallStyle(encoding="list", begin="<|tool_call|>", end="", lead="", between=", "),
    reasoning=THINK,
    tokens=("<|tool_call|>",),
)
GEMMA: Final = Family(  # 4
    name="gemma",
    calls=CallStyle(
        encoding="quoted",
        begin="<|tool_call>call:",
        quote='<|"|>',
        end="<tool_call|>",
        lead="",
        between="",
    ),
    reasoning=Reasoning(
        begin="<|channel>thought\n",
        end="<channel|>",
        closing="\n<channel|>",
        shown_by=("<channel|>",),
    ),
    tokens=("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
)

ENTRIES: Final = (
    Entry(family=HARMONY, marks=("<|start|>", "<|channel|>", "<|message|>", "<|call|>")),
    Entry(family=DEEPSEEK_FENCED, marks=("<｜tool▁calls▁begin｜>", "```json")),
    Entry(family=DEEPSEEK, marks=("<｜tool▁calls▁begin｜>",)),
    Entry(family=MISTRAL_IDS, marks=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")),
    Entry(family=MISTRAL, marks=("[TOOL_CALLS]", "[ARGS]")),
    Entry(family=MISTRAL_LIST, marks=("[TOOL_CALLS]",)),
    Entry(family=KIMI, marks=("<|tool_calls_section_begin|>",)),
    Entry(family=GEMMA, marks=("<|tool_call>", '<|"|>')),
    Entry(family=QWEN_CODER, marks=("<tool_call>", "<function=")),
    Entry(family=GLM_LINES, marks=("<tool_call>", "</arg_key>\n<arg_value>")),
    Entry(family=GLM, marks=("<tool_call>", "<arg_key>")),
    Entry(family=GRANITE, marks=("<|tool_call|>", "<|start_of_role|>")),
    Entry(family=HERMES, marks=("<tool_call>", '"arguments"', "tools")),
    Entry(family=LLAMA, marks=('"parameters"', "ipython", "tools")),
)
