"""The messages of Terraform's plugin protocol 6, and of the plugin system below it.

A table of field names and numbers, turned into protobuf classes when this module is imported: no
generated code. Numbers and types are those of protocol 6.8; later minor versions only add to it.
All fields are optional in the sense of proto2, which is the same on the wire: what is unset is
absent. An enum is an integer, `map:X` a map from text to X.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Message = Any  # classes made at runtime have no types

PACKAGE = "kit.tfplugin6"  # ours: the process may load another's definitions, too
DIAGNOSTICS = "*Diagnostic"

FIELDS: dict[str, dict[str, tuple[str, int]]] = {
    "Empty": {},
    "StdioData": {"channel": ("int64", 1), "data": ("bytes", 2)},
    "DynamicValue": {"msgpack": ("bytes", 1), "json": ("bytes", 2)},
    "Diagnostic": {
        "severity": ("int64", 1), "summary": ("string", 2), "detail": ("string", 3),
        "attribute": ("AttributePath", 4),
    },
    "FunctionError": {"text": ("string", 1), "function_argument": ("int64", 2)},
    "AttributePath": {"steps": ("*Step", 1)},
    "Step": {
        "attribute_name": ("string", 1), "element_key_string": ("string", 2),
        "element_key_int": ("int64", 3),
    },
    "RawState": {"json": ("bytes", 1)},
    "Schema": {"version": ("int64", 1), "block": ("Block", 2)},
    "Block": {
        "version": ("int64", 1), "attributes": ("*Attribute", 2),
        "block_types": ("*NestedBlock", 3), "description": ("string", 4),
        "description_kind": ("int64", 5), "deprecated": ("bool", 6),
    },
    "Attribute": {
        "name": ("string", 1), "type": ("bytes", 2), "description": ("string", 3),
        "required": ("bool", 4), "optional": ("bool", 5), "computed": ("bool", 6),
        "sensitive": ("bool", 7), "description_kind": ("int64", 8), "deprecated": ("bool", 9),
        "nested_type": ("Object", 10), "write_only": ("bool", 11),
    },
    "NestedBlock": {
        "type_name": ("string", 1), "block": ("Block", 2), "nesting": ("int64", 3),
        "min_items": ("int64", 4), "max_items": ("int64", 5),
    },
    "Object": {"attributes": ("*Attribute", 1), "nesting": ("int64", 3)},
    "FunctionDefinition": {
        "parameters": ("*Parameter", 1), "variadic_parameter": ("Parameter", 2),
        "return": ("Return", 3), "summary": ("string", 4), "description": ("string", 5),
        "description_kind": ("int64", 6), "deprecation_message": ("string", 7),
    },
    "Parameter": {
        "name": ("string", 1), "type": ("bytes", 2), "allow_null_value": ("bool", 3),
        "allow_unknown_values": ("bool", 4), "description": ("string", 5),
        "description_kind": ("int64", 6),
    },
    "Return": {"type": ("bytes", 1)},
    "ServerCapabilities": {
        "plan_destroy": ("bool", 1), "get_provider_schema_optional": ("bool", 2),
        "move_resource_state": ("bool", 3),
    },
    "TypeName": {"type_name": ("string", 1)},
    "FunctionName": {"name": ("string", 1)},
    "GetMetadataResponse": {
        "server_capabilities": ("ServerCapabilities", 1), "diagnostics": (DIAGNOSTICS, 2),
        "data_sources": ("*TypeName", 3), "resources": ("*TypeName", 4),
        "functions": ("*FunctionName", 5), "ephemeral_resources": ("*TypeName", 6),
    },
    "GetProviderSchemaResponse": {
        "provider": ("Schema", 1), "resource_schemas": ("map:Schema", 2),
        "data_source_schemas": ("map:Schema", 3), "diagnostics": (DIAGNOSTICS, 4),
        "provider_meta": ("Schema", 5), "server_capabilities": ("ServerCapabilities", 6),
        "functions": ("map:FunctionDefinition", 7),
        "ephemeral_resource_schemas": ("map:Schema", 8),
    },
    "ValidateProviderConfigRequest": {"config": ("DynamicValue", 1)},
    "ValidateProviderConfigResponse": {"diagnostics": (DIAGNOSTICS, 2)},
    "ConfigureProviderRequest": {
        "terraform_version": ("string", 1), "config": ("DynamicValue", 2),
    },
    "DiagnosticsResponse": {"diagnostics": (DIAGNOSTICS, 1)},
    "ConfigRequest": {"type_name": ("string", 1), "config": ("DynamicValue", 2)},
    "UpgradeResourceStateRequest": {
        "type_name": ("string", 1), "version": ("int64", 2), "raw_state": ("RawState", 3),
    },
    "UpgradeResourceStateResponse": {
        "upgraded_state": ("DynamicValue", 1), "diagnostics": (DIAGNOSTICS, 2),
    },
    "ReadResourceRequest": {
        "type_name": ("string", 1), "current_state": ("DynamicValue", 2), "private": ("bytes", 3),
    },
    "ReadResourceResponse": {
        "new_state": ("DynamicValue", 1), "diagnostics": (DIAGNOSTICS, 2), "private": ("bytes", 3),
    },
    "PlanResourceChangeRequest": {
        "type_name": ("string", 1), "prior_state": ("DynamicValue", 2),
        "proposed_new_state": ("DynamicValue", 3), "config": ("DynamicValue", 4),
        "prior_private": ("bytes", 5),
    },
    "PlanResourceChangeResponse": {
        "planned_state": ("DynamicValue", 1), "requires_replace": ("*AttributePath", 2),
        "planned_private": ("bytes", 3), "diagnostics": (DIAGNOSTICS, 4),
    },
    "ApplyResourceChangeRequest": {
        "type_name": ("string", 1), "prior_state": ("DynamicValue", 2),
        "planned_state": ("DynamicValue", 3), "config": ("DynamicValue", 4),
        "planned_private": ("bytes", 5),
    },
    "ApplyResourceChangeResponse": {
        "new_state": ("DynamicValue", 1), "private": ("bytes", 2), "diagnostics": (DIAGNOSTICS, 3),
    },
    "ImportResourceStateRequest": {"type_name": ("string", 1), "id": ("string", 2)},
    "ImportedResource": {
        "type_name": ("string", 1), "state": ("DynamicValue", 2), "private": ("bytes", 3),
    },
    "ImportResourceStateResponse": {
        "imported_resources": ("*ImportedResource", 1), "diagnostics": (DIAGNOSTICS, 2),
    },
    "ReadDataSourceResponse": {"state": ("DynamicValue", 1), "diagnostics": (DIAGNOSTICS, 2)},
    "OpenEphemeralResourceResponse": {
        "diagnostics": (DIAGNOSTICS, 1), "result": ("DynamicValue", 3), "private": ("bytes", 4),
    },
    "EphemeralResourceRequest": {"type_name": ("string", 1), "private": ("bytes", 2)},
    "GetFunctionsResponse": {
        "functions": ("map:FunctionDefinition", 1), "diagnostics": (DIAGNOSTICS, 2),
    },
    "CallFunctionRequest": {"name": ("string", 1), "arguments": ("*DynamicValue", 2)},
    "CallFunctionResponse": {"result": ("DynamicValue", 1), "error": ("FunctionError", 2)},
    "StopProviderResponse": {"Error": ("string", 1)},
}  # fmt: skip

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int64": _Field.TYPE_INT64,
}


def _classes() -> dict[str, Message]:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{PACKAGE}.proto", package=PACKAGE, syntax="proto2"
    )
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (type_, number) in fields.items():
            _add_field(message, field, type_, number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in FIELDS
    }


def _add_field(message: Message, name: str, type_: str, number: int) -> None:
    repeated = type_.startswith(("*", "map:"))
    label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, label=label)
    if type_.startswith("map:"):
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", "string", 1)
        _add_field(entry, "value", type_.removeprefix("map:"), 2)
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{message.name}.{entry.name}"
    elif (element := type_.removeprefix("*")) in _SCALARS:
        field.type = _SCALARS[element]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{element}"


MESSAGES = _classes()


def message(name: str, /, **fields: Any) -> Message:
    """Return a new message. Fields that are None stay unset."""
    return MESSAGES[name](**{key: value for key, value in fields.items() if value is not None})
