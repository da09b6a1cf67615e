"""The kit's calls: what Terraform is answered, whatever a provider does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.infra.terraform.kit.echo import Echo, Store, echo_provider

from skerry_terraform.kit.messages import Message, message
from skerry_terraform.kit.service import Service
from skerry_terraform.kit.values import NUMBER, UNKNOWN, decode_msgpack, encode_msgpack

TYPE = Echo.schema.type


def dynamic(value: Any) -> Message:
    return message("DynamicValue", msgpack=encode_msgpack(TYPE, value))


def echo(**values: Any) -> dict[str, Any]:
    return dict.fromkeys(TYPE.attributes) | {"part": []} | values


def told(answer: Message) -> list[tuple[str, str]]:
    return [(each.summary, each.detail.split("\n")[0]) for each in answer.diagnostics]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def service(store: Store) -> Service[Store]:
    service = Service(echo_provider(store))
    config = message("DynamicValue", msgpack=msgspec.msgpack.encode({"broken": None}))
    answer = service.configure_provider(message("ConfigureProviderRequest", config=config))
    assert told(answer) == []
    return service


def plan(service: Service[Store], prior: Any, config: Any) -> Message:
    return service.managed.plan(
        message(
            "PlanResourceChangeRequest",
            type_name="skerry_echo",
            prior_state=dynamic(prior),
            proposed_new_state=dynamic(config),
            config=dynamic(config),
        )
    )


def apply(service: Service[Store], prior: Any, config: Any) -> Message:
    """Plan and apply."""
    if config is None:
        planned = message("PlanResourceChangeResponse", planned_state=dynamic(None))
    else:
        planned = plan(service, prior, config)
        assert told(planned) == []
    return service.managed.apply(
        message(
            "ApplyResourceChangeRequest",
            type_name="skerry_echo",
            prior_state=dynamic(prior),
            planned_state=planned.planned_state,
            config=dynamic(config),
            planned_private=planned.planned_private,
        )
    )


def state_of(value: Message) -> Any:
    return decode_msgpack(TYPE, value.msgpack)


def test_create_update_delete(service: Service[Store], store: Store) -> None:
    made = apply(service, None, echo(text="a", point={"x": 1, "kind": None}, secret_wo="s"))
    state = state_of(made.new_state)
    assert state == store.objects[state["id"]] | {"secret_wo": None}
    assert state["point"] == {"x": 1, "kind": "flat"}
    assert (store.secrets, made.private) == (["s"], b'{"writes":1}')

    changed = state_of(apply(service, state, echo(text="b")).new_state)
    assert (changed["id"], changed["text"]) == (state["id"], "b")

    gone = apply(service, changed, None)
    assert (state_of(gone.new_state), store.objects) == (None, {})


@pytest.mark.parametrize(
    ("fails", "summary"),
    [
        ("before", ("Refused", "before it existed")),
        ("after", ("Failed", "after it existed")),
        ("bug", ("A bug in the provider", "ZeroDivisionError: a slip")),
        (
            "unknown",
            ("A bug in the provider", "ValueMismatch: a value is still unknown after apply"),
        ),
        (
            "type",
            ("A bug in the provider", "ValueMismatch: expected a number at number, got str"),
        ),
    ],
)
def test_what_exists_is_never_forgotten(
    service: Service[Store], store: Store, fails: str, summary: tuple[str, str]
) -> None:
    answer = apply(service, None, echo(text="a", fails=fails))
    state = state_of(answer.new_state)
    assert told(answer) == [summary]
    assert [state["id"]] == [*store.objects] if fails != "before" else state is None


def test_a_failed_update_and_a_failed_delete_keep_the_state(service: Service[Store]) -> None:
    state = state_of(apply(service, None, echo(text="sticky")).new_state)
    failed = apply(service, state, echo(text="new", fails="before"))
    assert state_of(failed.new_state) == state
    (diagnostic,) = failed.diagnostics
    assert diagnostic.attribute.steps[0].attribute_name == "fails"
    kept = apply(service, state, None)
    assert (told(kept), state_of(kept.new_state)) == ([("It stays", "")], state)


def test_read_finds_drift_and_loss(service: Service[Store], store: Store) -> None:
    state = state_of(apply(service, None, echo(text="a")).new_state)

    def read() -> Any:
        request = message(
            "ReadResourceRequest",
            type_name="skerry_echo", current_state=dynamic(state), private=b'{"etag":"1"}',
        )  # fmt: skip
        answer = service.managed.read(request)
        assert (told(answer), answer.private) == ([], b'{"etag":"1"}')
        return state_of(answer.new_state)

    store.objects[state["id"]]["number"] = 0.1
    assert read()["number"] == 0.1
    store.objects.clear()
    assert read() is None


@pytest.mark.parametrize(
    ("version", "text", "complaint"),
    [
        (2, "t", []),
        (1, "old", []),
        (3, None, [("The state was written by a newer provider", "It has version 3 of skerry_echo,"
                    " and this provider knows version 2. Use the newer provider.")]),
    ],
)  # fmt: skip
def test_states_of_other_versions(
    service: Service[Store], version: int, text: str | None, complaint: list[Any]
) -> None:
    raw = message("RawState", json=b'{"id": "i", "title": "old", "text": "t", "number": 0.1}')
    answer = service.managed.upgrade(
        message(
            "UpgradeResourceStateRequest",
            type_name="skerry_echo", version=version, raw_state=raw,
        )
    )  # fmt: skip
    assert told(answer) == complaint
    if text is not None:
        state = state_of(answer.upgraded_state)
        assert (state["text"], state["number"], state["part"]) == (text, 0.1, None)


def test_import_and_its_failure(service: Service[Store]) -> None:
    state = state_of(apply(service, None, echo(text="a")).new_state)

    def import_(id: str) -> Message:
        request = message("ImportResourceStateRequest", type_name="skerry_echo", id=id)
        return service.managed.import_(request)

    (imported,) = import_(state["id"]).imported_resources
    assert state_of(imported.state)["text"] == "a"
    assert told(import_("none")) == [("A bug in the provider", "KeyError: 'none'")]


def test_validation_warns_too(service: Service[Store]) -> None:
    request = message("ConfigRequest", type_name="skerry_echo", config=dynamic(
        echo(text="doubtful", fails="later", number=UNKNOWN)
    ))  # fmt: skip
    answer = service.validate_resource_config(request)
    assert [(each.severity, each.summary) for each in answer.diagnostics] == [
        (1, "Invalid value for fails"),
        (2, "Doubtful"),
    ]


def test_an_ephemeral_is_opened_and_closed(service: Service[Store], store: Store) -> None:
    empty = message("DynamicValue", msgpack=msgspec.msgpack.encode({"value": None}))
    request = message("ConfigRequest", type_name="skerry_key", config=empty)
    opened = service.open_ephemeral_resource(request)
    assert store.opened == ["key-0"]
    service.close_ephemeral_resource(
        message("EphemeralResourceRequest", type_name="skerry_key", private=opened.private)
    )
    assert store.opened == []

    service.open_ephemeral_resource(request)
    service.close_opened()  # Terraform was killed
    assert store.opened == []


def test_an_ephemeral_that_could_not_be_closed_is_closed_at_the_end(
    service: Service[Store], store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    empty = message("DynamicValue", msgpack=msgspec.msgpack.encode({"value": None}))
    request = message("ConfigRequest", type_name="skerry_key", config=empty)
    opened = service.open_ephemeral_resource(request)
    store.is_away = True
    closing = message("EphemeralResourceRequest", type_name="skerry_key", private=opened.private)
    assert told(service.close_ephemeral_resource(closing)) == [("Away", "key-0 stays")]
    service.close_opened()
    assert caplog.messages == ["Away key-0 stays"]
    store.is_away = False
    service.close_opened()
    assert store.opened == []


def test_functions(service: Service[Store]) -> None:
    def call(value: Any) -> Message:
        argument = message("DynamicValue", msgpack=encode_msgpack(NUMBER, value))
        request = message("CallFunctionRequest", name="half", arguments=[argument])
        return service.call_function(request)

    assert decode_msgpack(NUMBER, call(3).result.msgpack) == 1.5
    refused = call(-1).error
    assert (refused.text, refused.function_argument) == ("must not be negative", 0)
    assert call(None).error.text.startswith("a bug in the provider: TypeError")


def test_what_there_is(service: Service[Store]) -> None:
    schema = service.get_provider_schema(message("Empty"))
    assert schema.server_capabilities.get_provider_schema_optional
    block = schema.resource_schemas["skerry_echo"].block
    attributes = {attribute.name: attribute for attribute in block.attributes}
    assert attributes["secret_wo"].write_only
    assert attributes["tags"].type == b'["set","string"]'
    assert (attributes["flag"].optional, attributes["flag"].computed) == (True, True)
    assert [block.type_name for block in block.block_types] == ["part"]
    names = service.get_metadata(message("Empty"))
    assert [each.type_name for each in names.ephemeral_resources] == ["skerry_key"]
    assert [*service.get_functions(message("Empty")).functions] == ["half"]


def test_a_provider_that_is_not_configured_says_so(store: Store) -> None:
    service = Service(echo_provider(store))
    answer = plan(service, None, echo(text="a"))
    assert told(answer) == [("The provider is not configured", "")]
    config = message("DynamicValue", msgpack=msgspec.msgpack.encode({"broken": True}))
    answer = service.configure_provider(message("ConfigureProviderRequest", config=config))
    assert told(answer) == [("Broken", "as configured")]


def test_stopping_is_advice(service: Service[Store]) -> None:
    service.stop_provider(message("Empty"))
    assert service.stop.is_set()
    assert told(apply(service, None, echo(text="a"))) == []
