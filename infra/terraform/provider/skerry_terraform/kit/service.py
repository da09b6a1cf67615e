"""A provider's answers to Terraform's calls: schemas, configuration, data, ephemerals, functions.

Managed resources are in `managed`. Each method takes a request message and returns a response.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Generic

from skerry_terraform.kit import planning
from skerry_terraform.kit.boundary import decoded, encoded, private_bytes, private_of
from skerry_terraform.kit.diagnostics import Diagnostics, ProviderError
from skerry_terraform.kit.filling import Response, responds, told
from skerry_terraform.kit.managed import ManagedCalls
from skerry_terraform.kit.messages import Message, message
from skerry_terraform.kit.provider import (
    ArgumentError,
    CallContext,
    ClientT,
    Function,
    ObjectKind,
    Provider,
)
from skerry_terraform.kit.schema import type_json
from skerry_terraform.kit.values import decode_msgpack, encode_msgpack

log = logging.getLogger(__name__)


class Service(Generic[ClientT]):
    """One provider, as one run of Terraform sees it. Methods are called from many threads."""

    def __init__(self, provider: Provider[ClientT]) -> None:
        self._provider = provider
        self._prefix = f"{provider.name}_"
        self._resources = self._named(provider.resources)
        self._data_sources = self._named(provider.data_sources)
        self._ephemerals = self._named(provider.ephemerals)
        self._functions = {function.name: function for function in provider.functions}
        self._client: ClientT | None = None
        self._opened: list[tuple[str, bytes]] = []  # ephemerals, by type and private data
        self.stop = threading.Event()
        self.managed = ManagedCalls(self._resources, self.context)

    def _named(self, kinds: Any) -> dict[str, Any]:
        return {self._prefix + kind.name: kind for kind in kinds}

    def context(self, **values: Any) -> CallContext[ClientT]:
        """Raises ProviderError."""
        if self._client is None:
            raise ProviderError("The provider is not configured")
        return CallContext(client=self._client, stop=self.stop, **values)

    # --- what there is ---------------------------------------------------------------------------

    def get_metadata(self, request: Message) -> Message:
        return message(
            "GetMetadataResponse",
            server_capabilities=_capabilities(),
            resources=_type_names(self._resources),
            data_sources=_type_names(self._data_sources),
            ephemeral_resources=_type_names(self._ephemerals),
            functions=[message("FunctionName", name=name) for name in self._functions],
        )

    def get_provider_schema(self, request: Message) -> Message:
        return message(
            "GetProviderSchemaResponse",
            provider=self._provider.schema.message(),
            resource_schemas=_schemas(self._resources),
            data_source_schemas=_schemas(self._data_sources),
            ephemeral_resource_schemas=_schemas(self._ephemerals),
            functions=self._definitions(),
            server_capabilities=_capabilities(),
        )

    def get_functions(self, request: Message) -> Message:
        return message("GetFunctionsResponse", functions=self._definitions())

    def _definitions(self) -> dict[str, Message]:
        return {name: _definition(function) for name, function in self._functions.items()}

    # --- the provider block ----------------------------------------------------------------------

    @responds("ValidateProviderConfigResponse")
    def validate_provider_config(self, request: Message, response: Response) -> None:
        schema = self._provider.schema
        config = decoded(schema.type, request.config)
        planning.validate(schema, config or {}, response.diagnostics)

    @responds("DiagnosticsResponse")
    def configure_provider(self, request: Message, response: Response) -> None:
        self.stop.clear()  # a provider that Terraform did not start outlives its runs
        config = decoded(self._provider.schema.type, request.config)
        self.release()
        self._client = self._provider.configure(config or {}, self.stop)

    def release(self) -> None:
        """Let go of what `configure` has made."""
        client, self._client = self._client, None
        if client is not None:
            self._provider.release(client)

    def stop_provider(self, request: Message) -> Message:
        """Return at once, as this is advice: Terraform waits for the calls that are under way."""
        self.stop.set()
        return message("StopProviderResponse")

    # --- validation ------------------------------------------------------------------------------

    def validate_resource_config(self, request: Message) -> Message:
        return _validated(self._resources, request)

    def validate_data_resource_config(self, request: Message) -> Message:
        return _validated(self._data_sources, request)

    def validate_ephemeral_resource_config(self, request: Message) -> Message:
        return _validated(self._ephemerals, request)

    # --- data sources ----------------------------------------------------------------------------

    @responds("ReadDataSourceResponse")
    def read_data_source(self, request: Message, response: Response) -> None:
        source = self._data_sources[request.type_name]
        config = decoded(source.schema.type, request.config)
        values = source.read(self.context(config=config, diagnostics=response.diagnostics))
        response.fields["state"] = encoded(source.schema.type, values)

    # --- ephemeral resources ---------------------------------------------------------------------

    @responds("OpenEphemeralResourceResponse")
    def open_ephemeral_resource(self, request: Message, response: Response) -> None:
        ephemeral = self._ephemerals[request.type_name]
        config = decoded(ephemeral.schema.type, request.config)
        opened = ephemeral.open(self.context(config=config, diagnostics=response.diagnostics))
        private = private_bytes(opened.private)
        self._opened.append((request.type_name, private))
        result = encoded(ephemeral.schema.type, opened.result)
        response.fields |= {"result": result, "private": private}

    @responds("DiagnosticsResponse")
    def close_ephemeral_resource(self, request: Message, response: Response) -> None:
        ctx = self.context(private=private_of(request.private), diagnostics=response.diagnostics)
        self._ephemerals[request.type_name].close(ctx)
        self._forget_opened(request.type_name, request.private)

    def close_opened(self) -> None:
        """Close what could not be closed before, and what a killed Terraform leaves open."""
        for type_name, private in [*self._opened]:
            answer = self.close_ephemeral_resource(
                message("EphemeralResourceRequest", type_name=type_name, private=private)
            )
            for trouble in answer.diagnostics:
                log.error("%s %s", trouble.summary, trouble.detail)

    def _forget_opened(self, type_name: str, private: bytes) -> None:
        if (type_name, private) in self._opened:
            self._opened.remove((type_name, private))

    # --- functions -------------------------------------------------------------------------------

    def call_function(self, request: Message) -> Message:
        function = self._functions[request.name]
        try:
            values = [
                decode_msgpack(type_, given.msgpack)
                for (_, type_, _), given in zip(
                    function.parameters, request.arguments, strict=True
                )
            ]  # fmt: skip
            result = encode_msgpack(function.returns, function.call(*values))
        except ArgumentError as error:
            refusal = message("FunctionError", text=str(error), function_argument=error.index)
            return message("CallFunctionResponse", error=refusal)
        except Exception as error:
            refusal = message("FunctionError", text=f"a bug in the provider: {error!r}")
            return message("CallFunctionResponse", error=refusal)
        return message("CallFunctionResponse", result=message("DynamicValue", msgpack=result))


def _validated(kinds: Mapping[str, ObjectKind[Any]], request: Message) -> Message:
    kind, diagnostics = kinds[request.type_name], Diagnostics()
    with told(diagnostics):
        config = decoded(kind.schema.type, request.config) or {}
        planning.validate(kind.schema, config, diagnostics)
        kind.validate(config, diagnostics)
    return message("DiagnosticsResponse", diagnostics=diagnostics.messages())


def _capabilities() -> Message:
    return message("ServerCapabilities", get_provider_schema_optional=True)


def _type_names(kinds: Mapping[str, Any]) -> list[Message]:
    return [message("TypeName", type_name=name) for name in kinds]


def _schemas(kinds: Mapping[str, ObjectKind[Any]]) -> dict[str, Message]:
    return {name: kind.schema.message() for name, kind in kinds.items()}


def _definition(function: Function) -> Message:
    parameters = [
        message("Parameter", name=name, type=type_json(type_), description=doc)
        for name, type_, doc in function.parameters
    ]
    returns = message("Return", type=type_json(function.returns))
    return message(
        "FunctionDefinition",
        parameters=parameters,
        summary=function.doc,
        description=function.doc,
        **{"return": returns},
    )
