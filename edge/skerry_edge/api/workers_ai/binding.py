"""The wire protocol of a Worker's `env.AI`: one path, the model in a header, no envelope.

    POST /run?version=3              cf-consn-model-id: [prefix:]model
    POST /ai-gateway/run?version=3   the same with a `gateway.id` among the options
    {"inputs": {…}, "options": {…}}

The runtime compares the content type with `application/json` letter by letter; everything else is
handed to the Worker as a stream.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from skerry.errors import InvalidInput
from skerry.wire import RunOptions
from skerry_edge.api.bodies import Body
from skerry_edge.api.edge_request import EdgeRequest, read_json
from skerry_edge.api.gateway_options import apply_options
from skerry_edge.api.workers_ai import native
from skerry_edge.envelopes import BINDING, MODEL_HEADER


class BindingRequest(msgspec.Struct):
    """Body of a call through the binding. Options among the inputs do not count."""

    inputs: msgspec.Raw
    options: RunOptions | None = None


_body = Body(BindingRequest)


async def run(request: EdgeRequest) -> Response:
    """Handle `POST /run` and `POST /ai-gateway/run`."""
    name = request.headers.get(MODEL_HEADER, "").rpartition(":")[2]
    if not name:
        raise InvalidInput(f"Bad input: the header {MODEL_HEADER} names no model")
    spec = request.edge.requested(name)
    asked = await read_json(request, _body)
    options = asked.options or RunOptions()
    if options.gateway is not None:
        apply_options(request, options.gateway)
    return await native.answer(request, spec, bytes(asked.inputs), BINDING, options)
