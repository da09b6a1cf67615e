"""The text side of a model that embeds: texts to token ids, special ones included."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from skerry_regions.model_files import ModelFiles


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

    def encode(self, texts: Sequence[str], *, truncate: bool) -> list[list[int]]:
        """Token ids of each text; with `truncate` at most `max_tokens`, else however many."""
        tokenizer = self._cut if truncate else self._whole
        return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def _plain(files: ModelFiles) -> Tokenizer:
    """The tokenizer without the lengths and the padding that its file may state."""
    tokenizer = Tokenizer.from_file(str(files.tokenizer))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer
