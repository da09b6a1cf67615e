"""What two ends of a connection agree on, from their `Hello`s."""

from __future__ import annotations

from dataclasses import dataclass

from skerry_regions.wire.protocol import Hello, ModelBuild


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What two `Hello`s add up to."""

    version: int
    max_streams: int
    window: int  # Tokens events per stream
    models: frozenset[str]  # ids that both know under the same tokenizer and template
    mismatches: tuple[str, ...]  # one sentence for each model that both know differently


def agree(ours: Hello, theirs: Hello) -> Agreement | str:
    """Return the terms of a connection, or why there can be none."""
    common = set(ours.versions) & set(theirs.versions)
    if not common:
        return f"no common protocol version: we speak {ours.versions}, they {theirs.versions}"
    known = {model.id: model for model in ours.models}
    pairs = [(known[model.id], model) for model in theirs.models if model.id in known]
    mismatches = {mine.id: why for mine, other in pairs if (why := _mismatch(mine, other))}
    return Agreement(
        version=max(common),
        max_streams=min(ours.max_streams, theirs.max_streams),
        window=min(ours.window, theirs.window),
        models=frozenset(mine.id for mine, _ in pairs) - mismatches.keys(),
        mismatches=tuple(mismatches.values()),
    )


def _mismatch(ours: ModelBuild, theirs: ModelBuild) -> str | None:
    """Return why token ids of one side mean something else to the other; None when they do not.

    Numeric builds are compared when both sides name one: an edge that leaves it open takes any.
    """
    for name in ("tokenizer", "template", "numeric_build"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        if mine != other and (name != "numeric_build" or (mine and other)):
            return f"{ours.id}: our {name} is {mine!r}, theirs is {other!r}"
    return None
