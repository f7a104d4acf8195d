"""What clients ask for becomes a grammar that is known to compile. The latest grammars are remembered."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from functools import partial
from typing import Union

import msgspec

from openai_cpu_server.contract.grammar import (
    GrammarMaker,
    GrammarOrder,
    GrammarSource,
    MadeGrammar,
    RefusedGrammar,
)
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.remembered import Remembered

_REMEMBERED_BYTES = 16 * 2**20
"""Thousands of ordinary grammars of some kilobytes, or some of the largest that `Limits` lets pass."""
_LONGEST = 200_000
"""A client's own grammar may have so many characters."""
NO_PARTS: Mapping[str, bytes] = {}


class Grammar(msgspec.Struct, frozen=True):
    lark: str
    """For an engine."""
    rules: bytes
    """For grammars that it is a part of."""
    unenforced: tuple[str, ...] = ()
    """Paths of the schema keywords that it leaves out, such as `response_format...properties.a.pattern`."""
    is_json: bool = False
    """All that it accepts is JSON, whose first character tells it from the marker of a tool call."""
    share: float = 0.0
    """What it cost, as a share of what one schema may cost. It counts each time, be it remembered or not."""


class Grammars:
    """May be used in any thread. `param` is the field that an error names."""

    def __init__(
        self, make: GrammarMaker, *, is_flexible: bool = False, remembered_bytes: int = _REMEMBERED_BYTES
    ) -> None:
        """`is_flexible`: JSON may have white space between its tokens."""
        self.is_flexible = is_flexible
        self._make = make
        self._known: Remembered[Union[MadeGrammar, RefusedGrammar]] = Remembered(remembered_bytes)

    def of_schema(self, schema: Mapping[str, object], param: str, *, strict: bool = True) -> Grammar:
        """If it is not strict, what cannot be enforced is left out and named."""
        made = self._made(GrammarSource.SCHEMA, param, json.dumps(schema), strict=strict)
        paths = tuple(f"{_param(param, path)}.{keyword}" for path, keyword in made.unenforced)
        return Grammar(made.lark, made.rules, paths, is_json=True, share=made.share)

    def of_any_object(self, param: str) -> Grammar:
        made = self._made(GrammarSource.ANY_OBJECT, param)
        return Grammar(made.lark, made.rules, is_json=True)

    def of_regex(self, pattern: str, param: str) -> Grammar:
        return self._plain(GrammarSource.REGEX, param, pattern)

    def of_choices(self, choices: list[str], param: str) -> Grammar:
        return self._plain(GrammarSource.CHOICES, param, json.dumps(choices))

    def of_text(self, gbnf: str, param: str) -> Grammar:
        if len(gbnf) > _LONGEST:
            message = f"The grammar is too large: more than {_LONGEST} characters."
            raise InvalidRequest(message, param=param)
        return self._plain(GrammarSource.GBNF, param, gbnf)

    def composed(self, root: str, parts: Mapping[str, bytes], param: str) -> str:
        """The Lark of parts that are put together: `root` is GBNF, and names them."""
        return self._made(GrammarSource.PARTS, param, root, parts=parts).lark

    def _plain(self, source: GrammarSource, param: str, text: str) -> Grammar:
        made = self._made(source, param, text)
        return Grammar(made.lark, made.rules)

    def _made(
        self,
        source: GrammarSource,
        param: str,
        text: str = "",
        *,
        strict: bool = True,
        parts: Mapping[str, bytes] = NO_PARTS,
    ) -> MadeGrammar:
        """Orders are known by their digests, so that long ones are not held. A refusal is remembered too: a
        client that sends a large schema again and again is told at once. Raises InvalidRequest."""
        order = GrammarOrder(
            source=source, text=text, is_strict=strict, is_flexible=self.is_flexible, parts=parts
        )
        made = self._known.get_or_make(_digest(order), partial(self._make, order), _num_bytes)
        if isinstance(made, RefusedGrammar):
            place = param if made.path is None else _param(param, made.path)
            raise InvalidRequest(made.message, param=place, code=made.code or "invalid_value")
        return made


def _digest(order: GrammarOrder) -> bytes:
    kind = f"{order.source.value} {order.is_strict} {order.is_flexible} {len(order.text)} "
    found = hashlib.sha256((kind + order.text).encode(errors="surrogatepass"))
    for name, part in order.parts.items():
        found.update(f"{name} {len(part)} ".encode() + part)
    return found.digest()


def _num_bytes(made: Union[MadeGrammar, RefusedGrammar]) -> int:
    if isinstance(made, RefusedGrammar):
        return sys.getsizeof(made.message) + sys.getsizeof(made.path)
    return sum(map(sys.getsizeof, (made.lark, made.rules, *sum(made.unenforced, ()))))


def _param(param: str, pointer: str) -> str:
    """`/properties/a/anyOf/0` in `x` is `x.properties.a.anyOf[0]`."""
    parts = pointer.split("/")[1:]
    return param + "".join(f"[{part}]" if part.isdecimal() else f".{part[:64]}" for part in parts)
