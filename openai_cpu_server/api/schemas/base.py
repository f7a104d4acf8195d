"""What all bodies have in common: strict types, `null` means absent, unknown fields are kept to be named."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)

    @property
    def extra(self) -> dict[str, object]:
        """Fields that no schema names and that ask for something."""
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}


def unknown_fields(body: Body, at: str = "") -> Iterator[str]:
    """The paths, such as `messages[0].colour`, of all fields that no schema names."""
    yield from (at + name for name in body.extra)
    for name in type(body).model_fields:
        value = getattr(body, name)
        if isinstance(value, Body):
            yield from unknown_fields(value, f"{at}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], (Body, str)):
            for index, item in enumerate(value):
                if isinstance(item, Body):  # beside texts, too
                    yield from unknown_fields(item, f"{at}{name}[{index}].")
