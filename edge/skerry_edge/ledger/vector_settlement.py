"""What a request that turns texts to vectors used, and its vectors in the response cache."""

from __future__ import annotations

from collections.abc import Sequence

from skerry_edge.answer_headers import AnswerHeaders
from skerry_edge.gate.caller import Caller
from skerry_edge.ledger.repeats import RepeatPolicy, claim
from skerry_edge.ledger.replay import Lookup, look_up
from skerry_edge.ledger.response_cache import StoredAnswer
from skerry_edge.ledger.stores import Stores
from skerry_edge.ledger.usage_journal import UsageEntry
from skerry_edge.ledger.usage_tables import Amount, Outcome
from skerry_regions.models.catalog import ModelSpec


class VectorSettlement:
    """One request's row in the usage journal. `found` are vectors that were kept."""

    def __init__(
        self,
        stores: Stores,
        model: ModelSpec,
        caller: Caller,
        row: str,
        num_tokens: int,
        lookup: Lookup | None,
        found: list[bytes] | None,
    ) -> None:
        self.found = found
        self._stores = stores
        self._model = model
        self._caller = caller
        self._row = row
        self._lookup = lookup
        self._amount = Amount() if found else Amount(prompt_tokens=num_tokens)
        self._entry: UsageEntry | None = None

    def admit(self) -> None:
        """Open the row: the request has its place, or needs none."""
        if self._stores.journal is not None:
            self._entry = self._stores.journal.admit(
                self._row,
                tenant=self._caller.tenant,
                token=self._caller.token,
                model=self._model.id,
                prompt_tokens=self._amount.prompt_tokens,
                price=self._model.price,
            )

    def finish(self, vectors: list[bytes]) -> None:
        """Settle a request whose vectors were all computed, and keep them. Returns at once."""
        self.settle("completed")
        if self._lookup is not None:
            self._lookup.keep(StoredAnswer(vectors=vectors))

    def settle(self, outcome: Outcome) -> None:
        """Settle the row. Does nothing when it was settled before."""
        if self._entry is not None:
            self._entry.settle(outcome, self._amount)


async def open_vectors(
    stores: Stores,
    model: ModelSpec,
    caller: Caller,
    policy: RepeatPolicy | None,
    headers: AnswerHeaders,
    *,
    texts: Sequence[object],
    form: object,
    num_tokens: int,
) -> VectorSettlement:
    """Look for vectors, and use the request's key. Raises `IdempotencyMismatch`.

    `texts` and `form` are plain data that say what is sent, and how.
    """
    row, _ = await claim(stores, caller, policy)
    build = [file.sha256 for file in model.files]
    lookup, found = await look_up(
        stores.cache,
        None if policy is None else policy.cache,
        None if policy is None else policy.idempotency,
        caller,
        headers,
        asked=texts,
        form=(model.id, build, form, len(texts)),
        is_repeatable=True,
        is_whole=lambda answer: bool(answer.vectors),
    )
    vectors = None if found is None else found.vectors
    settlement = VectorSettlement(stores, model, caller, row, num_tokens, lookup, vectors)
    if vectors is not None:
        settlement.admit()
        settlement.settle("cached")
    return settlement
