"""From a configuration and what is there to what is planned. Pure.

Where nothing that is configured changes, the plan is what is there. Else every computed attribute
that is not kept is known only after apply. A value that was configured is never altered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from skerry_terraform.kit.diagnostics import Diagnostics, Key, Path
from skerry_terraform.kit.schema import Attr, Block, Nesting, Schema
from skerry_terraform.kit.values import UNKNOWN, Value, same

Object = dict[str, Any]
Attributes = Mapping[str, Attr]
Blocks = Mapping[str, Block]


@dataclass(frozen=True, slots=True)
class Plan:
    planned: Object
    replace: list[Path]  # what forces another object


def plan_change(schema: Schema, config: Object, prior: Object | None) -> Plan:
    """Plan a change; `prior` is None when nothing is there yet."""
    if prior is None:
        return Plan(_merged(schema.attributes, schema.blocks, config, None, renew=True), [])
    settled = _merged(schema.attributes, schema.blocks, config, prior, renew=False)
    if same(schema.type, settled, prior):
        return Plan(settled, [])
    planned = _merged(schema.attributes, schema.blocks, config, prior, renew=True)
    replace: list[Path] = [
        (name,)
        for name, attr in schema.attributes.items()
        if attr.replace and not same(attr.value_type, planned[name], prior.get(name))
    ]
    return Plan(planned, replace)


def _merged(
    attributes: Attributes, blocks: Blocks, config: Object, prior: Object | None, *, renew: bool
) -> Object:
    """Merge values. `renew`: computed attributes become unknown unless they are kept."""
    before: Object = prior if prior is not None else {}
    planned = {
        name: _attribute(attr, config.get(name), before.get(name), prior is not None, renew)
        for name, attr in attributes.items()
    }
    for name, block in blocks.items():
        planned[name] = _elements(
            block.attributes, block.blocks, block.nesting, config.get(name), before.get(name), renew
        )
    return planned


def _attribute(attr: Attr, config: Value, prior: Value, exists: bool, renew: bool) -> Value:
    if attr.write_only:
        return None
    if config is not None:
        if attr.nested is None:
            return config
        return _elements(attr.nested, {}, attr.nesting, config, prior, renew)
    if attr.has_default:
        return attr.default
    if not attr.computed:
        return None
    return prior if exists and (attr.keep or not renew) else UNKNOWN


def _elements(
    attributes: Attributes,
    blocks: Blocks,
    nesting: Nesting,
    config: Value,
    prior: Value,
    renew: bool,
) -> Value:
    """Return nested objects, each merged with the one that it was before."""
    if config is None or config is UNKNOWN:
        return config

    def merged(element: Value, before: Value) -> Value:
        if element is None or element is UNKNOWN:
            return element
        return _merged(attributes, blocks, element, before, renew=renew)

    match nesting:
        case "single":
            return merged(config, prior)
        case "map":
            before = prior or {}
            return {key: merged(each, before.get(key)) for key, each in config.items()}
        case "list":
            olds = prior or []
            return [
                merged(each, olds[i] if i < len(olds) else None) for i, each in enumerate(config)
            ]
        case "set":
            return [merged(each, _twin(attributes, each, prior or [])) for each in config]


def _twin(attributes: Attributes, element: Value, olds: list[Object]) -> Object | None:
    """Return the element of a set that was configured alike."""
    if element is None or element is UNKNOWN:
        return None
    configured = [name for name in attributes if element.get(name) is not None]
    for old in olds:
        if all(
            same(attributes[name].value_type, element[name], old.get(name)) for name in configured
        ):
            return old
    return None


# --- validation ----------------------------------------------------------------------------------


def validate(schema: Schema, config: Object, diagnostics: Diagnostics) -> None:
    """Run every check on every known value; an unknown one is left out alone."""
    _validate(schema.attributes, schema.blocks, config, (), diagnostics)


def _validate(
    attributes: Attributes, blocks: Blocks, config: Object, path: Path, diagnostics: Diagnostics
) -> None:
    for name, attr in attributes.items():
        value = config.get(name)
        if value is None or value is UNKNOWN:
            continue
        if attr.check is not None and (complaint := attr.check(value)):
            diagnostics.error(f"Invalid value for {name}", complaint, (*path, name))
        if attr.nested is not None:
            for step, element in _known_elements(attr.nesting, value):
                _validate(attr.nested, {}, element, (*path, name, *step), diagnostics)
    for name, block in blocks.items():
        for step, element in _known_elements(block.nesting, config.get(name)):
            _validate(block.attributes, block.blocks, element, (*path, name, *step), diagnostics)


def _known_elements(nesting: Nesting, value: Value) -> Iterator[tuple[Path, Object]]:
    """Yield nested objects, and the step to each. Paths cannot lead into a set."""
    if value is None or value is UNKNOWN:
        return
    steps: list[tuple[Path, Any]]
    match nesting:
        case "single":
            steps = [((), value)]
        case "list":
            steps = [((i,), each) for i, each in enumerate(value)]
        case "set":
            steps = [((), each) for each in value]
        case "map":
            steps = [((Key(key),), each) for key, each in value.items()]
    for step, each in steps:
        if each is not None and each is not UNKNOWN:
            yield step, each
