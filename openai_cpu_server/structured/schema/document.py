"""JSON, draft and references of a schema."""

from __future__ import annotations

import enum
import functools
import math
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Union
from urllib.parse import unquote, urljoin, uses_relative

import msgspec
from referencing import Registry, Resource, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT4, DRAFT6, DRAFT7, DRAFT201909, DRAFT202012, lookup_recursive_ref

from openai_cpu_server.structured.options import Budget, UnsupportedSchema

if TYPE_CHECKING:
    from referencing._core import Resolver

Json = Union[None, bool, int, float, str, list["Json"], dict[str, "Json"]]
Schema = dict[str, Json]

_LONGEST_NUMBER_BITS = 1_200


def is_finite(value: int | float) -> bool:
    return math.isfinite(value) if isinstance(value, float) else value.bit_length() <= _LONGEST_NUMBER_BITS


def exact(value: int | float) -> Decimal:
    """Return a float as it is written, so that 0.1 is one tenth. Zero has no sign."""
    found = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return found if found else found.copy_abs()


class Draft(enum.Enum):
    THREE = ("draft-03",)
    OLD = ("draft-04", "draft-05", "draft-06", "draft-07")
    """Drafts in which `$ref` disables the keywords beside it."""
    D2019 = ("2019-09",)
    D2020 = ("2020-12",)
    """Draft 2020-12, and documents that name no draft."""


_SPECIFICATIONS = {
    "draft-04": DRAFT4,
    "draft-05": DRAFT4,
    "draft-06": DRAFT6,
    "draft-07": DRAFT7,
    "2019-09": DRAFT201909,
}
"""Parts of `$schema`. Other documents are read as 2020-12."""


def draft_of(root: Json, otherwise: Draft = Draft.D2020) -> Draft:
    dialect = root.get("$schema") if isinstance(root, dict) else None
    named = (d for d in Draft if isinstance(dialect, str) and any(name in dialect for name in d.value))
    return next(named, otherwise)


_STEPS_PER_SCHEMA = 4
_DYNAMIC = frozenset({"$dynamicAnchor", "$recursiveAnchor"})
_ROOT_URI = "urn:root"

ResourcePath = tuple[str, ...]
"""Resources through which references led to a schema, outermost first."""
Target = Union[str, bool]


class _Container(msgspec.Struct, frozen=True):
    value: dict[str, Json] | list[Json]
    parent: _Container | None
    name: str
    draft: Draft
    depth: int

    @property
    def pointer(self) -> str:
        parts, place = [], self
        while place.parent is not None:
            parts.append(f"/{escaped(place.name)}")
            place = place.parent
        return "".join(reversed(parts))


class _Library:
    def __init__(self, root: Json, specification: Specification[Json]) -> None:
        resource = Resource.from_contents(root, default_specification=specification)
        self.root = resource.id() or _ROOT_URI
        self.registry: Registry[Json] = Registry[Json]().with_resource(self.root, resource)
        # A part that is not a schema is reported where it is read, and no reference leads into it.
        with suppress(*_LEADS_NOWHERE):
            self.registry = self.registry.crawl()
        self._addresses = {id(self.registry[uri].contents): uri for uri in self.registry}

    def address(self, container: _Container | None) -> str:
        while container is not None:
            uri = self._addresses.get(id(container.value))
            if uri is not None:
                return uri
            container = container.parent
        return self.root

    def resolver(self, base: str, scope: ResourcePath) -> Resolver[Any]:
        first, *others = dict.fromkeys((*scope, base))
        resolver: Resolver[Any] = self.registry.resolver(first)
        for uri in [*others, base]:
            resolver = resolver.lookup(uri).resolver
        return resolver


_LEADS_NOWHERE = (Unresolvable, AttributeError, TypeError, ValueError, LookupError)
"""Errors of the library for dangling references, and for documents that are not schemas."""


def _joined(base: str, reference: str) -> str:
    """Resolve under a scheme that `urljoin` does not know, such as `app`."""
    scheme, mark, rest = base.partition("://")
    if not mark or scheme in uses_relative or ":" in reference.partition("/")[0]:
        return reference
    return scheme + urljoin(f"http://{rest}", reference).removeprefix("http")


class References:
    def __init__(self, root: Json, budget: Budget, draft: Draft) -> None:
        self._root = root
        self._draft = draft
        self._budget = budget
        self._containers: dict[int, _Container] = {}
        self._keys: set[str] = set()
        self._scan()
        self._is_dynamic = not _DYNAMIC.isdisjoint(self._keys)

    def _scan(self) -> None:
        """A loop, because deep nesting must not exhaust the stack."""
        queue = []
        if isinstance(self._root, (dict, list)):
            queue.append(_Container(self._root, None, "", self._draft, 0))
        for each in queue:
            self._budget.spend("containers")
            self._budget.check("depth", each.depth // _STEPS_PER_SCHEMA, "")
            self._containers.setdefault(id(each.value), each)
            value, draft = each.value, each.draft
            if isinstance(value, dict):
                self._keys.update(value)
                draft = draft_of(value, draft)
                children = list(value.items())
            else:
                children = [(str(i), v) for i, v in enumerate(value)]
            queue += [
                _Container(v, each, k, draft, each.depth + 1)
                for k, v in children
                if isinstance(v, (dict, list))
            ]

    def draft(self, schema: Schema) -> Draft:
        container = self._containers.get(id(schema))
        return draft_of(schema, container.draft if container else self._draft)

    @functools.cached_property
    def _libraries(self) -> list[_Library]:
        """A document without a draft but with `id`s is also read as draft 4."""
        dialect = self._root.get("$schema") if isinstance(self._root, dict) else None
        named = (
            each for name, each in _SPECIFICATIONS.items() if isinstance(dialect, str) and name in dialect
        )
        found = [_Library(self._root, next(named, DRAFT202012))]
        return [*found, _Library(self._root, DRAFT4)] if dialect is None and "id" in self._keys else found

    def entered(self, scope: ResourcePath, pointer: str) -> ResourcePath:
        if not self._is_dynamic:
            return ()
        uri = self._libraries[0].address(self._container(pointer))
        return scope if uri in scope else (*scope, uri)

    def find(self, reference: str, at: str) -> Target:
        for library in self._libraries:
            # Many documents count from their own root, wherever the reference stands.
            for base in dict.fromkeys((library.address(self._container(at)), library.root)):
                for address in dict.fromkeys((reference, _joined(base, reference))):
                    with suppress(*_LEADS_NOWHERE):
                        return self._target(library.registry.resolver(base).lookup(address).contents)
        with suppress(
            *_LEADS_NOWHERE
        ):  # what the library makes no sense of, such as lists of `items` in 2020-12
            if reference.startswith("#/"):
                return self._target(self.value(unquote(reference[1:])))
        raise _dangling(at, "$ref", reference)

    def find_dynamic(self, keyword: str, reference: str, at: str, scope: ResourcePath) -> Target:
        library = self._libraries[0]
        try:
            resolver = library.resolver(library.address(self._container(at)), scope)
            if keyword == "$recursiveRef" and reference == "#":
                return self._target(lookup_recursive_ref(resolver).contents)
            return self._target(resolver.lookup(reference).contents)
        except _LEADS_NOWHERE:
            raise _dangling(at, keyword, reference) from None

    def _target(self, found: object) -> Target:
        if not isinstance(found, (bool, dict)):
            raise LookupError(found)
        return found if isinstance(found, bool) else self._containers[id(found)].pointer

    def _container(self, pointer: str) -> _Container | None:
        return self._containers.get(id(self.value(pointer)))

    def value(self, pointer: str) -> Json:
        value = self._root
        for part in pointer.split("/")[1:]:
            if isinstance(value, list) and part.isascii() and part.isdigit():
                value = value[int(part)]
            elif isinstance(value, dict):
                value = value[part.replace("~1", "/").replace("~0", "~")]
            else:
                raise KeyError(part)
        return value


def _dangling(at: str, keyword: str, reference: str) -> UnsupportedSchema:
    return UnsupportedSchema(at, keyword, f"to {reference[:100]!r} leads to nothing in this schema")


def escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
