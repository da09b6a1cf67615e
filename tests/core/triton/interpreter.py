"""Triton's interpreter, which makes its language over less often."""

from __future__ import annotations

from typing import Any

import pytest


def patched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a launch patch Triton's language once for each module whose functions it calls.

    The interpreter patches it anew at each call of a device function, hundreds of times in a
    launch, where it finds nothing that is not patched: that was a third of what these tests cost.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    patch, nothing = interpreter._patch_lang, interpreter._LangPatchScope()
    seen: set[int] = set()  # modules' globals, of the launch that runs

    class Launch:
        def __init__(self, scope: Any) -> None:
            self.scope = scope

        def restore(self) -> None:
            seen.clear()
            self.scope.restore()

    def patch_once(function: Any) -> Any:
        where = id(function.__globals__)
        if where in seen:
            return nothing
        scope = patch(function) if seen else Launch(patch(function))
        seen.add(where)
        return scope

    monkeypatch.setattr(interpreter, "_patch_lang", patch_once)
