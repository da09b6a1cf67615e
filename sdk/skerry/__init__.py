"""Skerry: serverless inference at the edge.

from skerry import AI

ai = AI()
print(ai.run("@cf/huggingfacetb/smollm2-135m-instruct", {"prompt": "The sea is"})["response"])
"""

import typing

from skerry._results import Chunk, Result
from skerry._version import __version__
from skerry.errors import (
    AuthenticationError,
    BodyTooLarge,
    CapacityError,
    ConnectionFailed,
    IdempotencyMismatch,
    InternalError,
    InvalidInput,
    InvalidJSON,
    JSONModeUnmet,
    LoraNotSupported,
    MethodNotAllowed,
    ModelNotFound,
    NotConfigured,
    NotFound,
    Overloaded,
    PermissionDenied,
    PromptTooLong,
    QuotaExceeded,
    RateLimited,
    RequestError,
    RequestTimeout,
    ResidencyUnmet,
    ResponseNotFound,
    SkerryError,
    TaskNotSupported,
    Unavailable,
)

if typing.TYPE_CHECKING:
    from skerry._async_client import AsyncAI
    from skerry._batch import AsyncBatch, Batch, BatchAnswer
    from skerry._client import AI
    from skerry._stream import AsyncStream, Stream
else:
    # The HTTP client costs a quarter of a second to import, and `skerry.errors`, which the whole
    # platform imports, does not need it: it comes when it is first requested.
    _LAZY = {
        "AI": "skerry._client",
        "AsyncAI": "skerry._async_client",
        "AsyncBatch": "skerry._batch",
        "Batch": "skerry._batch",
        "BatchAnswer": "skerry._batch",
        "AsyncStream": "skerry._stream",
        "Stream": "skerry._stream",
    }

    def __getattr__(name: str) -> object:
        import importlib

        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
        return value


__all__ = [
    "AI",
    "AsyncAI",
    "AsyncBatch",
    "AsyncStream",
    "AuthenticationError",
    "Batch",
    "BatchAnswer",
    "BodyTooLarge",
    "CapacityError",
    "Chunk",
    "ConnectionFailed",
    "IdempotencyMismatch",
    "InternalError",
    "InvalidInput",
    "InvalidJSON",
    "JSONModeUnmet",
    "LoraNotSupported",
    "MethodNotAllowed",
    "ModelNotFound",
    "NotConfigured",
    "NotFound",
    "Overloaded",
    "PermissionDenied",
    "PromptTooLong",
    "QuotaExceeded",
    "RateLimited",
    "RequestError",
    "RequestTimeout",
    "ResidencyUnmet",
    "ResponseNotFound",
    "Result",
    "SkerryError",
    "Stream",
    "TaskNotSupported",
    "Unavailable",
    "__version__",
]
