"""What a `tokenizer.json` of HF `tokenizers`, and what lies beside it, says of itself."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def decoder_steps(tokenizer: Json) -> list[Json]:
    decoder = tokenizer.get("decoder") or {}
    return [decoder, *decoder.get("decoders", [])]


def strips_space_of(tokenizer: Json) -> bool:
    return any(
        (step.get("type") == "Strip" and step.get("start", 0) > 0)
        or (step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in decoder_steps(tokenizer)
    )


def prepends(tokenizer: Json, bos: str | None) -> bool:
    """Return whether the post-processor puts BOS in front of plain text."""
    processor = tokenizer.get("post_processor") or {}
    for step in (processor, *processor.get("processors", [])):
        single = step.get("single") or []
        if single and single[0].get("SpecialToken", {}).get("id") == bos:
            return True
    return False


def token_text(token: object) -> str | None:
    """Return a token of tokenizer_config.json: a string, or an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
