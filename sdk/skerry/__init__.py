"""Skerry: serverless inference at the edge.

from skerry import AI

ai = AI()
print(ai.run("@cf/huggingfacetb/smollm2-135m-instruct", {"prompt": "The sea is"})["response"])
"""

from skerry._client import AI, AsyncAI
from skerry._results import Chunk, Result
from skerry._stream import AsyncStream, Stream
from skerry._version import __version__
from skerry.errors import (
    AuthenticationError,
    BodyTooLarge,
    CapacityError,
    ConnectionFailed,
    InternalError,
    InvalidInput,
    InvalidJSON,
    LoraNotSupported,
    MethodNotAllowed,
    ModelNotFound,
    NotConfigured,
    NotFound,
    Overloaded,
    PermissionDenied,
    PromptTooLong,
    QuotaExceeded,
    RequestError,
    RequestTimeout,
    SkerryError,
    TaskNotSupported,
    Unavailable,
)

__all__ = [
    "AI",
    "AsyncAI",
    "AsyncStream",
    "AuthenticationError",
    "BodyTooLarge",
    "CapacityError",
    "Chunk",
    "ConnectionFailed",
    "InternalError",
    "InvalidInput",
    "InvalidJSON",
    "LoraNotSupported",
    "MethodNotAllowed",
    "ModelNotFound",
    "NotConfigured",
    "NotFound",
    "Overloaded",
    "PermissionDenied",
    "PromptTooLong",
    "QuotaExceeded",
    "RequestError",
    "RequestTimeout",
    "Result",
    "SkerryError",
    "Stream",
    "TaskNotSupported",
    "Unavailable",
    "__version__",
]
