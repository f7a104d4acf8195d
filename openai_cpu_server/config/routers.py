"""`router` of a table `[models.NAME]`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from openai_cpu_server.models.routing.options import (
    Cascade,
    Classifier,
    Examples,
    RouterOptions,
    RoutingPolicy,
    Rule,
    Rules,
    Shares,
    Stickiness,
)

_PROMPT = "Which of these is best for the request below? Answer with one of: {routes}.\n\nRequest:\n{request}"
_TIMEOUT_S = 10.0


_MOST = 2**31 - 1
"""Native code's limit. Sizes in MiB stay below 2**63 bytes."""


class Bounded(BaseModel):
    """Options whose numbers are finite and fit their receivers."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _is_not_too_large(cls, value: object) -> object:
        if isinstance(value, int) and value > _MOST:
            raise ValueError(f"must be less than or equal to {_MOST}")
        return value


class Table(Bounded):
    """Table of the TOML file. Unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid")


class RuleTable(Table):
    route: str
    prompt_tokens_over: int | None = Field(None, ge=0)
    max_tokens_over: int | None = Field(None, ge=0)
    tools: bool | None = None
    schema_: bool | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _has_a_condition(self) -> RuleTable:
        if self.model_fields_set <= {"route"}:
            raise ValueError("a rule needs a condition; requests that match no rule go to 'otherwise'")
        return self


class ClassifierTable(Table):
    model: str
    prompt: str = _PROMPT
    timeout: float = Field(_TIMEOUT_S, gt=0)

    @model_validator(mode="after")
    def _shows_the_request(self) -> ClassifierTable:
        if "{request}" not in self.prompt:
            raise ValueError("the prompt must contain {request}")
        return self


class ExamplesTable(Table):
    model: str
    texts: dict[str, Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]]
    least_similarity: float = Field(-1.0, ge=-1, le=1)
    timeout: float = Field(_TIMEOUT_S, gt=0)


class CascadeTable(Table):
    small: str = "small"
    large: str = "large"
    mean_logprob: float = Field(le=0)
    when_streaming: Literal["hold", "large"] = "hold"


class SharesTable(Table):
    weights: dict[str, Annotated[float, Field(ge=0)]]
    sticky: Literal["user", "key", "none"] = "user"

    @model_validator(mode="after")
    def _draws_something(self) -> SharesTable:
        if sum(self.weights.values()) <= 0:
            raise ValueError("the weights are all 0")
        return self


class RouterTable(Bounded):
    """Options of a router. All other keys are routes, such as `small = "smollm2"`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str] = Field(init=False)

    by: Literal["rules", "classifier", "examples", "cascade", "shares"]
    otherwise: str | None = None
    rules: list[RuleTable] | None = None
    classifier: ClassifierTable | None = None
    examples: ExamplesTable | None = None
    cascade: CascadeTable | None = None
    shares: SharesTable | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> RouterTable:
        ways = ("rules", "classifier", "examples", "cascade", "shares")
        tables = [way for way in ways if getattr(self, way)]
        if tables != [self.by]:
            others = [way for way in tables if way != self.by]
            problem = f"and has '{others[0]}'" if others else f"and has no '{self.by}'"
            raise ValueError(f"the router chooses by {self.by!r}, {problem}")
        if not self.routes:
            raise ValueError("the router has no routes, such as small = 'smollm2'")
        unknown = [name for name in self._named_routes() if name not in self.routes]
        if unknown:
            raise ValueError(f"unknown route {unknown[0]!r}; the routes are {', '.join(self.routes)}")
        return self

    @property
    def routes(self) -> dict[str, str]:
        return dict(self.__pydantic_extra__)

    def options(self, names: tuple[str, ...]) -> RouterOptions:
        routes = self.routes
        return RouterOptions(
            names=names, routes=routes, otherwise=self.otherwise or next(iter(routes)), way=self._way()
        )

    def _named_routes(self) -> list[str]:
        named = [] if self.otherwise is None else [self.otherwise]
        named += [rule.route for rule in self.rules or ()]
        named += self.examples.texts if self.examples else ()
        named += (self.cascade.small, self.cascade.large) if self.cascade else ()
        return [*named, *(self.shares.weights if self.shares else ())]

    def _way(self) -> RoutingPolicy:
        if self.classifier is not None:
            prompt = self.classifier.prompt.replace("{routes}", ", ".join(self.routes))
            return Classifier(model=self.classifier.model, prompt=prompt, timeout_s=self.classifier.timeout)
        if self.examples is not None:
            pairs = ((route, text) for route, texts in self.examples.texts.items() for text in texts)
            return Examples(
                model=self.examples.model,
                texts=tuple(pairs),
                least_similarity=self.examples.least_similarity,
                timeout_s=self.examples.timeout,
            )
        if self.cascade is not None:
            return msgspec.convert(self.cascade.model_dump(), Cascade)
        if self.shares is not None:
            return Shares(weights=tuple(self.shares.weights.items()), sticky=Stickiness(self.shares.sticky))
        return Rules(tuple(Rule(**rule.model_dump(by_alias=True)) for rule in self.rules or ()))
