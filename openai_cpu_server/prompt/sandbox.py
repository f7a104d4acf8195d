"""Bounds on a template, checked before an operation that would exceed them."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_CHARS = 64 * 1024 * 1024
"""Characters (or items) of the prompt and of every value."""
_MAX_INT_BITS = 4096
_PERCENT_SPEC = re.compile(r"%(?:\([^)]*\))?([-+ #0-9.*]*)")
_BRACE_SPEC = re.compile(r"\{[^{}]*:([^{}]*\{?)")


class LimitExceeded(jinja2.TemplateRuntimeError): ...


def check_text_size(size: int) -> None:
    if size > MAX_CHARS:
        raise LimitExceeded(f"a value or the prompt grows beyond {MAX_CHARS} characters")


def check_numbers(values: Iterable[object]) -> None:
    check_text_size(max((value for value in values if isinstance(value, int)), default=0))


def _check_sum(left: object, right: object) -> None:
    if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
        check_text_size(len(left) + len(right))


def _check_product(left: object, right: object) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, (str, list, tuple)) and isinstance(times, int):
            check_text_size(len(value) * times)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_power(base: object, exponent: object) -> None:
    if isinstance(base, int) and isinstance(exponent, int):
        _check_bits(base.bit_length() * exponent)


def _check_percent_format(left: object, _right: object) -> None:
    if isinstance(left, str):
        _check_widths(_PERCENT_SPEC.findall(left))


def check_brace_format(template: str) -> None:
    _check_widths(_BRACE_SPEC.findall(template.replace("{{", "").replace("}}", "")))


def _check_widths(specs: list[str]) -> None:
    if any("*" in spec or "{" in spec for spec in specs):
        raise LimitExceeded("a format with a computed width")
    check_text_size(sum(int(digits[:12]) for spec in specs for digits in re.findall(r"\d+", spec)))


def _check_bits(bits: int) -> None:
    if bits > _MAX_INT_BITS:
        raise LimitExceeded(f"a number of more than {_MAX_INT_BITS} bits")


BINOP_CHECKS: dict[str, Callable[[object, object], None]] = {
    "+": _check_sum,
    "*": _check_product,
    "**": _check_power,
    "%": _check_percent_format,
}


MAX_STEPS = 2_000_000
"""Loop iterations, seconds of work."""
_STEPS_OF_A_CALL = 10


@dataclass
class _Steps:
    num_left: int

    def spend(self, steps: int) -> None:
        self.num_left -= steps
        if self.num_left < 0:
            raise LimitExceeded("too many loop iterations and calls")


class StepContext(Context):
    """Contexts of blocks share the steps."""

    def __init__(self, environment: ChatEnvironment, *args: Any, **kwargs: Any) -> None:
        super().__init__(environment, *args, **kwargs)
        self.steps = _Steps(environment.max_steps)

    def derived(self, locals: dict[str, Any] | None = None) -> StepContext:
        child = super().derived(locals)
        assert isinstance(child, StepContext)
        child.steps = self.steps
        return child


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Language of Hugging Face's templates, shared by threads. Templates are untrusted: jinja2's sandbox
    protects our objects, and the bounds stop runaway loops and simple size bombs. They do not limit
    memory."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    context_class = StepContext

    def __init__(self, *, max_steps: int) -> None:
        self.max_steps = max_steps
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
        )
        self.filters["tojson"] = json_filter
        self.filters["counted"] = counted
        self.filters["joined"] = bounded_concatenation
        for name in ("center", "indent"):
            self.filters[name] = _with_small_numbers(self.filters[name])
        del self.globals["lipsum"]

    def compile_bounded(self, source: str) -> jinja2.Template:
        """Bound the loops and compile. Raises jinja2.TemplateError."""
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
        __context.steps.spend(_STEPS_OF_A_CALL)
        if isinstance(__obj, LoopContext) and args:
            args = (counted(__context, args[0]), *args[1:])
        if isinstance(getattr(__obj, "__self__", None), str):
            check_numbers((*args, *kwargs.values()))
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        BINOP_CHECKS[operator](left, right)
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


@jinja2.pass_context
def counted(context: StepContext, items: Iterable[object]) -> Iterator[object]:
    for item in items:
        context.steps.spend(1)
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


def _listed(value: object) -> object:
    if isinstance(value, types.GeneratorType):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _with_small_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(value: object, *args: object, **kwargs: object) -> Any:
        check_numbers((*args, *kwargs.values()))
        return function(value, *args, **kwargs)

    return checked
