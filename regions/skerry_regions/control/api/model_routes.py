"""Models of the control plane's machine over HTTP: what is there, jobs that get more, removal."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from skerry_regions.control.api.requests import (
    actor_of,
    asked_of,
    control_of,
    json_answer,
    note,
    page_answer,
)
from skerry_regions.control.desired.views import ModelRequest


async def list_models(request: Request) -> Response:
    known = request.query_params.get("known", "") == "1"
    models = await control_of(request).models.views(_wanted(request), known=known)
    return page_answer(request, models)


async def get_model(request: Request) -> Response:
    models, name = control_of(request).models, request.path_params["id"]
    return json_answer(await models.view(name, _wanted(request)))


async def install(request: Request) -> Response:
    """Begin a job that gets a model, and note who wanted it."""
    asked = await asked_of(request, ModelRequest)
    job = await control_of(request).models.begin(asked, actor_of(request))
    await note(request, asked.action, "model", job.model, {"source": [None, asked.source]})
    return json_answer(job, 202)


async def remove_model(request: Request) -> Response:
    name = request.path_params["id"]
    await control_of(request).models.remove(name, _wanted(request))
    await note(request, "delete", "model", name, {})
    return Response(status_code=204)


async def list_jobs(request: Request) -> Response:
    return page_answer(request, control_of(request).models.jobs())


async def cancel_job(request: Request) -> Response:
    models, id = control_of(request).models, request.path_params["id"]
    job = models.cancel(id, _wanted(request))
    await note(request, "cancel", "model", job.model, {})
    return json_answer(job, 202)


def _wanted(request: Request) -> Mapping[str, str]:
    """Return the names of models that pools want, by the pools' ids."""
    desired = control_of(request).store.desired
    names = ((pool, desired.model_of(pool)) for pool in desired.pools())
    return {pool: name for pool, name in names if name is not None}
