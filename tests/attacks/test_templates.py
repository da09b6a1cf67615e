"""Templates of GGUF files from anywhere: metered, and rendered where they may be killed."""

from __future__ import annotations

import time
from hashlib import blake2b
from pathlib import Path

import jinja2
import msgspec
import pytest

from skerry.errors import InvalidInput
from skerry_edge.text.model import TextModel
from skerry_edge.text.templates.foreign_template import ForeignTemplate
from skerry_edge.text.templates.sandbox import TemplateLimit
from skerry_edge.text.templates.template import MAX_SECONDS, ChatTemplate, TemplateError
from skerry_regions.models.model_files import ModelFiles

BOOM = "{% if messages[0].content == 'boom' %}%s{% endif %}ok"
HEX = "'" + "f" * 30_000 + "'"
MANY = "{% for i in range(4000) %}{% for j in range(1000) %}x{% endfor %}{% endfor %}"
LOOP = "{% for i in range(9999) %}{{ a OP 7 }}{% endfor %}"
HOSTILE = {
    "a payment by its name": "{% set z = [-99999999999999] | map('!charge') | list %}" + MANY,
    "another one": "{% set z = ['x'] | map('!sized') | list %}",
    "a quotient": "{% set a = HEX|int(base=16) %}" + LOOP.replace("OP", "//"),
    "a remainder": "{% set a = HEX|int(base=16) %}" + LOOP.replace("OP", "%"),
    "a literal's quotient": "{% set a = 0x" + "f" * 3_500 + " %}" + LOOP.replace("OP", "//"),
    "a literal's difference": "{% set a = 0x" + "f" * 3_500 + " %}{{ a - 1 }}",
}
HI = [{"role": "user", "content": "hi"}]
GO = [{"role": "user", "content": "boom"}]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_escaped_the_meter_is_refused_at_once(name: str) -> None:
    source = BOOM.replace("%s", HOSTILE[name].replace("HEX", HEX))
    template = ChatTemplate(source)
    assert template.render(HI) == "ok"
    began = time.thread_time()
    with pytest.raises((TemplateLimit, jinja2.TemplateError)):
        template.render(GO)
    assert time.thread_time() - began < 2 * MAX_SECONDS


def test_templates_that_reckon_are_served() -> None:
    source = "{{ (7 // 2) - 1 }}{{ 7 % 4 }}{{ 7 / 2 }}{{ '12' | int + 1 }}{{ 'x' | int(3) }}"
    assert ChatTemplate(source).render(HI) == "233.5133"


def test_a_number_beyond_all_is_refused_with_the_template() -> None:
    """Jinja compiles it to the name `inf`: each rendering failed with NameError, and 500."""
    for source in ("{{ 1e999 }}", "{% set x = [-9.9e999] %}", "{% for x in 2e308 %}{% endfor %}"):
        with pytest.raises(TemplateError, match="number too large"):
            ChatTemplate(source)
    assert ChatTemplate("{{ 1e308 }}").render(HI) == "1e+308"


# --- in the child --------------------------------------------------------------------------------


def test_a_foreign_template_is_rendered_as_ours_are() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}{{ tools | tojson }}"
        "{{ thinking }}"
    )
    tokens = {"bos_token": "<s>"}
    foreign = ForeignTemplate(source, tokens=tokens)
    messages = [{"role": "user", "content": "a\u0000\ufdd0日本\ud800"}]
    tools = [{"name": "f", "size": 1 << 80}]
    own = ChatTemplate(source, tokens=tokens)
    assert foreign.render(messages, tools=tools) == own.render(messages, tools=tools)
    assert foreign.flags == own.flags == {"thinking"}
    flags = {"thinking": ["é"], "bos_token": "!"}
    rendered = own.render(messages, flags=flags)
    assert rendered.endswith("null['é']")
    assert foreign.render(messages, flags=flags) == rendered
    foreign.close()


def test_what_takes_too_long_ends_and_the_next_is_served() -> None:
    """Sorts of many elements in one call, which no meter interrupts."""
    work = "{% set a = range(99999) | list %}{% set a = a + a %}{% set a = a + a + a %}"
    work += "{% set z = a | sort | unique | sort(reverse=true) | list %}" * 4
    foreign = ForeignTemplate(BOOM.replace("%s", work), tokens={})
    for _ in range(2):
        with pytest.raises(TemplateLimit):
            foreign.render(GO)
        assert foreign.render(HI) == "ok"
    foreign.close()


def test_a_template_that_cannot_be_used_is_named_when_it_is_loaded() -> None:
    with pytest.raises(TemplateError, match="does not compile"):
        ForeignTemplate("{% for %}", tokens={})
    with pytest.raises(TemplateError, match="cannot be used"):
        ForeignTemplate("{{ 0x" + "f" * 30_000 + " }}", tokens={})
    with pytest.raises(TemplateError, match="longer than"):
        ForeignTemplate("é" * (1 << 17), tokens={})


@pytest.mark.model
def test_a_model_of_ones_own_lays_out_in_the_child(
    default_model: ModelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    own = TextModel(default_model, context_window=64)
    foreign = TextModel(default_model, context_window=64, is_foreign=True)
    assert default_model.chat_template is not None
    digest = blake2b(default_model.chat_template.encode(), digest_size=16).hexdigest()
    shown = f"{default_model.id}: chat template {digest}, family taught"
    assert caplog.messages == [shown, f"{shown}, rendered in a child"]
    assert foreign.render(HI) == own.render(HI)
    foreign.close()
    bad = msgspec.structs.replace(default_model, chat_template="{{ raise_exception('no') }}")
    refusing = TextModel(bad, context_window=64, is_foreign=True)
    with pytest.raises(InvalidInput, match="no"):
        refusing.render(HI)
    refusing.close()


def test_the_environment_of_the_child_has_no_secrets() -> None:
    """Nothing of ours but where its code is."""
    foreign = ForeignTemplate("ok", tokens={})
    environ = Path(f"/proc/{foreign._child.pid}/environ")
    if environ.exists():
        names = [each.partition(b"=")[0] for each in environ.read_bytes().split(b"\0") if each]
        assert set(names) <= {b"PYTHONPATH", b"LC_CTYPE"}
    foreign.close()
