"""The tokenizer inside a GGUF file, as a `tokenizer.json` of HF `tokenizers`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from skerry_regions.models.foreign.gguf_header import GGUFError, Value
from skerry_regions.models.foreign.pre_tokenizers import (
    BYTE_LEVEL,
    NORMALIZED_TO_NFC,
    PRE_TOKENIZERS,
    WHOLE_WORDS_FIRST,
)
from skerry_regions.models.foreign.sentencepiece_model import SentencePieceModel
from skerry_regions.models.foreign.tokenizer_json import token_text
from skerry_regions.models.model_files import TokenForm
from skerry_regions.models.sentencepiece_tokenizer import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Pieces,
)

Json = dict[str, Any]

MAX_TOKEN_LENGTH: Final = 1024  # characters; runs of spaces are the longest seen, below 300

# Ends of a turn or of text, by the names that published tokenizers use. A model trained to end its
# turn with one of them often states another as its EOS, or types one as user-defined text.
STOP_TEXTS: Final = frozenset(
    (
        *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"),
        *("<end_of_turn>", "<|end_of_turn|>", "</s>", "<\uff5cend▁of▁sentence\uff5c>"),
    )
)
# OpenAI's Harmony (https://cookbook.openai.com/articles/openai-harmony) ends each message with
# <|end|>, the thoughts before an answer too, and a turn with one of these.
_HARMONY_STOPS: Final = frozenset(("<|return|>", "<|call|>"))


def stop_texts(known: Collection[str]) -> frozenset[str]:
    """Return the tokens that end a turn or text, of a vocabulary's control tokens."""
    if _HARMONY_STOPS.issubset(known):
        return (STOP_TEXTS - {"<|end|>"}).intersection(known) | _HARMONY_STOPS
    return STOP_TEXTS.intersection(known)


def convert(metadata: dict[str, Value]) -> tuple[Json, TokenForm]:
    """Return the `tokenizer.json` of a GGUF header, and its token form. Raises `GGUFError`."""
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        return _byte_level_bpe(metadata), "byte_level"
    if model in ("llama", "t5"):
        return _sentencepiece(metadata, is_unigram=model == "t5"), "byte_fallback"
    raise GGUFError(f"tokenizer {model!r} is not supported ('gpt2', 'llama' and 't5' are)")


def convert_sentencepiece(model: SentencePieceModel, settings: Json) -> Json:
    """Return `tokenizer.json` of a `tokenizer.model`, with what tokenizer_config.json adds to it.
    Raises `GGUFError`."""
    metadata = metadata_of(model)
    bos = token_text(settings.get("bos_token"))
    adds_bos = bos in model.pieces and bool(settings.get("add_bos_token", True))
    metadata["tokenizer.ggml.add_bos_token"] = adds_bos
    if bos is not None and adds_bos:
        metadata["tokenizer.ggml.bos_token_id"] = model.pieces.index(bos)
    tokenizer, _ = convert(metadata)
    added: list[Json] = tokenizer["added_tokens"]
    known, stated = {token["id"] for token in added}, settings.get("added_tokens_decoder") or {}
    for id_, token in ((int(key), each) for key, each in stated.items() if key.isdecimal()):
        if id_ not in known and (id_ >= len(model.pieces) or token["special"]):
            flags = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
            added.append({"id": id_, **{flag: token[flag] for flag in flags}})
    added.sort(key=lambda token: int(token["id"]))
    return tokenizer


def metadata_of(model: SentencePieceModel) -> dict[str, Value]:
    """Return what a GGUF file would state of a SentencePiece model's pieces."""
    return {
        "tokenizer.ggml.model": "llama" if model.kind == "bpe" else "t5",
        "tokenizer.ggml.tokens": model.pieces,
        "tokenizer.ggml.scores": model.scores,
        "tokenizer.ggml.token_type": model.types,
        "tokenizer.ggml.unknown_token_id": model.unknown_id,
        "tokenizer.ggml.add_space_prefix": model.adds_space_prefix,
        "tokenizer.ggml.remove_extra_whitespaces": model.removes_extra_spaces,
        "tokenizer.ggml.precompiled_charsmap": list(model.charsmap),
    }


def control_tokens(metadata: dict[str, Value]) -> dict[str, int]:
    """Return the text and id of tokens that users' text must never turn into."""
    control = {}
    for id_, (text, kind) in enumerate(zip(_tokens(metadata), _token_types(metadata), strict=True)):
        if kind in (UNKNOWN, CONTROL) or (kind == USER_DEFINED and text in STOP_TEXTS):
            control[text] = id_
    return control


def _array(metadata: dict[str, Value], key: str) -> list[Any]:
    array = metadata.get(key)
    if not isinstance(array, list) or not array:
        raise GGUFError(f"{key} is missing")
    return array


def _tokens(metadata: dict[str, Value]) -> list[str]:
    tokens = _array(metadata, "tokenizer.ggml.tokens")
    if not isinstance(tokens[0], str):
        raise GGUFError("tokenizer.ggml.tokens is not made of strings")
    if max(map(len, tokens)) > MAX_TOKEN_LENGTH:
        raise GGUFError(f"a token has more than {MAX_TOKEN_LENGTH} characters")
    return tokens


def _token_types(metadata: dict[str, Value]) -> list[int]:
    tokens = _tokens(metadata)
    if "tokenizer.ggml.token_type" not in metadata:
        return [NORMAL] * len(tokens)
    types = _array(metadata, "tokenizer.ggml.token_type")
    if len(types) != len(tokens):
        raise GGUFError("tokenizer.ggml.token_type does not match tokenizer.ggml.tokens")
    return types


def _byte_level_bpe(metadata: dict[str, Value]) -> Json:
    name = metadata.get("tokenizer.ggml.pre", "")
    if name not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise GGUFError(f"pre-tokenizer {name!r} is not supported ({known} are)")
    added = _added_tokens(metadata)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if name in NORMALIZED_TO_NFC else None,
        "pre_tokenizer": PRE_TOKENIZERS[str(name)],
        "post_processor": _post_processor(metadata) or {**BYTE_LEVEL, "trim_offsets": False},
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": name in WHOLE_WORDS_FIRST,
            "vocab": (vocab := _vocab(metadata, added)),
            "merges": _merges(metadata, vocab),
        },
    }


def _sentencepiece(metadata: dict[str, Value], *, is_unigram: bool) -> Json:
    """Return SentencePiece's BPE or Unigram model."""
    added, tokens = _added_tokens(metadata), _tokens(metadata)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    if not isinstance(unknown, int) or not 0 <= unknown < len(tokens):
        raise GGUFError("tokenizer.ggml.unknown_token_id is not a token")
    scores = _array(metadata, "tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise GGUFError("tokenizer.ggml.scores does not match tokenizer.ggml.tokens")
    charsmap = metadata.get("tokenizer.ggml.precompiled_charsmap", [])
    if not isinstance(charsmap, list):
        raise GGUFError("tokenizer.ggml.precompiled_charsmap is not made of bytes")
    pieces = Pieces(
        texts=tokens,
        scores=[float(score) for score in scores],
        types=_token_types(metadata),
        unknown_id=unknown,
        adds_space_prefix=bool(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        removes_extra_spaces=bool(metadata.get("tokenizer.ggml.remove_extra_whitespaces", False)),
        charsmap=bytes(int(each) & 0xFF for each in charsmap),
    )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": _post_processor(metadata),
        **(pieces.unigram() if is_unigram else pieces.bpe(_vocab(metadata, added))),
    }


def _added_tokens(metadata: dict[str, Value]) -> list[Json]:
    """Return tokens found as whole strings before BPE: control tokens (special) and user-defined
    ones."""
    tokens, types = _tokens(metadata), _token_types(metadata)
    control = control_tokens(metadata)
    return [
        {
            "id": id_,
            "content": tokens[id_],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": tokens[id_] in control,
        }
        for id_, kind in enumerate(types)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) and tokens[id_]
    ]


def _vocab(metadata: dict[str, Value], added: list[Json]) -> dict[str, int]:
    """Return BPE's own vocabulary: without the added tokens at its end, which `tokenizers` numbers
    itself.

    An added token among them could otherwise come out of plain text where whole words come first.
    """
    tokens = _tokens(metadata)
    end = len(tokens)
    for token in reversed(added):
        if token["id"] != end - 1:
            break
        end -= 1
    vocab = {text: id_ for id_, text in enumerate(tokens[:end])}
    if len({*vocab, *tokens[end:]}) != len(tokens):
        raise GGUFError("tokenizer.ggml.tokens has the same text twice")
    return vocab


def _merges(metadata: dict[str, Value], vocab: dict[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for text in _array(metadata, "tokenizer.ggml.merges"):
        left, _, right = str(text).partition(" ")
        if not (left in vocab and right in vocab and left + right in vocab):
            raise GGUFError(f"merge {text!r} is not made of tokens")
        merges.append((left, right))
    return merges


def _post_processor(metadata: dict[str, Value]) -> Json | None:
    """Put BOS in front where the model wants it."""
    if not adds_bos(metadata):
        return None
    id_ = int(metadata.get("tokenizer.ggml.bos_token_id", 1))  # type: ignore[arg-type]
    bos = _tokens(metadata)[id_]
    special = {"SpecialToken": {"id": bos, "type_id": 0}}
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, special, second],
        "special_tokens": {bos: {"id": bos, "ids": [id_], "tokens": [bos]}},
    }


def adds_bos(metadata: dict[str, Value]) -> bool:
    """Return whether plain text starts with BOS: stated, or by the habit of the tokenizer's
    family."""
    by_family = (
        metadata.get("tokenizer.ggml.model") == "llama"
        or metadata.get("tokenizer.ggml.pre") in WHOLE_WORDS_FIRST
    )
    return bool(metadata.get("tokenizer.ggml.add_bos_token", by_family))
