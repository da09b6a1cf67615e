"""Outputs that are hard to read, written out: marks where they mark nothing, or are missing."""

from __future__ import annotations

import json

import pytest
from tests.edge.families.transcripts import FIRST_ID, TOOLS, ReadTurn, model, read

from skerry_edge.families.deltas import CallDelta, ReasoningDelta, TextDelta, merged
from skerry_edge.families.family import Family, ReaderSpec
from skerry_edge.families.reader import Reader
from skerry_edge.families.table import GLM, HARMONY, HERMES, KIMI, LLAMA, MISTRAL, QWEN_CODER

CALL = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
STOP = ("stop", "{}")


def both_ways(
    family: Family, output: str, *, is_open: bool = False, calls: bool = True
) -> ReadTurn:
    spec = ReaderSpec(family=family, is_open=is_open, tools=TOOLS if calls else None)
    whole = read(spec, [output])
    assert read(spec, list(output)) == whole
    return whole


@pytest.mark.parametrize(
    ("output", "is_open", "thought", "text", "calls"),
    [
        ("<think>\nHm.\n</think>\n\nSo.", False, "Hm.", "So.", []),
        ("Hm.\n</think>\n\nSo.", True, "Hm.", "So.", []),
        ("</think>So.", False, "", "So.", []),  # a thought that nobody began
        ("</think>So.", True, "", "So.", []),
        ("<think></think></think>\nSo.", False, "", "So.", []),
        ("<think>Is <think> a mark?</think>Yes.", False, "Is <think> a mark?", "Yes.", []),
        ("Write <think> and </think>.", False, "", "Write <think> and </think>.", []),
        ("Hm." + CALL, True, "Hm.", "", [STOP]),  # a call ends a thought
        ("<think>\nHm.\n</think>\n\n" + CALL, False, "Hm.", "", [STOP]),
        ("Let me.\n" + CALL + "\n" + CALL + "\nDone.", False, "", "Let me.\nDone.", [STOP, STOP]),
        ("<think>Only a thought", False, "Only a thought", "", []),
        ("  So.\n", False, "", "  So.\n", []),
        ("<think>a</think>", False, "a", "", []),
    ],
)
def test_thoughts(
    output: str, is_open: bool, thought: str, text: str, calls: list[tuple[str, str]]
) -> None:
    found = both_ways(HERMES, output, is_open=is_open)
    assert (found.thought, found.text, found.calls) == (thought, text, calls)
    assert found.num_whole == len(calls)


def test_without_tools_a_calls_mark_is_text() -> None:
    found = both_ways(HERMES, "<think>a " + CALL + "</think>" + CALL, calls=False)
    assert (found.thought, found.text, found.calls) == ("a " + CALL, CALL, [])


def test_an_answer_that_is_half_a_mark() -> None:
    """Which the model ended there, or `max_tokens` cut."""
    spec = ReaderSpec(family=HERMES)
    assert read(spec, ["<"]).text == "<"
    assert read(spec, ["<"], is_ended=False).text == ""


@pytest.mark.parametrize(
    ("name", "value", "argument"),
    [
        ("path", "a\n</parameter", "a\n</parameter"),
        ("path", "", ""),
        ("path", "\n\n", "\n\n"),
        ("path", "5", "5"),
        ("path", "null", "null"),
        ("count", "5", 5),
        ("deep", "True", True),
        ("maybe", "None", None),
        ("names", '[\n  "a"\n]', ["a"]),
        ("other", "5", 5),
        ("other", "five", "five"),
    ],
)
def test_values_between_tags(name: str, value: str, argument: object) -> None:
    output = (
        f"<tool_call>\n<function=get>\n<parameter={name}>\n{value}\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    found = both_ways(QWEN_CODER, output)
    [(_, arguments)] = found.calls
    assert json.loads(arguments) == {name: argument}
    shorter = output.replace("get>", "get><parameter=deep>\nfalse\n</parameter>")
    [(_, arguments)] = both_ways(QWEN_CODER, shorter.replace("</function>\n", "</function>")).calls
    assert json.loads(arguments) == {"deep": False, name: argument}


def test_a_call_without_arguments_between_tags() -> None:
    assert both_ways(GLM, "<tool_call>stop</tool_call>").calls == [STOP]
    assert both_ways(
        QWEN_CODER, "<tool_call>\n<function=stop>\n</function>\n</tool_call>"
    ).calls == [STOP]


@pytest.mark.parametrize(
    ("output", "is_call"),
    [
        ('{"name": "stop", "parameters": {}}', True),
        ('{"name": "stop"} is JSON.', False),
        ('{"name": "other", "parameters": {}}', False),
        (' {"name": "stop", "parameters": {}}', False),
        ('So: {"name": "stop", "parameters": {}}', False),
    ],
)
def test_json_is_a_llamas_call_where_it_is_one_by_its_first_words(
    output: str, is_call: bool
) -> None:
    found = both_ways(LLAMA, output)
    assert (found.calls, found.text) == (([STOP], "") if is_call else ([], output))


def test_a_tool_whose_name_another_begins_with() -> None:
    output = '[TOOL_CALLS]get_all[ARGS]{"code": "[TOOL_CALLS]"}[TOOL_CALLS]get[ARGS]{}'
    found = both_ways(MISTRAL, output)
    assert found.calls == [("get_all", '{"code": "[TOOL_CALLS]"}'), ("get", "{}")]


def test_a_name_with_dots_and_colons() -> None:
    output = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b:c:12"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>Then."
    )
    found = both_ways(KIMI, output)
    assert (found.calls, found.text) == ([("a.b:c", "{}")], "Then.")


ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.stop <|constrain|>json<|message|>",
        " to=functions.stop<|channel|>commentary json<|message|>",
        "<|channel|>analysis to=functions.stop code<|message|>",  # as it often does
    ],
)
@pytest.mark.parametrize("end", ["", "<|call|>", "<|end|>"])
def test_the_recipient_makes_a_message_a_call(header: str, end: str) -> None:
    found = both_ways(HARMONY, ANALYSIS + header + "{}" + end)
    assert (found.thought, found.text, found.calls) == ("Hm.", "", [STOP])
    assert both_ways(HARMONY, ANALYSIS + header + "{}" + end, calls=False).text == ""


def test_messages_to_the_user() -> None:
    output = (
        ANALYSIS
        + "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
        + "<|channel|>analysis<|message|>Again.<|end|><|start|>assistant"
        + "<|channel|>final <|constrain|>json<|message|>{}<|return|>"
    )
    found = both_ways(HARMONY, output)
    assert (found.thought, found.text, found.calls) == ("Hm.\nAgain.", "I look.\n{}", [])
    assert both_ways(HARMONY, ANALYSIS + "<|channel|>fin").text == ""


def test_a_call_that_is_led_to_its_end_is_cut() -> None:
    for end in (5, 12, 40):
        reader = Reader(ReaderSpec(family=HERMES, tools=TOOLS))
        reader.push(CALL[:end])
        reader.lead()
        assert reader.push(CALL[end:]) == []
        assert reader.is_cut
    reader = Reader(ReaderSpec(family=HERMES, tools=TOOLS))
    reader.lead()
    assert reader.push("So.") == [TextDelta("So.")]
    assert not reader.is_cut
    assert reader.push(CALL) == []
    assert reader.is_cut


def test_what_is_no_call_behind_its_mark_is_cut() -> None:
    for wrong in ("<tool_call>oops", "<tool_call>{}", '<tool_call>{"name": 3}'):
        found = both_ways(HERMES, "So. " + wrong)
        assert (found.text, found.calls, found.is_cut) == ("So.", [], True)


def test_control_tokens_that_mark_nothing_are_no_text() -> None:
    family = model("glm-4.6", has_tokens=True).family
    arg_key = family.marks[FIRST_ID + family.tokens.index("<arg_key>")]
    assert both_ways(family, f"a{arg_key}b").text == "ab"


def test_neighbours_are_one() -> None:
    deltas = [
        *(ReasoningDelta("a"), ReasoningDelta("b"), TextDelta("c")),
        *(CallDelta(0, id="1", name="f"), CallDelta(0, "{"), CallDelta(0, "}")),
        *(CallDelta(0, ends=True), CallDelta(1, id="2", name="g")),
    ]
    assert merged(deltas) == [
        *(ReasoningDelta("ab"), TextDelta("c"), CallDelta(0, id="1", name="f")),
        *(CallDelta(0, "{}", ends=True), CallDelta(1, id="2", name="g")),
    ]
