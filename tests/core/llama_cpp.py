"""llama.cpp out of the `xllamacpp` wheel, by its C interface: logits of every position, and tokens.

The wheel is put into an environment of its own on first use (`bench.subjects.peers`). Structures of
parameters are opaque but for the fields at their beginning: their layout changes with versions.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.subjects.peers import python_of

from skerry_core.batch import Float32


class _Parameters(ctypes.Structure):
    """More room than any version's structure takes."""

    _fields_ = [("words", ctypes.c_uint32 * 256)]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_silent = _LOG(lambda _level, _text, _data: None)
_NAMES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_log_set": (None, (_LOG, ctypes.c_void_p)),
    "llama_backend_init": (None, ()),
    "llama_model_default_params": (_Parameters, ()),
    "llama_context_default_params": (_Parameters, ()),
    "llama_model_load_from_file": (ctypes.c_void_p, (ctypes.c_char_p, _Parameters)),
    "llama_model_free": (None, (ctypes.c_void_p,)),
    "llama_model_get_vocab": (ctypes.c_void_p, (ctypes.c_void_p,)),
    "llama_vocab_n_tokens": (ctypes.c_int32, (ctypes.c_void_p,)),
    "llama_init_from_model": (ctypes.c_void_p, (ctypes.c_void_p, _Parameters)),
    "llama_free": (None, (ctypes.c_void_p,)),
    "llama_set_n_threads": (None, (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)),
    "llama_batch_init": (_Batch, (ctypes.c_int32,) * 3),
    "llama_batch_free": (None, (_Batch,)),
    "llama_decode": (ctypes.c_int32, (ctypes.c_void_p, _Batch)),
    "llama_get_logits_ith": (
        ctypes.POINTER(ctypes.c_float), (ctypes.c_void_p, ctypes.c_int32),
    ),
    "llama_tokenize": (
        ctypes.c_int32,
        (
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32),
            ctypes.c_int32, ctypes.c_bool, ctypes.c_bool,
        ),
    ),
}  # fmt: skip


@functools.cache
def _library() -> Any:
    try:
        python = python_of("xllamacpp")
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"xllamacpp cannot be installed: {error}")
    site = sysconfig.get_path("platlib", vars={"platbase": str(python.parents[1])})
    (path,) = (Path(site) / "xllamacpp").glob("xllamacpp*.so")
    library = ctypes.PyDLL(str(path))
    for name, (result, arguments) in _NAMES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_log_set(_silent, None)
    library.llama_backend_init()
    return library


class LlamaCpp:
    """A GGUF file as llama.cpp reads it."""

    def __init__(self, path: Path) -> None:
        self._library = _library()
        parameters = self._library.llama_model_default_params()
        self._model = self._library.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise ValueError(f"llama.cpp cannot load {path}")
        self._vocab = self._library.llama_model_get_vocab(self._model)
        self.vocab_size = int(self._library.llama_vocab_n_tokens(self._vocab))

    def logits(self, tokens: Sequence[int]) -> Float32:
        """Return f32[tokens, vocabulary] of one sequence."""
        library, count = self._library, len(tokens)
        parameters = library.llama_context_default_params()
        for field in range(3):  # n_ctx, n_batch and n_ubatch
            parameters.words[field] = 512
        context = library.llama_init_from_model(self._model, parameters)
        library.llama_set_n_threads(context, 1, 1)
        batch = library.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.n_seq_id[place] = token, place, 1
            batch.seq_id[place][0], batch.logits[place] = 0, 1
        code = library.llama_decode(context, batch)
        assert code == 0, f"llama_decode: {code}"
        rows = [library.llama_get_logits_ith(context, place) for place in range(count)]
        found = np.stack([np.ctypeslib.as_array(row, (self.vocab_size,)).copy() for row in rows])
        library.llama_batch_free(batch)
        library.llama_free(context)
        return found

    def tokenize(self, text: str) -> list[int]:
        """Return tokens of a text in which nothing is a control token, without BOS and EOS."""
        data = text.encode()
        room = 2 * len(data) + 16
        tokens = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(
            self._vocab, data, len(data), tokens, room, False, False
        )
        assert count >= 0
        return list(tokens[:count])

    def close(self) -> None:
        self._library.llama_model_free(self._model)
