"""Responses that a WebSocket remembers beside the store, whatever `store` says."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.errors import SkerryError
from skerry.wire import Message
from skerry_edge.gate.inside import InsideCall
from skerry_edge.ledger.responses_store import StoredResponse
from skerry_edge.text.body_room import BodyRoom
from skerry_edge.text.prompts import content_text

MESSAGE_BYTES = 512  # of memory, beside its texts


class RecentResponses:
    """The last response of each lane of one connection. Their memory counts as their tenant's
    requests do (`BodyRoom`); where that is full they are not kept."""

    def __init__(self, room: BodyRoom, tenant: str) -> None:
        self._room = room
        self._tenant = tenant
        self._lanes: dict[str, tuple[str, StoredResponse, int]] = {}

    def get(self, id: str) -> StoredResponse | None:
        """Return a response, of whichever lane."""
        return next((stored for known, stored, _ in self._lanes.values() if known == id), None)

    def keep(self, lane: str, id: str, stored: StoredResponse) -> None:
        """Keep a response in place of its lane's last."""
        self._forget(lane)
        size = len(stored.response) + sum(map(_size, stored.messages))
        try:
            self._room.take(self._tenant, size)
        except SkerryError:
            return
        self._lanes[lane] = (id, stored, size)

    def evict(self, lane: str, id: str) -> None:
        """Forget a response of this lane, as what went on from it has failed. Others may still go
        on from another lane's."""
        if lane in self._lanes and self._lanes[lane][0] == id:
            self._forget(lane)

    def clear(self) -> None:
        """Forget all."""
        for lane in list(self._lanes):
            self._forget(lane)

    def _forget(self, lane: str) -> None:
        if (known := self._lanes.pop(lane, None)) is not None:
            self._room.give_back(self._tenant, known[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketCall(InsideCall):
    """A request that came over a WebSocket, in one of its lanes."""

    recent: RecentResponses
    lane: str  # "": that without a name


def _size(message: Message) -> int:
    """Return about how much memory a turn takes, in bytes."""
    calls = sum(len(str(call)) for call in message.tool_calls or ())
    return MESSAGE_BYTES + len(content_text(message)) + calls
