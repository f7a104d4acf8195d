"""What clients ask for becomes GBNF that is known to compile. The latest grammars are remembered."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import msgspec

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.remembered import Remembered
from openai_cpu_server.structured import Options, SchemaTooLarge, UnsupportedSchema, Whitespace
from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.extras import choice_to_gbnf, json_object_gbnf, regex_to_gbnf
from openai_cpu_server.structured.gbnf.parser import names_tokens
from openai_cpu_server.structured.report import Unenforced
from openai_cpu_server.structured.writing.compose import compose

_REMEMBERED_BYTES = 16 * 2**20
"""Thousands of ordinary grammars of some kilobytes, or some of the largest that `Limits` lets pass."""
_LONGEST = 200_000
"""A client's own grammar may have so many characters."""
_PLACED = (UnsupportedSchema, SchemaTooLarge)
"""These errors may know their place within the schema."""


class Grammar(msgspec.Struct, frozen=True):
    gbnf: str
    unenforced: tuple[str, ...] = ()
    """Paths of the schema keywords that it leaves out, such as `response_format...properties.a.pattern`."""
    is_json: bool = False
    """All that it accepts is JSON, whose first character tells it from the marker of a tool call."""
    share: float = 0.0
    """What it cost, as a share of what one schema may cost. It counts each time, be it remembered or not."""


class _Compiled(NamedTuple):
    gbnf: str
    unenforced: tuple[Unenforced, ...]
    share: float

    @property
    def num_bytes(self) -> int:
        paths = sum(sys.getsizeof(each.path) + sys.getsizeof(each.keyword) for each in self.unenforced)
        return sys.getsizeof(self.gbnf) + paths


class _Refusal(NamedTuple):
    """Why a schema is refused."""

    message: str
    code: str | None
    path: str | None
    """The place within the schema, as a JSON pointer, where that is known."""

    @classmethod
    def of(cls, error: InvalidRequest) -> _Refusal:
        return cls(str(error), error.code, error.path if isinstance(error, _PLACED) else None)

    @property
    def num_bytes(self) -> int:
        return sys.getsizeof(self.message) + sys.getsizeof(self.path)


class _Refused(InvalidRequest):
    def __init__(self, refusal: _Refusal) -> None:
        super().__init__(refusal.message, code=refusal.code)
        self.path = refusal.path


class Grammars:
    """May be used in any thread. `param` is the field that an error names."""

    def __init__(
        self,
        check: Callable[[str], object],
        whitespace: Whitespace,
        *,
        remembered_bytes: int = _REMEMBERED_BYTES,
    ) -> None:
        """`check` raises InvalidRequest for text that cannot be executed."""
        self.whitespace = whitespace
        self._check = check
        self._checked: Remembered[bool] = Remembered(remembered_bytes // 8)
        self._compiled: Remembered[_Compiled | _Refusal] = Remembered(remembered_bytes)

    def of_schema(self, schema: Mapping[str, object], param: str, *, strict: bool = True) -> Grammar:
        """If it is not strict, what cannot be enforced is left out and named."""
        with naming(param):
            gbnf, unenforced, share = self._compiled_once(schema, strict)
        paths = tuple(f"{_param(param, each.path)}.{each.keyword}" for each in unenforced)
        return Grammar(gbnf, paths, is_json=True, share=share)

    def of_any_object(self, param: str) -> Grammar:
        gbnf = json_object_gbnf(Options(whitespace=self.whitespace))
        return msgspec.structs.replace(self._known(gbnf, param), is_json=True)

    def of_regex(self, pattern: str, param: str) -> Grammar:
        with naming(param):
            return self._known(regex_to_gbnf(pattern), param)

    def of_choices(self, choices: list[str], param: str) -> Grammar:
        with naming(param):
            return self._known(choice_to_gbnf(choices), param)

    def of_text(self, gbnf: str, param: str) -> Grammar:
        if len(gbnf) > _LONGEST:
            message = f"The grammar is too large: more than {_LONGEST} characters."
            raise InvalidRequest(message, param=param)
        with naming(param):
            if names_tokens(gbnf):
                raise InvalidRequest("Control tokens (<[...]>) cannot be named: write characters.")
        return self._known(gbnf, param)

    def composed(self, root: str, parts: Mapping[str, str], param: str) -> str:
        """Puts parts together as `structured.compose` does."""
        with naming(param):
            return self._known(compose(root, parts), param).gbnf

    def _known(self, gbnf: str, param: str) -> Grammar:
        with naming(param):
            self._checked_once(gbnf)
        return Grammar(gbnf)

    def _checked_once(self, gbnf: str) -> None:
        """Texts are known by their digests, so that long ones are not held."""
        key = _digest(gbnf)
        if self._checked.get(key) is None:
            self._check(gbnf)
            self._checked.put(key, True, 0)

    def _compiled_once(self, schema: Mapping[str, object], strict: bool) -> _Compiled:
        """A refusal is remembered too: a client that sends a large schema again and again is told at once."""
        text = json.dumps(schema)  # the order of its properties counts
        found = self._compiled.get_or_make(
            (_digest(text), strict), partial(self._compile, text, strict), lambda made: made.num_bytes
        )
        if isinstance(found, _Refusal):
            raise _Refused(found)
        return found

    def _compile(self, text: str, strict: bool) -> _Compiled | _Refusal:
        options = Options(whitespace=self.whitespace, strict=strict)
        try:
            compiled = compile_schema(json.loads(text), options)
            self._checked_once(compiled.gbnf)
        except InvalidRequest as error:
            return _Refusal.of(error)
        return _Compiled(compiled.gbnf, compiled.unenforced, compiled.share)


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Blames this field, or a part of it, for what is refused within."""
    try:
        yield
    except InvalidRequest as error:
        if error.param is not None:
            raise
        path = error.path if isinstance(error, (_Refused, *_PLACED)) else None
        place = param if path is None else _param(param, path)
        raise InvalidRequest(str(error), param=place, code=error.code or "invalid_value") from error


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()


def _param(param: str, pointer: str) -> str:
    """`/properties/a/anyOf/0` in `x` is `x.properties.a.anyOf[0]`."""
    parts = pointer.split("/")[1:]
    return param + "".join(f"[{part}]" if part.isdecimal() else f".{part[:64]}" for part in parts)
