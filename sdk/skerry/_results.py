"""What a call gives back: a dict whose keys are attributes too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from skerry.errors import InternalError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Result(dict[str, Any]):
    """A JSON object: `result["usage"]["total_tokens"]` and `result.usage.total_tokens`.

    A key named like a method of dict (`items`, `keys`, `get`, …) is reached by index only.
    Attributes are for reading; change a value by index.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            keys = ", ".join(map(repr, self)) or "none"
            raise AttributeError(f"the result has no {name!r}; its keys are: {keys}") from None

    def numpy(self) -> NDArray[np.float32]:
        """Return the vectors of an embedding result: f32[texts, dimensions]. Needs NumPy.

        Raises TypeError for another result.
        """
        import numpy as np

        match self:
            case {"shape": [int(rows), int(columns)], "data": list(data)}:
                return np.array(data, np.float32).reshape(rows, columns)
            case _:
                raise TypeError("the result holds no embeddings: it has no `data` with a `shape`")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self]


class Chunk(Result):
    """One event of a stream. `response` is the text that it adds."""

    __slots__ = ()

    @property
    def response(self) -> str:
        """Return this chunk's text, "" when it has none, whichever of the two families the model is
        of.

        Native models send `response`, which some platforms leave out or send as a bare JSON number
        or boolean because the token's text happened to be one. Chat models send `choices`.
        """
        text = self["response"] if "response" in self else self._delta()
        if text is None:
            return ""
        return text if isinstance(text, str) else json.dumps(text)

    def _delta(self) -> Any:
        match self:
            case {"choices": [{"delta": {"content": content}}, *_]}:
                return content
            case _:
                return None


def media_type(headers: Mapping[str, str]) -> str:
    """Return the content type of a reply in lower case, without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(media: str) -> bool:
    return media == "application/json" or media.endswith("+json")


def decode_json(data: bytes | str) -> Any:
    """Decode JSON with every object as a `Result`. Raises `InternalError` for anything else."""
    try:
        return json.loads(data, object_hook=Result)
    except (ValueError, RecursionError) as exc:
        shown = data[:100]
        raise InternalError(f"The platform sent what is not JSON: {shown!r}") from exc
