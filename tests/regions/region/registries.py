"""A registry in memory, and who is told of its changes."""

from __future__ import annotations

from tests.regions.toy_nodes import MODEL, RunningNode, until

from skerry_regions.registry import Member, RegistryUnavailable


class MemoryRegistry:
    """A registry in memory that can be away."""

    def __init__(self) -> None:
        self.record: dict[str, Member] = {}
        self.is_away = False
        self.num_readings = 0

    def announce(self, member: Member, lease_seconds: float = 3.0) -> int:
        self._check()
        self.record[member.id] = member
        return member.incarnation

    def withdraw(self, member_id: str, incarnation: int) -> None:
        self._check()
        self.record.pop(member_id, None)

    def members(self) -> list[Member]:
        self.num_readings += 1
        self._check()
        return list(self.record.values())

    def close(self) -> None: ...

    async def was_read(self) -> None:
        """Wait until a reading that begins from now on has been taken in, and the next begins."""
        enough = self.num_readings + 2
        await until(lambda: self.num_readings >= enough)

    def _check(self) -> None:
        if self.is_away:
            raise RegistryUnavailable("away")


def member(node: RunningNode) -> Member:
    return Member(
        id=node.node.id, kind="node", region="here", address=str(node.address), model=MODEL
    )
