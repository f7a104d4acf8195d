"""xgrammar's structural tags, as vLLM and SGLang take them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union

from pydantic import Field

from openai_cpu_server.api.generation import schema as shared
from openai_cpu_server.api.generation.output import MOST_SHARES
from openai_cpu_server.api.generation.params import FormParam, JsonObject
from openai_cpu_server.errors import missing, wrong
from openai_cpu_server.http.parse import Body, by_type, parse_fields
from openai_cpu_server.models.grammars import CheckedGrammar, ModelGrammars
from openai_cpu_server.prompt.tool_formats.patterns import quoted

_MOST_FORMATS = 256
_SPECIAL = re.compile(r"[\\^$.*+?()\[\]{}|/-]")
_Breakers = Annotated[list[shared.Breaker], Field(max_length=16, fail_fast=True)]
_Triggers = Annotated[shared.NonEmptyList[shared.Breaker], Field(max_length=16)]


class _ConstString(Body):
    type: Literal["const_string"]
    value: str


class _Schema(Body):
    type: Literal["json_schema"]
    json_schema: Union[bool, JsonObject]
    style: Literal["json"] | None = None
    """JSON alone, because `tools` makes the styles of tool calls."""


class _AnyText(Body):
    type: Literal["any_text"]
    excludes: _Breakers | None = None


class _Grammar(Body):
    type: Literal["grammar"]
    grammar: str


class _Regex(Body):
    type: Literal["regex"]
    pattern: str


class _SequenceOrChoice(Body):
    type: Literal["sequence", "or"]
    elements: shared.NonEmptyList[_Format]


class _Tag(Body):
    type: Literal["tag"] = "tag"
    begin: str
    content: _Format
    end: shared.TextOrList[shared.NonEmptyList[str]]
    """Alternatives. With an empty one the following content marks the end."""


class _Tags(Body):
    tags: shared.NonEmptyList[_Tag]
    at_least_one: bool | None = None
    stop_after_first: bool | None = None


class _TriggeredTags(_Tags):
    """A tag comes before free text with `at_least_one`, as in xgrammar."""

    type: Literal["triggered_tags"]
    triggers: _Triggers
    excludes: _Breakers | None = None


class _SeparatedTags(_Tags):
    type: Literal["tags_with_separator"]
    separator: str


_Format = Annotated[
    Union[
        _ConstString,
        _Schema,
        _AnyText,
        _Grammar,
        _Regex,
        _SequenceOrChoice,
        _Tag,
        _TriggeredTags,
        _SeparatedTags,
    ],
    by_type(
        "tag_format",
        "Input should be an object whose 'type' is one of const_string, json_schema, any_text, grammar, "
        "regex, sequence, or, tag, triggered_tags, tags_with_separator",
    ),
]


class _StructuralTag(Body):
    type: Literal["structural_tag"]
    format: _Format | None = None
    structures: Annotated[shared.NonEmptyList[shared.TagStructure], Field(max_length=64)] | None = None
    triggers: _Triggers | None = None


class _PlacedTag(NamedTuple):
    begin: str
    ends: tuple[str, ...]
    content: Any
    at: str
    content_at: str

    @classmethod
    def of(cls, tag: _Tag | shared.TagStructure, at: str) -> _PlacedTag:
        ends = (tag.end,) if isinstance(tag.end, str) else tuple(tag.end)
        if isinstance(tag, _Tag):
            return cls(tag.begin, ends, tag.content, at, f"{at}.content")
        schema = _Schema(type="json_schema", json_schema=tag.json_schema)
        return cls(tag.begin, ends, schema, at, f"{at}.schema")


def tag_form(fields: JsonObject, at: str) -> FormParam:
    """Build the form of a tag at this path. Raises InvalidRequest."""
    wanted, _ = parse_fields(_StructuralTag, fields, lenient=False, at=at)
    whole, place = wanted.format, f"{at}.format"
    if whole is None:
        return _older_form(wanted, at)
    if wanted.structures is not None or wanted.triggers is not None:
        raise wrong(f"'{place}' and 'structures' cannot be combined.", place)

    def make(grammars: ModelGrammars) -> CheckedGrammar:
        writer = _Writer(grammars, at)
        return writer.finish(writer.written(whole, place, ()))

    return FormParam(at, make, at)


def _older_form(wanted: _StructuralTag, at: str) -> FormParam:
    if wanted.structures is None or wanted.triggers is None:
        raise missing(f"{at}.{'structures' if wanted.structures is None else 'triggers'}")
    triggers, tags = wanted.triggers, _placed(wanted.structures, f"{at}.structures")
    _require_triggers(tags, triggers)

    def make(grammars: ModelGrammars) -> CheckedGrammar:
        writer = _Writer(grammars, at)
        free = writer.text_without(triggers, f"{at}.triggers")
        return writer.finish(f"{free} ({writer.one_of(tags, ())} {free})*")

    return FormParam(at, make, at)


def _placed(tags: Sequence[_Tag | shared.TagStructure], at: str) -> list[_PlacedTag]:
    return [_PlacedTag.of(one, f"{at}[{index}]") for index, one in enumerate(tags)]


def _require_triggers(tags: Sequence[_PlacedTag], triggers: Sequence[str]) -> None:
    for tag in tags:
        if not tag.begin.startswith(tuple(triggers)):
            path = f"{tag.at}.begin"
            raise wrong(f"Invalid value for '{path}': it must begin with one of the triggers.", path)


class _Writer:
    """Writer of one GBNF grammar, which names parts with grammars of their own."""

    def __init__(self, grammars: ModelGrammars, param: str) -> None:
        self._grammars = grammars
        self._param = param
        self._parts: dict[str, CheckedGrammar] = {}
        self._rules: list[str] = []
        self._texts: dict[tuple[str, ...], str] = {}
        self._num_formats = 0
        self._spent = 0.0

    def finish(self, root: str) -> CheckedGrammar:
        return self._grammars.of_parts("\n".join([root, *self._rules, ""]), self._parts, self._param)

    def written(self, wanted: Any, at: str, ends: tuple[str, ...]) -> str:
        """`ends`: strings of the tag around, which trailing free text must not contain."""
        self._num_formats += 1
        if self._num_formats > _MOST_FORMATS:
            raise wrong(f"More than {_MOST_FORMATS} formats.", at)
        match wanted:
            case _ConstString():
                return quoted(wanted.value)
            case _AnyText():
                return self.text_without((*(wanted.excludes or ()), *ends), at)
            case _SequenceOrChoice():
                return self._several(wanted, at, ends)
            case _Tag():
                return self._tag(_PlacedTag.of(wanted, at), ends)
            case _TriggeredTags():
                return self._triggered(wanted, at, ends)
            case _SeparatedTags():
                tag = self.one_of(_placed(wanted.tags, f"{at}.tags"), ())
                several = tag if wanted.stop_after_first else f"({tag} ({quoted(wanted.separator)} {tag})*)"
                return several if wanted.at_least_one else f"{several}?"
            case _Regex():
                return self._part(self._grammars.of_regex(wanted.pattern, f"{at}.pattern"))
            case _Grammar():
                return self._part(self._grammars.of_text(wanted.grammar, f"{at}.grammar"))
            case _:
                return self._part(self._schema(wanted, at))

    def text_without(self, breakers: Sequence[str], at: str) -> str:
        key = tuple(dict.fromkeys(filter(None, breakers)))
        if key not in self._texts:
            patterns = "|".join(_SPECIAL.sub(r"\\\g<0>", one) for one in key)
            pattern = rf"(?:(?!{patterns})[\s\S])*" if key else r"[\s\S]*"
            self._texts[key] = self._part(self._grammars.of_regex(pattern, at))
        return self._texts[key]

    def one_of(self, tags: Sequence[_PlacedTag], ends: tuple[str, ...]) -> str:
        expression = " | ".join(self._tag(tag, ends) for tag in tags)
        name = f"t{len(self._rules)}"
        self._rules.append(f"{name} ::= {expression}")
        return name

    def _tag(self, tag: _PlacedTag, ends: tuple[str, ...]) -> str:
        if not tag.begin and "" in tag.ends:
            raise wrong(f"'{tag.at}' has neither a beginning nor an end.", f"{tag.at}.begin")
        own = tuple(filter(None, tag.ends))
        content = self.written(tag.content, tag.content_at, own if len(own) == len(tag.ends) else ends)
        return f"{quoted(tag.begin)} {content} ({' | '.join(map(quoted, tag.ends))})"

    def _several(self, wanted: _SequenceOrChoice, at: str, ends: tuple[str, ...]) -> str:
        last, is_choice = len(wanted.elements) - 1, wanted.type == "or"
        each = [
            self.written(one, f"{at}.elements[{index}]", ends if is_choice or index == last else ())
            for index, one in enumerate(wanted.elements)
        ]
        return f"({(' | ' if is_choice else ' ').join(each)})"

    def _triggered(self, wanted: _TriggeredTags, at: str, ends: tuple[str, ...]) -> str:
        tags = _placed(wanted.tags, f"{at}.tags")
        _require_triggers(tags, wanted.triggers)
        breakers = (*wanted.triggers, *(wanted.excludes or ()), *ends)
        tag, free = self.one_of(tags, ends), self.text_without(breakers, f"{at}.triggers")
        if wanted.at_least_one:
            return tag if wanted.stop_after_first else f"({tag} ({free} {tag})* {free})"
        return f"({free} {tag}?)" if wanted.stop_after_first else f"({free} ({tag} {free})*)"

    def _schema(self, wanted: _Schema, at: str) -> CheckedGrammar:
        if wanted.json_schema is False:
            raise wrong("Nothing fits this schema.", f"{at}.json_schema")
        schema = {} if wanted.json_schema is True else wanted.json_schema
        place = at if at.endswith(".schema") else f"{at}.json_schema"
        grammar = self._grammars.of_schema(schema, place)
        self._spent += grammar.share
        if self._spent > MOST_SHARES:
            raise wrong("The schemas of this call are too large together.", place)
        return grammar

    def _part(self, grammar: CheckedGrammar) -> str:
        name = f"p{len(self._parts)}"
        self._parts[name] = grammar
        return name
