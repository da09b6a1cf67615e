"""Every error Skerry shows its users, named after who can mend it.

    SkerryError
    ├── RequestError            the caller can fix it
    │   ├── InvalidInput        a field is missing, of the wrong type or out of range
    │   │   └── ResponseNotFound  `previous_response_id` names none that is kept
    │   ├── InvalidJSON         the body is not JSON
    │   ├── JSONModeUnmet       the output ended before its JSON was whole
    │   ├── PromptTooLong       prompt and max_tokens exceed the context window
    │   ├── BodyTooLarge        the body exceeds the limit
    │   ├── ModelNotFound       no such model in the catalog
    │   ├── TaskNotSupported    the model exists but cannot do this
    │   ├── LoraNotSupported    the model takes no adapter
    │   ├── AuthenticationError the token is missing or wrong
    │   ├── PermissionDenied    the token is right but may not do this
    │   ├── NotFound            no such route or object
    │   ├── MethodNotAllowed    the route exists, the method does not
    │   ├── ResidencyUnmet      the request may not leave a zone, and this is not in it
    │   ├── IdempotencyMismatch the idempotency key was used with another request
    │   └── QuotaExceeded       the money or allowance is used up (429, not retryable now)
    ├── CapacityError           try elsewhere or later; carries retry_after
    │   ├── Overloaded          every place is taken
    │   ├── RateLimited         the tenant calls faster than it may
    │   ├── RequestTimeout      the deadline passed
    │   └── Unavailable         no placement can serve this now
    ├── InternalError           a bug of ours
    ├── ConnectionFailed        the client could not reach the platform
    └── NotConfigured           the client does not know where the platform is, or who calls

Each carries a stable name (`code`), the number the Workers AI dialect uses (`number`), an HTTP
status and whether a retry can help. `by_code` and `by_number` turn wire codes back into classes.
"""

from __future__ import annotations

from typing import ClassVar


class SkerryError(Exception):
    """Base of the tree. `message` is for people; everything a program needs is a field."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    number: int = 8008  # an instance may carry the more special number that a platform sent
    retryable: bool = False  # an instance may carry the platform's own word (`x-should-retry`)
    by_code: ClassVar[dict[str, type[SkerryError]]] = {}
    by_number: ClassVar[dict[int, type[SkerryError]]] = {}

    def __init_subclass__(
        cls,
        *,
        code: str | None = None,
        number: int | None = None,
        status: int | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init_subclass__()
        if retryable is not None:
            cls.retryable = retryable
        if code is not None and number is not None and status is not None:
            cls.code, cls.number, cls.status = code, number, status
            SkerryError.by_code[code] = cls
            SkerryError.by_number.setdefault(number, cls)

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        http_status: int | None = None,
        number: int | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param  # path of the offending field, such as "messages[0].content"
        self.retry_after = retry_after  # seconds
        self.request_id = request_id
        self.http_status = http_status if http_status is not None else self.status
        if number is not None:
            self.number = number
        if retryable is not None:
            self.retryable = retryable

    def __str__(self) -> str:
        where = f" (request {self.request_id})" if self.request_id else ""
        number = f"{self.number}: " if self.number else ""  # a client's own errors have none
        return f"{number}{self.message}{where}"


class RequestError(SkerryError, code="invalid_request", number=5004, status=400):
    """The caller can fix it; sending the same again fails again."""


class InvalidInput(RequestError, code="invalid_input", number=5006, status=400):
    """A field is missing, of the wrong type or out of range; `param` names it."""


class ResponseNotFound(InvalidInput, code="previous_response_not_found", number=5006, status=400):
    """There is no response to go on from; nothing was done, and all of it may be sent again."""


class InvalidJSON(RequestError, code="invalid_json", number=3003, status=400):
    """The body is not valid JSON, or not UTF-8."""


class JSONModeUnmet(RequestError, code="json_mode_unmet", number=5024, status=400):
    """The output ended, by `max_tokens` or a stop string, before its JSON was whole."""


class PromptTooLong(RequestError, code="context_length_exceeded", number=5021, status=413):
    """Prompt and output together exceed the model's context window."""


class BodyTooLarge(RequestError, code="body_too_large", number=3006, status=413):
    """The request body exceeds the edge's limit."""


class ModelNotFound(RequestError, code="model_not_found", number=5007, status=400):
    """No such model in the catalog."""


class TaskNotSupported(RequestError, code="task_not_supported", number=3030, status=400):
    """The model exists, but cannot do what was requested."""


class LoraNotSupported(RequestError, code="lora_not_supported", number=5005, status=405):
    """The model takes no LoRA adapter."""


class AuthenticationError(RequestError, code="authentication_error", number=10000, status=401):
    """The API token is missing or wrong."""


class PermissionDenied(RequestError, code="permission_denied", number=3023, status=403):
    """The token is valid, but may not do this."""


class NotFound(RequestError, code="not_found", number=7003, status=404):
    """No such route or object."""


class MethodNotAllowed(RequestError, code="method_not_allowed", number=7001, status=405):
    """The route exists, the method does not."""


class ResidencyUnmet(RequestError, code="residency_unmet", number=7011, status=421):
    """The request may not leave a zone, and this place is not in it: send it to another edge."""


class IdempotencyMismatch(RequestError, code="idempotency_mismatch", number=5012, status=422):
    """The `Idempotency-Key` was used with another request before."""


class QuotaExceeded(RequestError, code="insufficient_quota", number=4006, status=429):
    """What the caller may spend or use is used up; retrying at once cannot help."""


class CapacityError(SkerryError, code="capacity_error", number=3010, status=503, retryable=True):
    """Try elsewhere or later; `retry_after` says when."""


class Overloaded(CapacityError, code="overloaded", number=3040, status=429):
    """Every place is taken."""


class RateLimited(CapacityError, code="rate_limit_exceeded", number=2003, status=429):
    """The tenant calls faster than it may, or too much at once."""


class RequestTimeout(CapacityError, code="timeout", number=3046, status=408):
    """The request's deadline passed before it was done."""


class Unavailable(CapacityError, code="unavailable", number=7009, status=503):
    """No placement can serve this model now."""


class InternalError(SkerryError, code="internal_error", number=8008, status=500, retryable=True):
    """A bug of ours; the request id finds it in the logs."""


class ConnectionFailed(SkerryError, code="connection_failed", number=0, status=0, retryable=True):
    """The client could not reach the platform, or the connection broke."""


class NotConfigured(SkerryError, code="not_configured", number=0, status=0):
    """The client does not know where the platform is, or who calls."""
