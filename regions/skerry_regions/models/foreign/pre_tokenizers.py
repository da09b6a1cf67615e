"""How a byte-level BPE cuts text into words before it merges, by the names that GGUF gives it.

GGUF names a pre-tokenizer instead of stating it. Here are the regular expressions of the original
tokenizers (tiktoken's cl100k and o200k, Qwen2's, Mistral's Tekken), as their `tokenizer.json` has
them. A name not listed is refused: a near miss would give wrong tokens without any sign.
"""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

BYTE_LEVEL: Final[Json] = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def _split(pattern: str) -> Json:
    """Split by a regular expression, then map bytes to GPT-2's alphabet without a second split."""
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return _sequence(split, {**BYTE_LEVEL, "use_regex": False})


def _sequence(*steps: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"  # contractions
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _cl100k(digits: str) -> Json:
    """Return words of letters, with so many digits at once."""
    return _split(
        rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _o200k(digits: str, contraction: str = "") -> Json:
    """Return words that also end where a capital follows a small letter."""
    return _split(
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{contraction}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{contraction}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_GPT2: Final = _sequence(BYTE_LEVEL)
_DIGITS: Final = _sequence({"type": "Digits", "individual_digits": True}, BYTE_LEVEL)
_LLAMA3: Final = _cl100k(r"\p{N}{1,3}")
_QWEN2: Final = _cl100k(r"\p{N}")
_GPT_4O: Final = _o200k(r"\p{N}{1,3}", f"{_SHORT}?")

PRE_TOKENIZERS: Final[dict[str, Json]] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "dbrx": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-4o": _GPT_4O,
    "tekken": _o200k(r"\p{N}"),
}
WHOLE_WORDS_FIRST: Final = {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"}
NORMALIZED_TO_NFC: Final = {"qwen2", "deepseek-r1-qwen"}
