"""Reasons for which a model cannot be served, as a tree of errors and a record of a start.

ModelProblem
├── ModelNotInstalled   its files were never fetched, or from elsewhere
├── PullError           they could not be fetched
│   └── PullCancelled   the request was cancelled
├── ModelCorrupt        they are not those of the catalog: missing, cut, changed
├── UnsupportedModel    they are whole, but of a kind that cannot be served
└── UnfitSettings       they could be served, but not as this start is told to
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct


class ModelProblem(Exception):
    """The message names the model or file, and says what to do."""

    reason: ClassVar[str] = "it cannot be opened"
    """For whoever may not see this machine's paths."""


class ModelNotInstalled(ModelProblem):
    """The model's files are not here; the message says how to get them."""

    reason = "it is not installed"


class PullError(ModelProblem):
    """The files could not be fetched; the message says what to do next."""

    reason = "it could not be downloaded"


class PullCancelled(PullError):
    """The pull was cancelled before its end."""

    reason = "its download was cancelled"


class ModelCorrupt(ModelProblem):
    """A file is not the catalog's; the message names it and what is wrong."""

    reason = "a file of it is damaged"


class ModelGone(ModelCorrupt):
    """A file of the catalog's is not there."""

    reason = "its files are gone"


class ModelTruncated(ModelCorrupt):
    """A file is shorter than the catalog says."""

    reason = "a file of it is truncated"


class UnsupportedModel(ModelProblem):
    """Files that are whole, but of a kind that Skerry cannot serve; the message says which."""

    reason = "its architecture or format is not supported"


class UnsupportedTemplate(UnsupportedModel):
    """A chat template that does not compile, or is not safe to run."""

    reason = "its chat template cannot be used"


class UnfitSettings(ModelProblem):
    """What this start is told of runner, forms, ranks or memory does not do for the model."""

    reason = "it cannot be opened with these settings"


class LeftOut(Struct, frozen=True):
    """A model that a start has left out: it serves the others."""

    model: str  # id
    reason: str  # `ModelProblem.reason`
    detail: str  # the error's message; may name paths


def left_out_by(model: str, error: Exception) -> LeftOut:
    """Return the record of a model, by id, that an error keeps from being served."""
    reason = error.reason if isinstance(error, ModelProblem) else ModelProblem.reason
    return LeftOut(model, reason, str(error).removeprefix(f"{model}: ").rstrip("."))
