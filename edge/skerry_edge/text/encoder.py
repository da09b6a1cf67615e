"""The text side of an encoder: texts and pairs of texts to token ids, special ones included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Encoding, Tokenizer

from skerry_regions.models.model_files import ModelFiles

GROUP_CHARS = 64 << 10  # tokenised at a time: what a tokenizer notes of each token is soon gone


class EncoderText:
    """An encoder's tokenizer. Safe to use from several threads.

    What looks like a special token in somebody's text is only text.
    """

    def __init__(self, files: ModelFiles, *, max_tokens: int) -> None:
        self.vocab_size = files.vocab_size
        self.max_tokens = max_tokens  # of one text
        self._whole = _plain(files)
        self._cut = _plain(files)
        self._cut.enable_truncation(max_tokens)
        self._cut_pairs = _plain(files)
        self._cut_pairs.enable_truncation(max_tokens, strategy="only_second")
        self._pair_marks = self._whole.num_special_tokens_to_add(is_pair=True)

    def encode(self, texts: Sequence[str], *, truncate: bool) -> Iterator[list[int]]:
        """Yield token ids of each text; with `truncate` at most `max_tokens`, else all. Who looks
        no further has none of the rest tokenised."""
        tokenizer = self._cut if truncate else self._whole
        for encoding in _encodings(tokenizer, texts):
            yield encoding.ids

    def room_beside(self, query: str) -> int:
        """Return tokens that are left for the second text of a pair; may be negative."""
        (encoding,) = self._whole.encode_batch([query], add_special_tokens=False)
        return self.max_tokens - self._pair_marks - len(encoding.ids)

    def encode_pairs(
        self, first: str, others: Sequence[str], *, truncate: bool
    ) -> Iterator[tuple[list[int], int]]:
        """Yield token ids of `first` with each of `others`, and how many come before the second
        part. `first` is tokenised once, however many there are.

        `truncate` cuts the second text, so `first` must leave room (`room_beside`).
        """
        tokenizer = self._cut_pairs if truncate else self._whole
        (query,) = self._whole.encode_batch([first], add_special_tokens=False)
        for other in _encodings(self._whole, others, add_special_tokens=False):
            pair = tokenizer.post_process(query, other)
            yield pair.ids, _second_part(pair.type_ids)


def _encodings(
    tokenizer: Tokenizer, texts: Sequence[str], *, add_special_tokens: bool = True
) -> Iterator[Encoding]:
    """Yield what a tokenizer makes of each text, a few at a time, without the GIL."""
    group, chars = list[str](), 0
    for number, text in enumerate(texts, 1):
        group.append(text)
        chars += len(text)
        if chars >= GROUP_CHARS or number == len(texts):
            yield from tokenizer.encode_batch(group, add_special_tokens=add_special_tokens)
            group, chars = [], 0


def _second_part(types: list[int]) -> int:
    return types.index(1) if 1 in types else len(types)


def _plain(files: ModelFiles) -> Tokenizer:
    """Return the tokenizer without the lengths and the padding that its file may state."""
    tokenizer = Tokenizer.from_file(str(files.tokenizer))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer
