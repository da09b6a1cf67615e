"""Chat templates: what Hugging Face's do here as there, and what hostile ones cannot do."""

from __future__ import annotations

from datetime import datetime

import jinja2
import pytest

from skerry_edge.text.templates.filters import TemplateRefusal
from skerry_edge.text.templates.sandbox import TemplateLimit
from skerry_edge.text.templates.template import MAX_SOURCE, ChatTemplate, TemplateError

HI = [{"role": "user", "content": "Hi"}]


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source).render([{"role": "user", "content": "Hi", **variables}])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\nblock lines vanish\n{% endif %}\n", "block lines vanish\n"),
        ("    {% set x = 1 %}\n{{ x }}", "1"),
        ("{{ messages[0]['content'] ~ 1 ~ none ~ true }}", "Hi1NoneTrue"),
        ("{{ 'a' + 'b' * 3 }}{{ 7 % 4 }}{{ 2 ** 10 }}", "abbb31024"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi"}]'),
        ("{{ {'é': [1]} | tojson(indent=2) }}", '{\n  "é": [\n    1\n  ]\n}'),
        ("{{ {'b': 1, 'a': '<'} | tojson(sort_keys=true) }}", '{"a": "<", "b": 1}'),
        ("{{ ['a', 'b'] | join(', ') }}{{ '-'.join(['x', 'y']) }}", "a, bx-y"),
        ("{{ messages | map(attribute='role') | list }}", "['user']"),
        ("{{ messages | join('|', attribute='role') }}", "user"),
        ("{{ 'aXbX' | replace('X', '--') }}{{ 'aXbX'.replace('X', '', 1) }}", "a--b--abX"),
        ("{{ 'a\nb' | indent(2, true) }}", "  a\n  b"),
        ("{{ '  x '.strip() }}{{ ' y '|trim }}{{ 'abc'[1:] }}", "xybc"),
        ("{{ 'a b'.split(' ')[-1] }}{{ 'Ab' | upper }}{{ 'x' in 'xyz' }}", "bABTrue"),
        ("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}"
         "{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% set ns = namespace(x=0) %}{% for m in [1, 2, 3] %}{% set ns.x = ns.x + m %}"
         "{% endfor %}{{ ns.x }}", "6"),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') }}", "abab"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
        ("{% filter upper %}abc{% endfilter %}", "ABC"),
        ("{{ missing }}{{ missing is defined }}{{ messages[0].tool_calls is defined }}",
         "FalseFalse"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}", "a1True"),
    ],
)  # fmt: skip
def test_renders_as_transformers_does(source: str, text: str) -> None:
    assert render(source) == text


def test_time_is_an_argument() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m') }}", now=lambda: datetime(2026, 11, 21))
    assert template.render(HI) == "2026-11"


def test_requests_set_variables_that_the_template_reads_and_no_others() -> None:
    source = (
        "{{ bos_token }}{{ messages[0].content }}{% if enable_thinking is defined and not "
        "enable_thinking %}<think></think>{% endif %}{% set ns = namespace(x=0) %}"
        "{% for i in range(level | default(1)) %}.{% endfor %}{{ raise_exception is defined }}"
    )
    template = ChatTemplate(source, tokens={"bos_token": "<s>"})
    assert template.flags == {"enable_thinking", "level"}
    assert template.render(HI) == "<s>Hi.True"
    assert template.render(HI, flags={"enable_thinking": False, "level": 3}) == (
        "<s>Hi<think></think>...True"
    )
    own = {"bos_token": "!", "messages": [], "range": "x", "namespace": 1, "raise_exception": 1}
    assert template.render(HI, flags=own) == "<s>Hi.True"


def test_variables_of_a_request_are_paid_for() -> None:
    source = "{% for i in range(90000) %}{{ n }}{% endfor %}"
    template = ChatTemplate(source, clock=lambda: 0.0)  # it is work that is counted here
    assert len(template.render(HI, flags={"n": "x"})) == 90_000
    with pytest.raises(TemplateLimit):
        template.render(HI, flags={"n": "x" * 1000})


def test_a_template_may_refuse() -> None:
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def grown(first: str, step: str, last: str = "") -> str:
    """A template that applies `step` to the namespace's `x` sixty times."""
    return (
        "{% set ns = namespace(x=" + first + ") %}{% for i in range(60) %}" + step + "{% endfor %}"
    ) + last


HOSTILE = [
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 10000000000 }}",
    "{{ 10000000000 * 'x' }}",
    "{{ [1] * 1000000000 }}",
    "{{ 9 ** (9 ** 9) }}",
    grown("2", "{% set ns.x = ns.x * ns.x %}"),
    grown("'a'", "{% set ns.x = ns.x ~ ns.x %}"),
    grown("'a'", "{% set ns.x = ns.x + ns.x %}"),
    grown("'a'", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    grown("'a'", "{% set ns.x = ns.x.replace('a', 'aa') %}"),
    grown("'a'", "{% set ns.x = ns.x | replace('a', 'aa') %}"),
    grown("'a'", "{% set ns.x = ns.x.join([ns.x, ns.x]) %}"),
    grown("[1]", "{% set ns.x = ns.x + ns.x %}"),
    grown("[1]", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x }}"),
    grown("[1]", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}", "{{ ns.x | tojson }}"),
    grown("1", "{% set ns.x = namespace(a=ns.x, b=ns.x) %}", "{{ ns.x }}"),
    grown("1", "{% set ns.x = dict(a=ns.x, b=ns.x) %}", "{{ ns.x }}"),
    "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(200) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 'x' | indent(1000000000) }}",
    "{{ messages | tojson(indent=1000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '{x:>1000000000}'.format_map({'x': 1}) }}",
    "{{ range(1000000000) | list }}",
    "{% set s = 'x' * 1000000 %}" + "{% set a = s[1:] %}" * 1000,
    "{% set s = 'x' * 3000000 %}{% for i in range(99999) %}{{ 'y' in s }}{% endfor %}",
    "{{ 'x'.center(1000000000) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ '\t'.expandtabs(1000000000) }}",
    "{{ '1'.zfill(1000000000) }}",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_a_template_cannot_take_much(source: str) -> None:
    """Refused when it is loaded, or it ends in an error: Jinja's own where a method is absent."""
    with pytest.raises((TemplateError, jinja2.TemplateError, OverflowError, RecursionError)):
        render(source)


def test_work_is_limited_by_count_and_by_time() -> None:
    endless = (
        "{% if messages | length > 1 %}{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% endfor %}{% endfor %}{% endif %}"
    )
    template = ChatTemplate(endless, clock=lambda: 0.0)
    with pytest.raises(TemplateLimit, match="too many steps"):
        template.render(HI * 2)
    seconds = iter(range(1_000_000))
    template = ChatTemplate(endless, clock=lambda: next(seconds) / 100)
    with pytest.raises(TemplateLimit, match="too much time"):
        template.render(HI * 2)


def test_large_conversations_have_room() -> None:
    source = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + '\n' }}{% endfor %}"
    messages = [{"role": "user", "content": "x" * 4000}] * 500
    assert len(ChatTemplate(source).render(messages)) == 500 * 4007


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ messages[0].__init__.__globals__ }}",
        "{{ (1).__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__closure__ }}",
        "{{ self.__init__ }}",
        "{{ namespace.__init__.__globals__['sys'] }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ messages[0].clear() }}",
        "{{ lipsum() }}",
        "{{ cycler('a') }}",
        "{{ ''|attr('__class__') }}",
        "{{ messages | xmlattr }}",
        "{{ raise_exception }}",
        "{{ dict }}",
    ],
)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    """Refused, or undefined and so printed as nothing."""
    try:
        text = render(source)
    except (TemplateError, jinja2.TemplateError):
        text = ""
    assert text == ""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", "line 1"),
        ("{{ x | nosuchfilter }}", "No filter named 'nosuchfilter'"),
        ("{% include 'a' %}", "reads another file"),
        ("{% extends 'a' %}", "reads another file"),
        ("{% import 'a' as a %}", "reads another file"),
        ("x" * (MAX_SOURCE + 1), "longer than"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be used"),
        ("{{ 'x' * 10000000000 }}", "not safe to run"),
    ],
)
def test_unusable_templates_are_named_when_loaded(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        ChatTemplate(source)
