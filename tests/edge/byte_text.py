"""A vocabulary small enough to say by hand what must come out: a token is a byte."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, models

from skerry.wire import Message
from skerry_edge.families.recognition import family_of
from skerry_edge.text.model import thought_of
from skerry_edge.text.prompts import content_text
from skerry_edge.text.token_cache import Borders

CONTEXT = 512
BOS, EOS = 256, 257


class ByteText:
    """The text side of a model whose tokens are bytes, with a BOS and an end-of-turn token."""

    stop_token_ids = (EOS,)
    vocab_size = 258
    build = "bytes"
    is_foreign = False
    borders = Borders(Tokenizer(models.BPE()))  # there are no control tokens to cut at

    # That of a model trained for tools.
    family = family_of(
        '{% if tools %}<tool_call>{"name": "f", "arguments": {}}{{ m.tool_calls }}{% endif %}'
    )

    flags: frozenset[str] = frozenset()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> str:
        named = ",".join(tool["function"]["name"] for tool in tools or ())
        turns = "".join(f"<{m.role}>{content_text(m)}\n" for m in messages) + "<assistant>"
        return f"<tools>{named}\n{turns}" if named else turns

    def render_prompt(self, prompt: str, *, raw: bool) -> str:
        return prompt if raw else self.render([Message("user", prompt)])

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        return [*([BOS] if add_special else []), *text.encode("utf-8", "surrogateescape")]

    def encode_part(self, part: str) -> list[int]:
        return self.encode(part)

    def close(self) -> None:
        """Nothing runs."""

    def check_length(self, num_tokens: int) -> None:
        """Nothing is too long to be looked at."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def ending(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids[-64:])).decode("utf-8", "replace")

    def detokenizer(self) -> ByteDetokenizer:
        return ByteDetokenizer()


class ThinkingText(ByteText):
    """Of a model that thinks before it answers, unless its template is told otherwise."""

    family = family_of(
        '{% if tools %}<tool_call>{"name": "f", "arguments": {}}{% endif %}'
        "{% if enable_thinking %}<think>{% endif %}{{ messages[0].content.split('</think>') }}"
    )
    flags = frozenset(("enable_thinking", "style"))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> str:
        given = flags or {}
        turns = super().render(messages, tools=tools)
        thoughts = [thought for m in messages if (thought := thought_of(m))]
        thinks = "<think>\n" if given.get("enable_thinking", True) else "<think>\n\n</think>\n\n"
        return f"{given.get('style', '')}{'|'.join(thoughts)}{turns}{thinks}"


class ByteDetokenizer:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        return self._decoder.decode(bytes(each for each in token_ids if each < 256))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
