"""As much of Ray's API as the driver calls, in one process: named actors that live until they are
killed, and answers that come or do not. Real Ray is met in `test_real_ray.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """As `ray.exceptions.RayError`."""


@dataclass(eq=False)
class Actor:
    """A named actor, and whether it answers."""

    name: str
    made: Any
    options: dict[str, Any]
    is_silent: bool = False
    has_died: bool = False
    calls: list[str] = field(default_factory=list[str])

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> Answer:
            self.calls.append(method)
            return Answer(self, getattr(self.made, method)(*arguments))

        return SimpleNamespace(remote=remote)


@dataclass(eq=False)
class Answer:
    actor: Actor
    value: Any


class FakeRay:
    """The module."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.actors: dict[str, Actor] = {}
        self.is_away = False
        self.killed: list[str] = []
        self.util = SimpleNamespace(list_named_actors=self._names)
        self.exceptions = SimpleNamespace(RayError=RayError)
        self._make = make

    def _names(self) -> list[str]:
        if self.is_away:
            raise RayError("no head")
        return [*self.actors]

    def remote(self, actor: type) -> Any:
        def options(**options: Any) -> Any:
            def remote(*arguments: Any) -> None:
                name = options["name"]
                if name in self.actors:
                    raise ValueError(f"the name {name} is taken")
                self.actors[name] = Actor(name, self._make(*arguments), options)

            return SimpleNamespace(remote=remote)

        return SimpleNamespace(options=options)

    def get_actor(self, name: str) -> Actor:
        if name not in self.actors:
            raise ValueError(f"no actor {name}")
        return self.actors[name]

    def wait(
        self, refs: list[Answer], *, num_returns: int, timeout: float
    ) -> tuple[list[Answer], list[Answer]]:
        assert num_returns == len(refs) > 0
        assert timeout > 0
        return (
            [each for each in refs if not each.actor.is_silent],
            [each for each in refs if each.actor.is_silent],
        )

    def get(self, ref: Answer) -> Any:
        if ref.actor.has_died:
            raise RayError("the actor died")
        return ref.value

    def kill(self, actor: Actor, *, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(actor.name)
        self.actors.pop(actor.name, None)
