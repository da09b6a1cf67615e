"""Which models a token may run."""

from __future__ import annotations

from skerry.errors import PermissionDenied
from skerry_regions.access import allows_model
from skerry_regions.models.catalog import ModelSpec


def check_model(model: ModelSpec, granted: tuple[tuple[str, ...], ...]) -> None:
    """Raise PermissionDenied for a model that the token `may_run` not."""
    if not may_run(model, granted):
        raise PermissionDenied(f"This API token may not run the model {model.id}.")


def may_run(model: ModelSpec, granted: tuple[tuple[str, ...], ...]) -> bool:
    """Return whether a model is among the patterns of each grant."""
    return all(allows_model(patterns, (model.id, *model.aliases)) for patterns in granted)
