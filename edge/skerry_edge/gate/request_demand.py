"""What a request may use at most, by which it is let in."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from skerry_edge.gate.caller import Caller
from skerry_edge.money.spending import dollars
from skerry_regions.models.catalog import Price


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDemand:
    """What a request may use at most, by which it is let in."""

    caller: Caller
    model: str  # catalog id
    price: Price
    prompt_tokens: int
    output_tokens: int = 0
    choices: int = 1  # that are computed side by side, of all its prompts
    is_kept: bool = False  # what is computed of its prompt, for a time

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def dollars(self) -> float:
        """Return the most that it can cost, in US$."""
        writes = self.price.writes if self.is_kept else ()
        dearest = max(self.price.prompt, self.price.cached, *writes)
        price = replace(self.price, prompt=dearest)
        return dollars(price, self.prompt_tokens, self.output_tokens)
