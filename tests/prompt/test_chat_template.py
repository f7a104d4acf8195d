"""Chat templates: constructs of real ones, and hostile ones, which end with an error of the request."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest

from openai_cpu_server.errors import StartupError, TemplateFailed
from openai_cpu_server.prompt.chat_template import MAX_CHARS, ChatTemplate
from openai_cpu_server.prompt.template import SystemPlace

pytestmark = pytest.mark.thorough

USER = {"role": "user", "content": "Hello"}
TURNS = """\
{%- for message in messages %}
    {{- '<' + message['role'] + '>' + message['content'] | trim + '</>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
{%- endif %}
"""


def template(source: str) -> ChatTemplate:
    return ChatTemplate(
        source, bos_text="<s>", eos_text="</s>", now=lambda: datetime.datetime(2026, 7, 4, 9, 30)
    )


def render(source: str, **arguments: object) -> str:
    """Render one message of a user, with further variables."""
    return template(source).render([USER], extra=arguments)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
         "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% for i in [1, [2, [3]]] recursive %}{{ i if i is number else loop(i) }}{% endfor %}", "123"),
        ("{% macro box() %}[{{ caller() }}]{% endmacro %}{% call box() %}in{% endcall %}", "[in]"),
        ("{{ '%02d-%s' % (7, 'x') }} {{ '{:>3}|{{1}}'.format(5) }} {{ 3 * 'ab' }} {{ 2 ** 5 }}",
         "07-x   5|{1} ababab 32"),
        ("{{ strftime_now('%d %b %Y') }}", "04 Jul 2026"),
        ("a{% generation %}b{{ eos_token }}{% endgeneration %}c", "ab</s>c"),
        ("{{ missing }}|{{ missing is defined }}|{{ tools is none }}", "|False|True"),
        ("{{ 'x' | indent(2, true) }}{{ 'y' | center(3) }}", "  x y "),
        ("{% if true %}\n  {% set x = 1 %}\n{% endif %}\n{{ x }}\n", "1"),
        ("{{ v | tojson }}{{ [1] | tojson(indent=1) }}", '{"b": "<é>", "a": [1]}[\n 1\n]'),
        ("{{ v | tojson(sort_keys=true, ensure_ascii=true) }}", '{"a": [1], "b": "<\\u00e9>"}'),
        ("{{ documents is none }}", "True"),
    ],
)  # fmt: skip
def test_dialect(source: str, expected: str) -> None:
    assert render(source, v={"b": "<é>", "a": [1]}) == expected


def test_tools_documents_and_extra_variables() -> None:
    tools = [{"type": "function", "function": {"name": "now"}}]
    source = "{{ tools[0].function.name }} {{ enable_thinking }} {{ bos_token }} {{ documents[0] }}"
    extra = {"enable_thinking": False, "bos_token": "x", "messages": "x", "documents": ["d"]}
    assert template(source).render([USER], tools=tools, extra=extra) == "now False <s> d"


@pytest.mark.parametrize(
    ("source", "part_of_message"),
    [
        ("{% for message in messages %}", "line 1"),
        ("fine\n{{ 'a' | nosuchfilter }}", "line 2: No filter named 'nosuchfilter'"),
        ("{% endgeneration %}", "line 1"),
        ("{{ 1 / 0 }}{{ ", "line 1"),
    ],
)
def test_source_that_does_not_compile(source: str, part_of_message: str) -> None:
    with pytest.raises(StartupError, match=part_of_message) as failure:
        template(source)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("source", "part_of_message"),
    [
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ 1 / n }}", "division by zero"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{% include 'other' %}", "no loader"),
        ("{{ lipsum(5) }}", "'lipsum' is undefined"),
        ("{{ undefined_thing | tojson }}", "Undefined is not JSON serializable"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_failure_while_rendering(source: str, part_of_message: str) -> None:
    with pytest.raises(TemplateFailed, match=f"the chat template failed: .*{part_of_message}"):
        render(source, n=0)


@pytest.mark.parametrize(
    "source",
    [
        *("{{ ''.__class__.__mro__ }}", "{{ ''['__class__'] }}", "{{ ('' | attr('__class__')).mro() }}"),
        *("{{ '{0.__class__}'.format(1) }}", "{{ '{a.__class__}'.format_map({'a': 1}) }}"),
        *("{{ raise_exception.__globals__ }}", "{{ self.__init__.__globals__ }}"),
        *("{{ messages.append(1) }}", "{{ messages.clear() }}", "{{ messages[0].pop('role') }}"),
        "{{ messages[0].update({'role': 'system'}) }}",
    ],
)
def test_unsafe_access(source: str) -> None:
    messages = [dict(USER)]
    with pytest.raises(TemplateFailed, match=r"unsafe|not safely callable"):
        template(source).render(messages)
    assert messages == [USER]


def test_loading_does_not_finish_endless_work_of_a_template() -> None:
    slow = template("{% for i in range(50_000) %}{% endfor %}{{ messages[0].content }}")
    assert slow.shape.system is SystemPlace.NOWHERE
    assert slow.render([USER]) == USER["content"]


DOUBLING = "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = EXPRESSION %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) recursive %}{{ loop(range(99999)) if loop.depth == 1 }}{% endfor %}",
        "{% for i in text %}{% for j in text %}{% for k in text %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% block b scoped %}{% for i in text %}{% for j in text %}"
        "{% for k in text %}{% endfor %}{% endfor %}{% endfor %}{% endblock %}",
    ],
)
def test_endless_work(source: str) -> None:
    endless = ChatTemplate(source, bos_text="", eos_text="", max_steps=5_000)
    with pytest.raises(TemplateFailed, match="too many loop iterations and calls"):
        endless.render([USER], extra={"text": "x" * 2000})


@pytest.mark.parametrize(
    "source",
    [
        *("{{ 'a' * 10 ** 9 }}", "{{ 10 ** 9 * [1] }}", "{{ 'a'.ljust(10 ** 10) }}"),
        *("{{ 'a' | center(10 ** 10) }}", "{{ 'a' | indent(width=10 ** 10) }}"),
        *("{{ '%9999999999d' % 1 }}", "{{ '%.999999999f' % 1.0 }}", "{{ '{:>9999999999}'.format(1) }}"),
        DOUBLING.replace("EXPRESSION", "ns.x + ns.x"),
        DOUBLING.replace("EXPRESSION", "ns.x ~ ns.x"),
        DOUBLING.replace("{% set ns.x = EXPRESSION %}", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        "{% for i in range(99999) %}{{ text }}{% endfor %}",
    ],
)
def test_size_bomb(source: str) -> None:
    """The bombs need `text`, which the probes of a loaded template do not have."""
    with pytest.raises(TemplateFailed, match=f"grows beyond {MAX_CHARS}"):
        render("{% if text %}" + source + "{% endif %}", text="x" * 2000)


@pytest.mark.parametrize(
    "source", ["{{ 10 ** (10 ** 10) }}", "{{ '%*d' % (9, 1) }}", "{{ '{:{}}'.format(1, 9) }}"]
)
def test_other_bombs(source: str) -> None:
    with pytest.raises(TemplateFailed, match=r"bits|computed width"):
        render(source)


def test_a_bomb_in_a_constant_is_not_evaluated_at_compile_time() -> None:
    with pytest.raises((StartupError, TemplateFailed)):
        render("{{ 'a' | center(99999999999) }}")


def test_one_rendering_does_not_use_up_the_steps_of_the_next() -> None:
    source = "{% for i in range(1000) %}{% endfor %}done"
    loops = ChatTemplate(source, bos_text="", eos_text="", max_steps=1500)
    assert {loops.render([USER]) for _ in range(5)} == {"done"}


def test_threads_share_a_template() -> None:
    turns = template(TURNS)

    def count(index: int) -> int:
        messages = [{"role": "user", "content": f"{index}.{turn}"} for turn in range(50)]
        return turns.render(messages).count(f">{index}.")

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(count, range(8))) == [50] * 8


def test_wants_parts_only_where_text_is_not_shown() -> None:
    parts = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    both = "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}{% endfor %}"
    sources = (parts, both, TURNS, "{{ raise_exception('never') }}")
    assert [template(source).shape.wants_parts for source in sources] == [True, False, False, False]


def test_a_template_may_change_the_lists_that_it_made() -> None:
    def rendering(source: str) -> str:
        found = ChatTemplate(source, bos_text="", eos_text="")
        return found.render([{**USER, "parts": [1]}], extra={"own": [1, [2]]})

    begin = "{% set a = [] %}{% set n = namespace(a=[3]) %}"
    assert rendering(begin + "{% set _ = a.append(1) %}{% set _ = a.insert(0, 2) %}{{ a }}") == "[2, 1]"
    assert rendering(begin + "{% set _ = n.a.append(messages) %}{{ n.a.pop(0) }}{{ n.a | length }}") == "31"
    assert rendering("{% macro m(a) %}{% set _ = a.append(1) %}{{ a }}{% endmacro %}{{ m([]) }}") == "[1]"
    for source in (
        *("{{ messages[0].parts.append(1) }}", "{{ own.pop() }}", "{{ own[1].insert(0, 1) }}"),
        *("{% set a = own %}{{ a.append(1) }}", "{% macro m(a) %}{{ a.pop() }}{% endmacro %}{{ m(own) }}"),
        *(begin + "{{ a.extend([1]) }}", begin + "{{ a.clear() }}", begin + "{{ {}.update({1: 2}) }}"),
    ):
        with pytest.raises(TemplateFailed, match=r"unsafe|not safely callable"):
            rendering(source)
