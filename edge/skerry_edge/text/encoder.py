"""The text side of an encoder: texts and pairs of texts to token ids, special ones included."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from skerry_regions.models.model_files import ModelFiles


class EncoderText:
    """An encoder's tokenizer. Safe to use from several threads.

    What looks like a special token in somebody's text is only text.
    """

    def __init__(self, files: ModelFiles, *, max_tokens: int) -> None:
        self.vocab_size = files.vocab_size
        self.max_tokens = max_tokens  # of one text
        self.tokenizer_digest = files.tokenizer_digest
        self.template_digest = files.template_digest
        self._whole = _plain(files)
        self._cut = _plain(files)
        self._cut.enable_truncation(max_tokens)
        self._cut_pairs = _plain(files)
        self._cut_pairs.enable_truncation(max_tokens, strategy="only_second")
        self._pair_marks = self._whole.num_special_tokens_to_add(is_pair=True)

    def encode(self, texts: Sequence[str], *, truncate: bool) -> list[list[int]]:
        """Return token ids of each text; with `truncate` at most `max_tokens`, else all."""
        tokenizer = self._cut if truncate else self._whole
        return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]

    def room_beside(self, query: str) -> int:
        """Return tokens that are left for the second text of a pair; may be negative."""
        used = len(self._whole.encode(query, add_special_tokens=False).ids)
        return self.max_tokens - self._pair_marks - used

    def encode_pairs(
        self, first: str, others: Sequence[str], *, truncate: bool
    ) -> list[tuple[list[int], int]]:
        """Return token ids of `first` with each of `others`, and how many come before the second
        part.

        `truncate` cuts the second text, so `first` must leave room (`room_beside`).
        """
        tokenizer = self._cut_pairs if truncate else self._whole
        pairs = [(first, second) for second in others]
        return [
            (encoding.ids, _second_part(encoding.type_ids))
            for encoding in tokenizer.encode_batch(pairs)
        ]


def _second_part(types: list[int]) -> int:
    return types.index(1) if 1 in types else len(types)


def _plain(files: ModelFiles) -> Tokenizer:
    """Return the tokenizer without the lengths and the padding that its file may state."""
    tokenizer = Tokenizer.from_file(str(files.tokenizer))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer
