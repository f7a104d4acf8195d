"""`[prices.MODEL]` of the TOML file: what a million tokens cost, for `GET /v1/usage`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from openai_cpu_server.contract.usage import Price


class PriceTable(BaseModel):
    model_config = ConfigDict(extra="forbid")

    input: float = Field(ge=0, allow_inf_nan=False, description="for a million input tokens")
    cached: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="for those that were not computed; default: as input"
    )
    output: float = Field(ge=0, allow_inf_nan=False, description="for a million output tokens")

    @property
    def price(self) -> Price:
        cached = self.input if self.cached is None else self.cached
        return Price(input=self.input, cached=cached, output=self.output)
