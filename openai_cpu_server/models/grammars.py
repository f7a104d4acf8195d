"""Compiled grammars of clients' requests, cached."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar, Union

import msgspec

from openai_cpu_server.contract.grammar import (
    JSON_VALUES,
    GrammarMaker,
    GrammarOrder,
    GrammarSource,
    MadeGrammar,
    RefusedGrammar,
    ValueSpelling,
)
from openai_cpu_server.errors import InvalidRequest

V = TypeVar("V")

_ENTRY_BYTES = 500
"""Key and place in the table."""


class LruCache(Generic[V]):
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        """Values with their bytes, the least recently used first."""
        self._num_bytes = 0
        self._being_made: dict[Hashable, Future[V]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            return self._used(key)

    def get_or_make(self, key: Hashable, make: Callable[[], V], num_bytes: Callable[[V], int]) -> V:
        """Make a missing value once; waiting threads also get the exceptions of `make`."""
        with self._lock:
            if (value := self._used(key)) is not None:
                return value
            others = self._being_made.get(key)
            if others is None:
                mine = self._being_made[key] = Future[V]()
        if others is not None:
            return others.result()
        try:
            value = make()
            self.put(key, value, num_bytes(value))
            mine.set_result(value)
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._being_made[key]
        return value

    def put(self, key: Hashable, value: V, num_bytes: int) -> None:
        """Skip a value above the limit."""
        num_bytes += _ENTRY_BYTES
        with self._lock:
            self._remove(key)
            if num_bytes > self._max_bytes:
                return
            self._entries[key] = value, num_bytes
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def _used(self, key: Hashable) -> V | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def _remove(self, key: Hashable) -> None:
        _, num_bytes = self._entries.pop(key, (None, 0))
        self._num_bytes -= num_bytes


_REMEMBERED_BYTES = 16 * 2**20
"""Room for thousands of ordinary grammars."""
_LONGEST = 200_000


class CheckedGrammar(msgspec.Struct, frozen=True):
    lark: str
    rules: bytes
    """Serialized, for grammars that include it."""
    unenforced: tuple[str, ...] = ()
    """Paths of ignored schema keywords, such as `response_format...properties.a.pattern`."""
    is_json: bool = False
    """True if texts are JSON, whose first character differs from a tool call's marker."""
    share: float = 0.0
    """Share of one schema's limit, which counts even if cached."""
    is_raw: bool = False
    """True if a tool's text stands raw in a call instead of as a JSON string."""


class GrammarMark:
    """Mark in a folder that clients use grammars, so that the next server prepares for them while it
    loads."""

    def __init__(self, folder: Path, model: Path) -> None:
        digest = hashlib.sha256(os.fsencode(model.resolve())).hexdigest()[:16]
        self._path = folder / f"{digest}.grammars"
        self.is_set = self._path.exists()

    def set(self) -> None:
        if not self.is_set:
            self.is_set = True
            with contextlib.suppress(OSError):  # the next server prepares once it is idle
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._path.touch(mode=0o600)


class ModelGrammars:
    """Thread-safe. `param`: field that an error names."""

    def __init__(
        self,
        make: GrammarMaker,
        mark: GrammarMark | None = None,
        *,
        is_flexible: bool = False,
        is_open: bool = False,
        remembered_bytes: int = _REMEMBERED_BYTES,
    ) -> None:
        """`is_flexible`: permits whitespace between JSON tokens. `is_open`: permits undeclared properties."""
        self.is_flexible = is_flexible
        self._order = partial(GrammarOrder, is_flexible=is_flexible, is_open=is_open)
        self._make = make
        self.mark = mark
        self._cache: LruCache[Union[MadeGrammar, RefusedGrammar]] = LruCache(remembered_bytes)

    def prepare(self) -> None:
        """Make a grammar even if cached, so that its process has read the vocabulary."""
        order = self._order(source=GrammarSource.ANY_OBJECT)
        made = self._make(order)
        self._cache.put(_digest(order), made, _num_bytes(made))

    def of_schema(
        self,
        schema: Mapping[str, object],
        param: str,
        *,
        strict: bool = True,
        pointer: str = "",
        values: ValueSpelling = JSON_VALUES,
    ) -> CheckedGrammar:
        """Report unenforced keywords unless `strict`. `pointer`: place of the wanted schema."""
        order = self._order(
            source=GrammarSource.SCHEMA,
            text=json.dumps(schema),
            pointer=pointer,
            is_strict=strict,
            values=values,
        )
        made = self._made(param, order)
        paths = tuple(f"{param_at(param, path)}.{keyword}" for path, keyword in made.unenforced)
        return CheckedGrammar(made.lark, made.rules, paths, is_json=True, share=made.share)

    def of_any_object(self, param: str) -> CheckedGrammar:
        made = self._made(param, self._order(source=GrammarSource.ANY_OBJECT))
        return CheckedGrammar(made.lark, made.rules, is_json=True)

    def of_regex(self, pattern: str, param: str) -> CheckedGrammar:
        return self._plain(GrammarSource.REGEX, param, pattern)

    def of_choices(self, choices: list[str], param: str) -> CheckedGrammar:
        return self._plain(GrammarSource.CHOICES, param, json.dumps(choices))

    def of_text(self, gbnf: str, param: str) -> CheckedGrammar:
        if len(gbnf) > _LONGEST:
            message = f"The grammar is too large: more than {_LONGEST} characters."
            raise InvalidRequest(message, param=param)
        return self._plain(GrammarSource.GBNF, param, gbnf)

    def of_tool_text(self, source: GrammarSource, text: str, param: str, *, text_end: str) -> CheckedGrammar:
        """`text_end`: mark that ends a raw text, or "" for a JSON string."""
        made = self._made(param, self._order(source=source, text=text, text_end=text_end))
        return CheckedGrammar(made.lark, made.rules, share=made.share, is_raw=made.is_raw)

    def composed(self, root: str, parts: Mapping[str, bytes], param: str) -> str:
        """Return Lark. `root`: GBNF that names the parts."""
        return self._made(param, self._order(source=GrammarSource.PARTS, text=root, parts=parts)).lark

    def of_parts(self, root: str, parts: Mapping[str, CheckedGrammar], param: str) -> CheckedGrammar:
        """Combine the parts and their unenforced keywords."""
        rules = {name: part.rules for name, part in parts.items()}
        made = self._made(param, self._order(source=GrammarSource.PARTS, text=root, parts=rules))
        left_out = tuple(path for part in parts.values() for path in part.unenforced)
        return CheckedGrammar(
            made.lark, made.rules, left_out, share=sum(part.share for part in parts.values())
        )

    def _plain(self, source: GrammarSource, param: str, text: str) -> CheckedGrammar:
        made = self._made(param, self._order(source=source, text=text))
        return CheckedGrammar(made.lark, made.rules)

    def _made(self, param: str, order: GrammarOrder) -> MadeGrammar:
        """Cache refusals too, by digest because orders are long."""
        if self.mark is not None:
            self.mark.set()
        made = self._cache.get_or_make(_digest(order), partial(self._make, order), _num_bytes)
        if isinstance(made, RefusedGrammar):
            place = param if made.path is None else param_at(param, made.path)
            raise InvalidRequest(made.message, param=place, code=made.code or "invalid_value")
        return made


def _digest(order: GrammarOrder) -> bytes:
    kind = f"{order.source.value} {order.is_strict} {order.is_flexible} {order.is_open} {order.values} "
    found = hashlib.sha256(
        (kind + f"{len(order.text)} " + order.text + order.pointer + order.text_end).encode(
            errors="surrogatepass"
        )
    )
    for name, part in order.parts.items():
        found.update(f"{name} {len(part)} ".encode() + part)
    return found.digest()


def _num_bytes(made: Union[MadeGrammar, RefusedGrammar]) -> int:
    if isinstance(made, RefusedGrammar):
        return sys.getsizeof(made.message) + sys.getsizeof(made.path)
    return sum(map(sys.getsizeof, (made.lark, made.rules, *sum(made.unenforced, ()))))


def param_at(param: str, pointer: str) -> str:
    """Convert `/properties/a/anyOf/0` in `x` to `x.properties.a.anyOf[0]`."""
    parts = pointer.split("/")[1:]
    return param + "".join(f"[{part}]" if part.isdecimal() else f".{part[:64]}" for part in parts)
