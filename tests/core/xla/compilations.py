"""What XLA compiles, or loads from its cache, in this process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from jax import monitoring

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations() -> Generator[list[str]]:
    """Names of programs that are compiled or loaded while entered."""
    names: list[str] = []

    def note(event: str, duration_secs: float, **about: str | int) -> None:
        if event == COMPILED:
            names.append(str(about.get("fun_name")))

    monitoring.register_event_duration_secs_listener(note)
    try:
        yield names
    finally:
        monitoring.unregister_event_duration_listener(note)
