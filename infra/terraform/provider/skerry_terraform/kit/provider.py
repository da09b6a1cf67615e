"""What the author of a provider writes.

Objects are plain dictionaries (see `values`). A method that cannot do its work raises
`ProviderError`; any other exception is reported as a bug in the provider.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from skerry_terraform.kit.diagnostics import Diagnostics, Path
from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.schema import Schema
from skerry_terraform.kit.values import Type, Value

ClientT = TypeVar("ClientT")


@dataclass(slots=True, kw_only=True)
class CallContext(Generic[ClientT]):
    """One call. Of `config`, `prior` and `planned` those that the call has are set."""

    client: ClientT
    stop: threading.Event  # Terraform was interrupted: wind up
    diagnostics: Diagnostics
    config: Object = field(default_factory=dict[str, Any])
    prior: Object = field(default_factory=dict[str, Any])
    planned: Object = field(default_factory=dict[str, Any])
    private: Object = field(default_factory=dict[str, Any])  # JSON, kept with the state
    saved: Object | None = None

    def save(self, state: Object) -> None:
        """Save what exists remotely now: it reaches the state file if the rest fails."""
        self.saved = state


class ObjectKind(Generic[ClientT]):
    """A kind of object. `name` is without the provider's prefix."""

    name: str
    schema: Schema

    def validate(self, config: Object, diagnostics: Diagnostics) -> None:
        """Check what no check of a single value can. Any value may be unknown."""


class Resource(ObjectKind[ClientT]):
    """A kind of managed object."""

    def plan(self, ctx: CallContext[ClientT], replace: list[Path]) -> None:
        """Refine `ctx.planned`, such as with a computed value that is known already.

        `ctx.prior` is empty when the object is to be created.
        """

    def create(self, ctx: CallContext[ClientT]) -> Object:
        """Make it of `ctx.planned`; the state. Call `ctx.save` as soon as it exists."""
        raise NotImplementedError

    def read(self, ctx: CallContext[ClientT]) -> Object | None:
        """Return the state of `ctx.prior` as it is now; None when it is gone."""
        raise NotImplementedError

    def update(self, ctx: CallContext[ClientT]) -> Object:
        """Change `ctx.prior` to `ctx.planned`; the state."""
        raise NotImplementedError

    def delete(self, ctx: CallContext[ClientT]) -> None:
        """Make `ctx.prior` go. That it is gone already is a success."""
        raise NotImplementedError

    def import_(self, ctx: CallContext[ClientT], id: str) -> Object:
        """Return enough of a state for `read`."""
        raise NotImplementedError

    def upgrade(self, version: int, state: Object) -> Object:
        """Return a state that an older version of the schema wrote, as JSON has it."""
        raise NotImplementedError


class DataSource(ObjectKind[ClientT]):
    """A kind of object that is only read."""

    def read(self, ctx: CallContext[ClientT]) -> Object:
        """Return all attributes, those of `ctx.config` included."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An ephemeral object. `private` is given to `close`."""

    result: Object
    private: Object = field(default_factory=dict[str, Any])


class Ephemeral(ObjectKind[ClientT]):
    """A kind of object that lives as long as one run of Terraform, and is in no state."""

    def open(self, ctx: CallContext[ClientT]) -> Opened:
        raise NotImplementedError

    def close(self, ctx: CallContext[ClientT]) -> None:
        """Close what `ctx.private` names."""
        raise NotImplementedError


class ArgumentError(ValueError):
    """A function's argument that cannot be; `index` counts from 0."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """Pure and offline: `provider::NAME::FUNCTION(…)`. `call` may raise ArgumentError."""

    name: str
    parameters: Sequence[tuple[str, Type, str]]  # name, type, doc
    returns: Type
    call: Callable[..., Value]
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider(Generic[ClientT]):
    """`configure` takes the provider block's values and the event that says to wind up.

    It makes the client that every call gets, which is not None.
    """

    name: str  # prefix of its resources
    schema: Schema
    configure: Callable[[Object, threading.Event], ClientT]
    release: Callable[[ClientT], None]  # a client that is not used any more
    resources: Sequence[Resource[ClientT]] = ()
    data_sources: Sequence[DataSource[ClientT]] = ()
    ephemerals: Sequence[Ephemeral[ClientT]] = ()
    functions: Sequence[Function] = ()
