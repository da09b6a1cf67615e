"""One tenant's pile of hostile grammars: another's small schema waits for one of them at most."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.core.byte_grammars import END, VOCAB, write_byte_tokenizer

from skerry.errors import InvalidInput, RateLimited, SkerryError
from skerry_regions.node.grammar.grammars import Grammars
from skerry_regions.node.grammar.trial import GrammarVocabulary
from skerry_regions.wire.protocol import GrammarSpec

SMALL = GrammarSpec(kind="json_schema", source='{"type": "boolean"}')


def hostile(number: int) -> GrammarSpec:
    """A schema of 1.2 KB whose automaton is the product of 27 others."""
    patterns = [{"pattern": f"a.{{{n}}}b"} for n in range(10, 37)]
    schema = {"type": "string", "minLength": number, "allOf": patterns}
    return GrammarSpec(kind="json_schema", source=json.dumps(schema))


async def outcome(grammars: Grammars, grammar: GrammarSpec, tenant: bytes) -> type[SkerryError]:
    try:
        await grammars.matcher(grammar, cache_key=tenant, output_ids=())
    except SkerryError as error:
        return type(error)
    raise AssertionError("a hostile grammar was compiled")


def test_forty_hostile_grammars_cost_another_tenant_one(tmp_path: Path) -> None:
    file = write_byte_tokenizer(tmp_path / "tokenizer.json")

    async def main() -> None:
        grammars = Grammars(GrammarVocabulary(file, VOCAB, (END,)))
        pile = [
            asyncio.create_task(outcome(grammars, hostile(number), b"loud")) for number in range(40)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await grammars.matcher(SMALL, cache_key=b"quiet", output_ids=())
        tried = [each.result() for each in pile if each.done()]
        assert tried.count(InvalidInput) <= 1  # the one that was in work
        outcomes = await asyncio.gather(*pile)
        assert outcomes.count(InvalidInput) == 1  # killed …
        assert outcomes.count(RateLimited) == 39  # … and its tenant pauses
        await grammars.close()

    asyncio.run(main())
