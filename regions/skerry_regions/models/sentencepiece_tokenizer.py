"""SentencePiece's models, out of GGUF or of `tokenizer.model`, as a `tokenizer.json`."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces, in GGUF `tokenizer.ggml.token_type`."""

_SPACE: Final = "▁"
_NEVER: Final = -1e6  # score of a piece that text does not become by its name


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vocabulary: texts, scores and types by id, and what happens to text before."""

    texts: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    unknown_id: int
    adds_space_prefix: bool
    removes_extra_spaces: bool = False
    charsmap: bytes = b""  # precompiled normalisation

    def bpe(self, vocab: dict[str, int]) -> Json:
        """Return normalizer, pre-tokenizer, decoder and model of a BPE: scores rank the merges;
        unknown characters fall back to byte tokens."""
        return {
            "normalizer": self._normalizer(),
            "pre_tokenizer": None,
            "decoder": self._decoder(),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": self.texts[self.unknown_id],
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "byte_fallback": True,
                "ignore_merges": False,
                "vocab": vocab,
                "merges": self._merges(),
            },
        }

    def unigram(self) -> Json:
        """Return the same of a Unigram model (Kudo, 2018): the likeliest pieces of a text."""
        return {
            "normalizer": self._normalizer(),
            "pre_tokenizer": None,
            "decoder": self._decoder(),
            "model": {
                "type": "Unigram",
                "unk_id": self.unknown_id,
                "vocab": [
                    [text, _NEVER if kind in (CONTROL, BYTE) else score]
                    for text, score, kind in zip(self.texts, self.scores, self.types, strict=True)
                ],
                "byte_fallback": BYTE in self.types,
            },
        }

    def _normalizer(self) -> Json:
        steps = list[Json]()
        if self.charsmap:
            charsmap = base64.b64encode(self.charsmap).decode()
            steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
        if self.removes_extra_spaces:
            for pattern, content in ((r"\A +| +\z", ""), (" {2,}", " ")):
                steps.append({"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
        if self.adds_space_prefix:
            steps.append({"type": "Prepend", "prepend": _SPACE})
        steps.append({"type": "Replace", "pattern": {"String": " "}, "content": _SPACE})
        if self.removes_extra_spaces:  # at the end also those that were spelled as a piece has them
            end: Json = {"Regex": f"{_SPACE}+\\z"}
            steps.append({"type": "Replace", "pattern": end, "content": ""})
        return {"type": "Sequence", "normalizers": steps}

    def _decoder(self) -> Json:
        decoders: list[Json] = [
            {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if self.adds_space_prefix:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        return {"type": "Sequence", "decoders": decoders}

    def _merges(self) -> list[tuple[str, str]]:
        """Return every way to make a piece of two others, best score of the result first.

        SentencePiece merges the neighbours whose union has the best score, so the score is the
        rank.
        """
        kept = (NORMAL, USER_DEFINED, UNUSED)
        ids = {self.texts[i]: i for i, kind in enumerate(self.types) if kind in kept}
        ranked: list[tuple[float, int, int]] = []
        for text, id_ in ids.items():
            for left, right in _halves(text):
                if left in ids and right in ids:
                    ranked.append((-float(self.scores[id_]), ids[left], ids[right]))
        ranked.sort()
        return [(self.texts[left], self.texts[right]) for _, left, right in ranked]


def _halves(text: str) -> Iterable[tuple[str, str]]:
    return ((text[:i], text[i:]) for i in range(1, len(text)))
