"""Chat template of a model, and its bounds, checked before an operation that would exceed them."""

from __future__ import annotations

import datetime
import functools
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from openai_cpu_server.errors import StartupError, TemplateFailed
from openai_cpu_server.json_size import check_json_size
from openai_cpu_server.prompt.template import (
    CallShape,
    SystemPlace,
    TemplateMessage,
    TemplateShape,
    template_messages,
    to_json,
    tried,
)

MAX_CHARS = 64 * 1024 * 1024
"""Characters or items."""
_MAX_INT_BITS = 4096
_PERCENT_SPEC = re.compile(r"%(?:\([^)]*\))?([-+ #0-9.*]*)")
_BRACE_SPEC = re.compile(r"\{[^{}]*:([^{}]*\{?)")


class LimitExceeded(jinja2.TemplateRuntimeError): ...


def check_text_size(size: int) -> None:
    if size > MAX_CHARS:
        raise LimitExceeded(f"a value or the prompt grows beyond {MAX_CHARS} characters")


def check_numbers(values: Iterable[object]) -> None:
    check_text_size(max((value for value in values if isinstance(value, int)), default=0))


def _check_operation(operator: str, left: object, right: object) -> None:
    match operator, left, right:
        case "+", (str() | list() | tuple()) as one, (str() | list() | tuple()) as other:
            check_text_size(len(one) + len(other))
        case ("*", (str() | list() | tuple()) as value, int(times)) | (
            "*",
            int(times),
            (str() | list() | tuple()) as value,
        ):
            check_text_size(len(value) * times)
        case "*", int(one), int(other):
            _check_bits(one.bit_length() + other.bit_length())
        case "**", int(base), int(exponent):
            _check_bits(base.bit_length() * exponent)
        case "%", str(form), _:
            _check_widths(_PERCENT_SPEC.findall(form))


def check_brace_format(template: str) -> None:
    _check_widths(_BRACE_SPEC.findall(template.replace("{{", "").replace("}}", "")))


def _check_widths(specs: list[str]) -> None:
    if any("*" in spec or "{" in spec for spec in specs):
        raise LimitExceeded("a format with a computed width")
    check_text_size(sum(int(digits[:12]) for spec in specs for digits in re.findall(r"\d+", spec)))


def _check_bits(bits: int) -> None:
    if bits > _MAX_INT_BITS:
        raise LimitExceeded(f"a number of more than {_MAX_INT_BITS} bits")


MAX_STEPS = 2_000_000
"""Loop iterations, seconds of work."""
_STEPS_OF_A_CALL = 10
_LIST_CHANGES = ("append", "insert", "pop")
"""Methods that add one item at most."""


class StepContext(Context):
    def __init__(self, environment: ChatEnvironment, *args: Any, **kwargs: Any) -> None:
        super().__init__(environment, *args, **kwargs)
        self._num_steps_left = environment.max_steps
        self._root: StepContext | None = None

    def spend(self, steps: int) -> None:
        root = self._root or self
        root._num_steps_left -= steps
        if root._num_steps_left < 0:
            raise LimitExceeded("too many loop iterations and calls")

    @functools.cached_property
    def _inputs(self) -> frozenset[int]:
        return frozenset(map(id, _lists_in(self.parent)))

    def is_input(self, value: list[object]) -> bool:
        return id(value) in (self._root or self)._inputs

    def derived(self, locals: dict[str, Any] | None = None) -> StepContext:
        child = super().derived(locals)
        assert isinstance(child, StepContext)
        child._root = self._root or self
        return child


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Language of Hugging Face's templates, shared by threads.

    jinja2's sandbox protects our objects from untrusted templates. The bounds stop runaway loops and simple
    size bombs, but do not limit memory.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    context_class = StepContext

    def __init__(self, *, max_steps: int) -> None:
        self.max_steps = max_steps
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
        )
        self.filters["tojson"] = json_filter
        self.filters["from_json"] = _from_json
        self.filters["counted"] = counted
        self.filters["joined"] = bounded_concatenation
        for name in ("center", "indent"):
            self.filters[name] = _with_small_numbers(self.filters[name])
        del self.globals["lipsum"]

    def compile_bounded(self, source: str) -> jinja2.Template:
        return self.from_string(_Bounds().visit(self.parse(source)))

    # jinja2 joins whatever a template, a macro or a `set` block prints through this attribute.
    def concat(self, parts: Iterable[str]) -> str:
        pieces: list[str] = []
        total = 0
        for part in parts:
            total += len(part)
            check_text_size(total)
            pieces.append(part)
        return "".join(pieces)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(__context, StepContext)
        __context.spend(_STEPS_OF_A_CALL)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, list) and __obj.__name__ in _LIST_CHANGES and __context.is_input(owner):
            raise SecurityError("an unsafe change of a list of the request")
        if isinstance(__obj, LoopContext) and args:
            args = (counted(__context, args[0]), *args[1:])
        if isinstance(owner, str):
            check_numbers((*args, *kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow templates to change their own lists, as `call` checks."""
        changes_list = attr in _LIST_CHANGES and type(obj) is list
        return changes_list or super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Raise at once, because jinja2 would wait until the value is used."""
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} object is unsafe")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            check_brace_format(value.__self__)
        return wrapped


class GenerationTag(Extension):
    """`{% generation %}` marks answers for training, and is replaced by its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounds(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "counted", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        pieces = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(pieces, "joined", [], [], None, None, lineno=node.lineno)


def _lists_in(value: object) -> Iterator[list[object]]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            yield one
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, (list, tuple)):
            waiting += one


@jinja2.pass_context
def counted(context: StepContext, items: Iterable[object]) -> Iterator[object]:
    for item in items:
        context.spend(1)
        yield item


@jinja2.pass_environment
def bounded_concatenation(environment: ChatEnvironment, pieces: Sequence[object]) -> str:
    return environment.concat(str(piece) for piece in pieces)


def json_filter(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write plain JSON, because jinja2's own filter escapes for HTML and sorts keys."""
    return json.dumps(
        value,
        default=_listed,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _from_json(text: str) -> object:
    check_json_size(text.encode(errors="surrogatepass"))
    return json.loads(text)


def _listed(value: object) -> object:
    if isinstance(value, types.GeneratorType):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _with_small_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(value: object, *args: object, **kwargs: object) -> Any:
        check_numbers((*args, *kwargs.values()))
        return function(value, *args, **kwargs)

    return checked


_NEEDLE = "needle 5b1f"
_TRYING_STEPS = 20_000


class ChatTemplate:
    """Thread-safe. Rendering takes milliseconds, or seconds for a hostile template. Raises StartupError for
    bad source."""

    def __init__(
        self,
        source: str,
        *,
        bos_text: str,
        eos_text: str,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.source = source
        environment = ChatEnvironment(max_steps=min(max_steps, _TRYING_STEPS))
        self._template = _compile(source, environment)
        self._constants: dict[str, object] = {
            "bos_token": bos_text,
            "eos_token": eos_text,
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: now().strftime(form),
        }
        # Firefunction's template has other names for them.
        names = find_undeclared_variables(environment.parse(source))
        self._wants_functions = "functions" in names and "tools" not in names
        if self._wants_functions:
            self._constants["datetime"] = f"{now():%b %d %Y %H:%M:%S}"
        # Some templates take the length of their tools, and fail with None.
        self._no_tools: Sequence[TemplateMessage] | None = None
        question: Sequence[TemplateMessage] = [{"role": "user", "content": _NEEDLE}]
        if not tried(lambda: self.render(question)):
            self._no_tools = ()
            if not tried(lambda: self.render(question)):
                self._no_tools = None
        self.shape = _ShapeProbe(self).shape()
        environment.max_steps = max_steps

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """`extra`: variables that do not replace ours."""
        variables = {
            "documents": None,
            **(extra or {}),
            **self._constants,
            "messages": messages,
            "tools": tools or self._no_tools,
            "add_generation_prompt": add_generation_prompt,
        }
        if self._wants_functions:
            variables["functions"] = to_json([tool.get("function") for tool in tools or ()])
        try:
            return self._template.render(variables)
        except _Refused as error:
            raise TemplateFailed(str(error)) from None
        except Exception as error:  # an untrusted program can raise anything
            raise TemplateFailed(f"the chat template failed: {_words(error)}") from None


class _ShapeProbe:
    def __init__(self, template: ChatTemplate) -> None:
        self._render = template.render
        self._calls: CallShape | None = None
        self._wants_parts = False
        if not self._finds([_user(_NEEDLE)]):
            self._wants_parts = True
            self._wants_parts = self._finds([_user(_NEEDLE)])

    def shape(self) -> TemplateShape:
        self._calls = self._call_shape()
        called = ("UCU", "UCTU") if self._calls else ()
        return TemplateShape(
            wants_parts=self._wants_parts,
            shows_tools=self._finds([_user("")], tools=[_tool(_NEEDLE)]),
            shows_system_tools=self._finds([{"role": "system", "content": "", "tools": _NEEDLE}]),
            system=self._system(),
            alternates=not all(self._shows(turns) for turns in ("UU", "AU", "UAAU", *called)),
            takes_empty=self._shows("UEU"),
            calls=self._calls,
        )

    def _system(self) -> SystemPlace:
        lasting = ("SU", "SUAU", "SUCT" if self._calls else "SU")  # some show it when a user speaks last only
        if not all(self._shows(turns) for turns in lasting):
            return SystemPlace.NOWHERE
        if not self._shows("SSU"):
            return SystemPlace.FIRST
        is_anywhere = all(self._shows(turns) for turns in ("US", "USAU", "UASU"))
        return SystemPlace.ANYWHERE if is_anywhere else SystemPlace.HEAD

    def _call_shape(self) -> CallShape | None:
        shapes = [CallShape(text, empty) for text in (False, True) for empty in (False, True)]
        found = next((shape for shape in shapes if self._shows_calls(shape, 1)), None)
        if found is None:
            return None
        self._calls = found
        return found._replace(one_by_one=not self._shows_calls(found, 2), text_apart=not self._shows("UDT"))

    def _shows_calls(self, shape: CallShape, num_calls: int) -> bool:
        calling = _calling([_call(index) for index in range(num_calls)])
        results = [_result(f"{_NEEDLE} {index}", index) for index in range(num_calls)]
        self._calls = shape
        text = self._tried([_user("-"), calling, *results], tools=[_tool("")])
        is_json = "{'k5b1f" not in text and '\\"k5b1f' not in text
        seen = [f"{name}{i}" for name in ("f5b1f", "k5b1f", f"{_NEEDLE} ") for i in range(num_calls)]
        has_calls = bool(self._tried([_user("-"), calling], tools=[_tool("")]))
        return has_calls and is_json and all(each in text for each in seen)

    def _shows(self, turns: str) -> bool:
        """`turns`: System, Users, Answers, Empty answers, Calls, calls with worDs, Tools' results."""
        messages = [_turn(kind, f"{_NEEDLE} {at}", at) for at, kind in enumerate(turns)]
        seen = [f"{_NEEDLE} {at}" for at, kind in enumerate(turns) if kind not in "EC"]
        seen += [f"f5b1f{at}" for at, kind in enumerate(turns) if kind in "CD"]
        texts = (self._tried(messages, tools=tools) for tools in (None, [_tool("")]))
        return all(all(each in text for each in seen) and bool(text) for text in texts)

    def _finds(
        self, messages: Sequence[TemplateMessage], tools: Sequence[TemplateMessage] | None = None
    ) -> bool:
        return _NEEDLE in self._tried(messages, tools)

    def _tried(self, messages: Sequence[TemplateMessage], tools: Sequence[TemplateMessage] | None) -> str:
        shaped = template_messages(messages, as_parts=self._wants_parts, shape=self._calls)
        return tried(lambda: self._render(shaped, tools=tools))


def _turn(kind: str, text: str, at: int) -> TemplateMessage:
    if kind in "CD":
        return {**_calling([_call(at)]), "content": text if kind == "D" else None}
    if kind == "T":
        return _result(text, at - 1)
    role = {"S": "system", "U": "user"}.get(kind, "assistant")
    return {"role": role, "content": "" if kind == "E" else text}


def _user(text: str) -> TemplateMessage:
    return {"role": "user", "content": text}


def _calling(calls: Sequence[TemplateMessage]) -> TemplateMessage:
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _result(text: str, call: int) -> TemplateMessage:
    return {"role": "tool", "content": text, "tool_call_id": f"00000000{call}", "name": f"f5b1f{call}"}


def _call(index: int) -> TemplateMessage:
    function = {"name": f"f5b1f{index}", "arguments": {f"k5b1f{index}": "x"}}
    return {"id": f"00000000{index}", "type": "function", "function": function}


def _tool(description: str) -> TemplateMessage:
    parameters = {"type": "object", "properties": {}}
    function = {"name": "f", "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


class _Refused(jinja2.TemplateError): ...


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _compile(source: str, environment: ChatEnvironment) -> jinja2.Template:
    try:
        return environment.compile_bounded(source)
    except jinja2.TemplateSyntaxError as error:
        raise StartupError(f"the chat template, line {error.lineno}: {_words(error)}") from None
    except Exception as error:  # constants are folded at once, and can fail like a rendering
        raise StartupError(f"the chat template does not compile: {_words(error)}") from None


def _words(error: Exception) -> str:
    message = error.message if isinstance(error, jinja2.TemplateError) else str(error)
    first_line = (message or "").strip().partition("\n")[0]
    return first_line or type(error).__name__
