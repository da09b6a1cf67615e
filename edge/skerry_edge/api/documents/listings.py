"""Lists of models in both dialects: only those that are served here, under every name they have."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from skerry.errors import InvalidInput
from skerry.wire.openai import ModelCard, ModelList
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.envelopes import JSONBytes, encode, envelope, page_info
from skerry_edge.gate.grants import check_model, may_run
from skerry_edge.generation.edge import Edge
from skerry_edge.whole_numbers import whole_number
from skerry_regions.models.catalog import ModelSpec

DEFAULT_PER_PAGE = 50
MAX_PER_PAGE = 1000
MAX_PAGE = 1_000_000
TASKS = {
    "text-generation": (
        "Text Generation",
        "Family of generative text models, such as large language models (LLM), that can be "
        "adapted for a variety of natural language tasks.",
    ),
    "text-embeddings": (
        "Text Embeddings",
        "Feature extraction models transform raw data into numerical features that can be "
        "processed while preserving the information in the original dataset.",
    ),
    "text-classification": (
        "Text Classification",
        "Sentiment analysis or text classification is a common NLP task that classifies a text "
        "input into labels or classes.",
    ),
}


async def search_models(request: EdgeRequest) -> Response:
    """Handle `GET …/ai/models/search`: filters `search`, `task` and `author`; pages until one is
    empty."""
    query = request.query_params
    page = _positive(query.get("page"), 1, MAX_PAGE, "page")
    per_page = _positive(query.get("per_page"), DEFAULT_PER_PAGE, MAX_PER_PAGE, "per_page")
    filters = [query.get(name, "") for name in ("search", "task", "author")]
    items = [
        _item(request.edge, name, spec)
        for name, spec in _names(request)
        if _matches(name, spec, *filters)
    ]
    shown = items[(page - 1) * per_page : page * per_page]
    return JSONBytes(
        encode(
            {
                "result": shown,
                "success": True,
                "errors": [],
                "messages": [],
                "result_info": page_info(len(shown), page, per_page, len(items)),
            }
        )
    )


async def search_authors(request: EdgeRequest) -> Response:
    """Handle `GET …/ai/authors/search`: who made the models that are listed."""
    authors = sorted({_author(name) for name, _ in _names(request)})
    return JSONBytes(envelope(encode([{"name": author} for author in authors])))


async def search_tasks(request: EdgeRequest) -> Response:
    """Handle `GET …/ai/tasks/search`: what the models that are listed can do."""
    tasks = sorted({spec.task for _, spec in _names(request)})
    return JSONBytes(envelope(encode([_task(task) for task in tasks])))


async def list_models(request: EdgeRequest) -> Response:
    """Handle `GET …/v1/models`."""
    cards = [_card(request.edge, name, spec) for name, spec in _names(request)]
    return JSONBytes(encode(ModelList("list", cards)))


async def get_model(request: EdgeRequest) -> Response:
    """Handle `GET …/v1/models/{id}`. The id keeps the name that was requested."""
    edge, name = request.edge, request.path_params["model"]
    spec = edge.spec(name)
    check_model(spec, request.principal.models)
    return JSONBytes(encode(_card(edge, name, spec)))


def _names(request: EdgeRequest) -> Iterator[tuple[str, ModelSpec]]:
    """Yield the names of each served model that the caller's token may run."""
    granted = request.principal.models
    for spec in request.edge.served_specs():
        if may_run(spec, granted):
            yield from ((name, spec) for name in (spec.id, *spec.aliases))


def _card(edge: Edge, name: str, spec: ModelSpec) -> ModelCard:
    created = int(_created(spec).timestamp())
    return ModelCard(name, "model", created, _author(name), _reasons(edge, spec))


def _abilities(edge: Edge, spec: ModelSpec) -> list[str]:
    thinks = ["reasoning"] if _reasons(edge, spec) else []
    return [*dict.fromkeys([*spec.capabilities, *thinks])]


def _reasons(edge: Edge, spec: ModelSpec) -> bool:
    text = edge.texts.get(spec.id)
    return text is not None and text.family.reasoning is not None


def _author(name: str) -> str:
    return name.removeprefix("@cf/").removeprefix("@hf/").split("/")[0]


def _matches(name: str, spec: ModelSpec, search: str, task: str, author: str) -> bool:
    if author and author.lower() != _author(name).lower():
        return False
    if task and task.lower() not in (spec.task, TASKS[spec.task][0].lower()):
        return False
    return search.lower() in name.lower()


def _item(edge: Edge, name: str, spec: ModelSpec) -> dict[str, Any]:
    """Return one model as upstream lists it: property values are strings, prices a list."""
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, name)),
        "source": 1,
        "name": name,
        "description": spec.description,
        "task": _task(spec.task),
        "created_at": _created(spec).strftime("%Y-%m-%d %H:%M:%S.000"),
        "tags": [],
        "properties": [
            {"property_id": "context_window", "value": str(spec.context_window)},
            {"property_id": "price", "value": _prices(spec)},
            *_encoder_properties(spec),
            *({"property_id": each, "value": "true"} for each in _abilities(edge, spec)),
        ],
    }


def _task(task: str) -> dict[str, Any]:
    title, description = TASKS[task]
    identity = str(uuid.uuid5(uuid.NAMESPACE_URL, task))
    return {"id": identity, "name": title, "description": description}


def _encoder_properties(spec: ModelSpec) -> list[dict[str, Any]]:
    values: dict[str, int] = {}
    if spec.is_encoder:
        values["max_input_tokens"] = spec.context_window
    if spec.embedding is not None:
        values["output_dimensions"] = spec.embedding.dimensions
    return [{"property_id": name, "value": str(value)} for name, value in values.items()]


def _prices(spec: ModelSpec) -> list[dict[str, Any]]:
    if spec.is_encoder:
        return [{"unit": "per M input tokens", "price": spec.price.prompt, "currency": "USD"}]
    per_million = {
        "input tokens": spec.price.prompt,
        "cached input tokens": spec.price.cached,
        "output tokens": spec.price.output,
    }
    return [
        {"unit": f"per M {what}", "price": price, "currency": "USD"}
        for what, price in per_million.items()
    ]


def _created(spec: ModelSpec) -> datetime.datetime:
    date = spec.created or datetime.date(1970, 1, 1)
    return datetime.datetime.combine(date, datetime.time(), datetime.UTC)


def _positive(value: str | None, default: int, largest: int, name: str) -> int:
    if value is None or value == "":
        return default
    number = whole_number(value, 1, largest)
    if number is None:
        raise InvalidInput(f"Bad input: {name}: expected a number from 1 to {largest}", param=name)
    return number
