"""What an edge remembers of requests: answers, idempotency keys, usage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from skerry_edge.ledger.idempotency import IdempotencyKeys, RequestKeys
from skerry_edge.ledger.response_cache import MAX_TTL_SECONDS, AnswerCache, ResponseCache
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.whole_numbers import whole_number

CACHE_TTL_VARIABLE = "SKERRY_CACHE_TTL"
CHAINS_VARIABLE = "SKERRY_USAGE_CHAINS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The files of one edge; None is a store that this edge does without."""

    cache: AnswerCache | None = None
    cache_ttl: int | None = None  # seconds, for requests that say nothing of the cache
    idempotency: RequestKeys | None = None
    journal: UsageJournal | None = None

    @classmethod
    def in_folder(
        cls,
        folder: Path,
        *,
        edge: str,
        cache_ttl: int | None = None,
        keeps_chains: bool = True,
        idempotency: RequestKeys | None = None,
        share_answers: Callable[[AnswerCache], AnswerCache] = lambda own: own,
    ) -> Stores:
        """Return files that the edges of a zone may share; `edge` is the id of this one. Keys are
        in one of them, too, unless `idempotency` has them. `share_answers` puts a cache of several
        homes behind the file."""
        return cls(
            cache=share_answers(ResponseCache(folder / "answers.db")),
            cache_ttl=cache_ttl,
            idempotency=idempotency or IdempotencyKeys(folder / "idempotency.db"),
            journal=UsageJournal(folder / "usage.db", edge=edge, keeps_chains=keeps_chains),
        )

    def close(self) -> None:
        """Write what is still to be written. Blocks; nothing may be given to a store after it."""
        for store in (self.cache, self.idempotency, self.journal):
            if store is not None:
                store.close()


def cache_ttl_from(environ: Mapping[str, str]) -> int | None:
    """Return the operator's default. Raises ValueError."""
    given = environ.get(CACHE_TTL_VARIABLE, "").strip()
    if not given:
        return None
    seconds = whole_number(given, 1, MAX_TTL_SECONDS)
    if seconds is None:
        raise ValueError(
            f"{CACHE_TTL_VARIABLE} must be whole seconds, 1 to {MAX_TTL_SECONDS}, not {given!r}"
        )
    return seconds


def keeps_chains(environ: Mapping[str, str]) -> bool:
    """Return whether the journal is to have prompts' chains, as it has unless the operator says
    `0`. Raises ValueError."""
    given = environ.get(CHAINS_VARIABLE, "").strip()
    if given not in ("", "0", "1"):
        raise ValueError(f"{CHAINS_VARIABLE} must be 0 or 1, not {given!r}")
    return given != "0"
