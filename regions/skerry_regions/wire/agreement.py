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


def agree(ours: Hello, theirs: Hello) -> Agreement | str:
    """Return the terms of a connection, or why there can be none."""
    common = set(ours.versions) & set(theirs.versions)
    if not common:
        return f"no common protocol version: we speak {ours.versions}, they {theirs.versions}"
    known = {model.id: model for model in ours.models}
    pairs = [(known[model.id], model) for model in theirs.models if model.id in known]
    return Agreement(
        version=max(common),
        max_streams=min(ours.max_streams, theirs.max_streams),
        window=min(ours.window, theirs.window),
        models=frozenset(mine.id for mine, other in pairs if _mean_the_same(mine, other)),
    )


def _mean_the_same(ours: ModelBuild, theirs: ModelBuild) -> bool:
    """Return whether token ids of one side mean the same to the other.

    Numeric builds are compared when both sides name one: an edge that leaves it open takes any.
    """
    builds = {ours.numeric_build, theirs.numeric_build} - {""}
    texts = ours.tokenizer, ours.template
    return texts == (theirs.tokenizer, theirs.template) and len(builds) < 2
