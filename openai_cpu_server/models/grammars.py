"""What clients ask for becomes GBNF that is known to compile. The latest grammars are remembered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import msgspec

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured import Options, UnsupportedSchema, Whitespace
from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.extras import choice_to_gbnf, json_object_gbnf, regex_to_gbnf
from openai_cpu_server.structured.gbnf.parser import names_tokens
from openai_cpu_server.structured.report import Unenforced
from openai_cpu_server.structured.writing.compose import compose

_REMEMBERED = 256
"""So many grammars are remembered, of some kilobytes each."""
_LONGEST = 200_000
"""A client's own grammar may have so many characters."""


class Grammar(msgspec.Struct, frozen=True):
    gbnf: str
    unenforced: tuple[str, ...] = ()
    """Paths of the schema keywords that it leaves out, such as `response_format...properties.a.pattern`."""
    is_json: bool = False
    """All that it accepts is JSON, whose first character tells it from the marker of a tool call."""


class Grammars:
    """May be used in any thread. `param` is the field that an error names."""

    def __init__(self, check: Callable[[str], object], whitespace: Whitespace) -> None:
        """`check` raises InvalidRequest for text that cannot be executed."""
        self.whitespace = whitespace
        self._check = check
        self._checked = lru_cache(_REMEMBERED)(self._check_once)
        self._compiled = lru_cache(_REMEMBERED)(self._compile)

    def of_schema(self, schema: Mapping[str, object], param: str, *, strict: bool = True) -> Grammar:
        """If it is not strict, what cannot be enforced is left out and named."""
        with naming(param):
            gbnf, unenforced = self._compiled(json.dumps(schema), strict)
        paths = tuple(f"{_param(param, each.path)}.{each.keyword}" for each in unenforced)
        return Grammar(gbnf, paths, is_json=True)

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
            self._checked(gbnf)
        return Grammar(gbnf)

    def _check_once(self, gbnf: str) -> None:
        self._check(gbnf)

    def _compile(self, text: str, strict: bool) -> tuple[str, tuple[Unenforced, ...]]:
        compiled = compile_schema(json.loads(text), Options(whitespace=self.whitespace, strict=strict))
        self._checked(compiled.gbnf)
        return compiled.gbnf, compiled.unenforced


@contextmanager
def naming(param: str) -> Iterator[None]:
    """Blames this field, or a part of it, for what is refused within."""
    try:
        yield
    except InvalidRequest as error:
        if error.param is not None:
            raise
        place = _param(param, error.path) if isinstance(error, UnsupportedSchema) else param
        raise InvalidRequest(str(error), param=place, code=error.code or "invalid_value") from error


def _param(param: str, pointer: str) -> str:
    """`/properties/a/anyOf/0` in `x` is `x.properties.a.anyOf[0]`."""
    parts = pointer.split("/")[1:]
    return param + "".join(f"[{part}]" if part.isdecimal() else f".{part[:64]}" for part in parts)
