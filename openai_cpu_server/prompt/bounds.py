"""Bounds on what a template makes. They raise before an operation that would exceed them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import jinja2

MAX_CHARS = 64 * 1024 * 1024
"""The most characters (or items) of the prompt, and of every value on the way to it."""
_MAX_INT_BITS = 4096
_PERCENT_SPEC = re.compile(r"%(?:\([^)]*\))?([-+ #0-9.*]*)")
_BRACE_SPEC = re.compile(r"\{[^{}]*:([^{}]*\{?)")


class LimitExceeded(jinja2.TemplateRuntimeError):
    """The template does too much work, or makes too much text."""


def check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise LimitExceeded(f"a value or the prompt grows beyond {MAX_CHARS} characters")


def check_numbers(values: Iterable[object]) -> None:
    check_size(max((value for value in values if isinstance(value, int)), default=0))


def _check_sum(left: object, right: object) -> None:
    if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
        check_size(len(left) + len(right))


def _check_product(left: object, right: object) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, (str, list, tuple)) and isinstance(times, int):
            check_size(len(value) * times)
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
    """Check the widths in `%9d` or `{:>9}`. Widths that come as arguments are refused."""
    if any("*" in spec or "{" in spec for spec in specs):
        raise LimitExceeded("a format with a computed width")
    check_size(sum(int(digits[:12]) for spec in specs for digits in re.findall(r"\d+", spec)))


def _check_bits(bits: int) -> None:
    if bits > _MAX_INT_BITS:
        raise LimitExceeded(f"a number of more than {_MAX_INT_BITS} bits")


BINOP_CHECKS: dict[str, Callable[[object, object], None]] = {
    "+": _check_sum,
    "*": _check_product,
    "**": _check_power,
    "%": _check_percent_format,
}
