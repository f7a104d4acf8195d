"""A schema as a document: its JSON, its draft, and where its references lead."""

from __future__ import annotations

import enum
import math
from decimal import Decimal
from typing import Union
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

from openai_cpu_server.structured.options import Budget, UnsupportedSchema

Json = Union[None, bool, int, float, str, list["Json"], dict[str, "Json"]]
Schema = dict[str, Json]

_LONGEST_NUMBER_BITS = 1_200


def is_finite(value: int | float) -> bool:
    """Whether a number is finite and not absurdly long."""
    return math.isfinite(value) if isinstance(value, float) else value.bit_length() <= _LONGEST_NUMBER_BITS


def exact(value: int | float) -> Decimal:
    """A float as it was written, not as it is stored: 0.1 is one tenth. Zero has no sign."""
    found = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return found if found else found.copy_abs()


class Draft(enum.Enum):
    THREE = ("draft-03",)
    """The draft that is not supported."""
    OLD = ("draft-04", "draft-05", "draft-06", "draft-07")
    """The drafts in which `$ref` silences the keywords beside it."""
    D2019 = ("2019-09",)
    D2020 = ("2020-12",)
    """This draft, and all documents that name none."""


def draft_of(root: Json) -> Draft:
    dialect = root.get("$schema") if isinstance(root, dict) else None
    named = (d for d in Draft if isinstance(dialect, str) and any(name in dialect for name in d.value))
    return next(named, Draft.D2020)


_NO_SCHEMAS = frozenset({"enum", "const", "default", "examples"})


_STEPS_PER_SCHEMA = 4
"""For each level of schemas a document may go so many containers deep."""


class _Place(msgspec.Struct, frozen=True):
    """A container of the document: where it is, and the base address there."""

    value: dict[str, Json] | list[Json]
    parent: _Place | None
    name: str
    base: str
    depth: int

    @property
    def pointer(self) -> str:
        parts, place = [], self
        while place.parent is not None:
            parts.append(f"/{escaped(place.name)}")
            place = place.parent
        return "".join(reversed(parts))


class References:
    """Finds subschemas by address. An address is relative to the nearest enclosing `$id`.

    `is_old`: of a draft in which `$ref` silences its siblings, so that an `$id` among them is no base.
    """

    def __init__(self, root: Json, budget: Budget, is_old: bool) -> None:
        self._root = root
        self._is_old = is_old
        self._places: dict[str, str] = {"": ""}
        self._bases: dict[str, str] = {}
        self._dynamic: dict[str, dict[str, str]] = {}
        """The pointers of each `$dynamicAnchor`, by name and base. `$recursiveAnchor` has the name ""."""
        self._budget = budget
        self._scan()

    def _scan(self) -> None:
        """Store every `$id` and anchor. A loop does it, so that deep nesting cannot exhaust the stack."""
        queue = [_Place(self._root, None, "", "", 0)] if isinstance(self._root, (dict, list)) else []
        for place in queue:
            self._budget.spend("containers")
            self._budget.check("depth", place.depth // _STEPS_PER_SCHEMA)
            value, base = place.value, place.base
            if isinstance(value, dict):
                base = self._note(value, place)
                children = [(k, v) for k, v in value.items() if k not in _NO_SCHEMAS]
            else:
                children = [(str(i), v) for i, v in enumerate(value)]
            queue += [
                _Place(v, place, k, base, place.depth + 1) for k, v in children if isinstance(v, (dict, list))
            ]

    def _note(self, schema: dict[str, Json], place: _Place) -> str:
        """Store a schema's anchors. Returns the address to which its own references are relative."""
        base = self._named(schema, place)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(keyword)
            if isinstance(anchor, str):
                self._places.setdefault(f"{base}#{anchor}", place.pointer)
        dynamic = "" if schema.get("$recursiveAnchor") is True else schema.get("$dynamicAnchor")
        if isinstance(dynamic, str):
            self._dynamic.setdefault(dynamic, {}).setdefault(base, place.pointer)
        return base

    def _named(self, schema: dict[str, Json], place: _Place) -> str:
        """Store the schema's `$id`, and return the base address that follows from it."""
        name = schema.get("$id", schema.get("id"))
        if not isinstance(name, str) or place.name == "properties":
            return place.base
        address, fragment = _joined(place.base, name)
        if fragment and not fragment.startswith("/"):
            self._places.setdefault(f"{address}#{fragment}", place.pointer)
        if fragment:
            return place.base
        self._places.setdefault(address, place.pointer)
        if self._is_old and "$ref" in schema:
            return place.base
        self._bases[place.pointer] = address
        return address

    def find(self, reference: str, at: str) -> str:
        """The pointer of the schema that `reference` means, if it stands at the pointer `at`."""
        address, fragment = _joined(self._base(at), reference)
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            place = self._places.get(f"{address}#{fragment}", self._places.get(f"#{fragment}"))
            return self._known(place, at, reference)
        home = self._known(self._places.get(address), at, reference)
        return self._known(self._pointer(home, fragment), at, reference)

    def find_dynamic(self, reference: str, at: str) -> str | None:
        """The target of a `$dynamicRef` or `$recursiveRef`; None if it depends on the way that led there.

        The outermost anchor of that name counts, and the root of the document is always on the way.
        """
        target = self.find(reference, at)
        anchors = self._dynamic.get(unquote(urldefrag(reference).fragment), {})
        if target not in anchors.values():
            return target
        root = self._bases.get("", "")
        return anchors[root] if root in anchors else target if len(anchors) == 1 else None

    def _base(self, pointer: str) -> str:
        while pointer not in self._bases:
            if not pointer:
                return ""
            pointer = pointer.rpartition("/")[0]
        return self._bases[pointer]

    def _known(self, place: str | None, at: str, reference: str) -> str:
        if place is None:
            raise UnsupportedSchema(at, "$ref", f"to {reference[:100]!r} leads to nothing in this schema")
        return place

    def _pointer(self, home: str, fragment: str) -> str | None:
        """The pointer from the schema at `home`, or else (many schemas are
        written so) from the document's root."""
        return next((start + fragment for start in (home, "") if self._exists(start + fragment)), None)

    def _exists(self, pointer: str) -> bool:
        try:
            self.value(pointer)
        except (KeyError, IndexError, ValueError, TypeError):
            return False
        return True

    def value(self, pointer: str) -> Json:
        """The value at a pointer. Raises KeyError, IndexError, ValueError or TypeError if there is none."""
        value = self._root
        for part in pointer.split("/")[1:]:
            if isinstance(value, list) and part.isascii() and part.isdigit():
                value = value[int(part)]
            elif isinstance(value, dict):
                value = value[part.replace("~1", "/").replace("~0", "~")]
            else:
                raise KeyError(part)
        return value


def _joined(base: str, reference: str) -> tuple[str, str]:
    """Address and fragment of a joined address. An invalid address stays as it is, and so leads nowhere."""
    try:
        address, fragment = urldefrag(urljoin(base, reference))
    except ValueError:
        return reference, ""
    return address, fragment


def escaped(name: str) -> str:
    """A name as it stands in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
