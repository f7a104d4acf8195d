"""What all bodies have in common: strict types, `null` means absent, fields without effect are found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from openai_cpu_server.api.schemas.unheeded import Hints, Refusal, Refusals, is_one_of
from openai_cpu_server.json_size import MOST_NUMBERS


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True, defer_build=True)

    hints: ClassVar[Hints] = {}
    refusals: ClassVar[Refusals] = {}
    most_numbers: ClassVar[int] = MOST_NUMBERS
    """A body may have so many values that are no strings, lists or objects."""
    is_open: ClassVar[bool] = False
    """Fields that no schema names change nothing here, whatever they are."""

    @property
    def extra(self) -> dict[str, object]:
        """Fields that no schema names and that ask for something."""
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describes the fields without effect too, for they are accepted."""
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        schema["additionalProperties"] = cls.is_open
        known = schema.setdefault("properties", {})
        for name, hint in cls.hints.items():
            known.setdefault(name, {"description": f"Ignored: {hint.why}.", "x-ignored": True})
        for name, refusal in cls.refusals.items():
            described = f"Nothing else is supported: {refusal.why}."
            accepted = {"enum": [*refusal.accepted, None], "description": described, "x-refused": True}
            known.setdefault(name, accepted)
        return reference


class Unheeded(NamedTuple):
    """A field that nobody will read."""

    path: str
    """`messages[3].colour`."""
    kind: str
    """`messages[].colour`: the same for all elements of a list."""
    is_harmless: bool
    refusal: Refusal | None


def unheeded(body: Body, at: str = "", kind: str = "") -> Iterator[Unheeded]:
    """The fields, at any depth, that no schema names or that have no effect with the value given."""
    for name, value in body.extra.items():
        if not _asks_for_nothing(body, name, value):
            is_harmless = body.is_open or name in body.hints
            yield Unheeded(at + name, kind + name, is_harmless, body.refusals.get(name))
    for name in type(body).model_fields:
        value = getattr(body, name)
        if name in body.hints and value is not None and not _asks_for_nothing(body, name, value):
            yield Unheeded(at + name, kind + name, is_harmless=True, refusal=None)
        elif isinstance(value, Body):
            yield from unheeded(value, f"{at}{name}.", f"{kind}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], (Body, str)):
            for index, item in enumerate(value):
                if isinstance(item, Body):  # beside texts, too
                    yield from unheeded(item, f"{at}{name}[{index}].", f"{kind}{name}[].")


def _asks_for_nothing(body: Body, name: str, value: object) -> bool:
    refusal, hint = body.refusals.get(name), body.hints.get(name)
    accepted = refusal.accepted if refusal is not None else hint.heeded if hint is not None else ()
    return is_one_of(value, accepted)
