"""Bodies and their resolved calls, recorded in `resolved/`.

A section of a file has a title, the options of its model as `{...}`, and a path with a body. The fields of
each further line complete that body. The indented line below has the differences of the call from the first
of its section; `«300»` is the control token 300. Below an output of the last call, `> "..."`, are its parts.
Below `? "..."` is whether the constraint of the last call allows that output.
`pytest --inline-snapshot=fix tests/api/test_resolved.py` updates the records.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from inline_snapshot import external_file

from openai_cpu_server.api.chat.routes import CHAT
from openai_cpu_server.api.completions.routes import COMPLETIONS
from openai_cpu_server.api.generate.routes import GENERATE
from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.messages.routes import COUNTED, MESSAGES_API
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.errors import ServerError
from openai_cpu_server.http.context import Caller
from openai_cpu_server.http.errors import error_object
from openai_cpu_server.models.served import ModelThinking
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning import template_reasoning
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, CallBegin, Part
from tests.api.calls import engine_events, tokens_of
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.resolving import Responses, resolved
from tests.api.test_exchanges import REPEATED
from tests.api.test_refusals import repeated
from tests.api.test_tool_formats import CONTROL, PLAIN, TAUGHT
from tests.fakes import FAKE_INFO, STATEFUL_INFO
from tests.reading import model_read_here

FOLDER = Path(__file__).parent / "resolved"
FAMILIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/generate": GENERATE,
    "/v1/messages": MESSAGES_API,
    "/v1/messages/count_tokens": COUNTED,
    "/v1/responses": Responses(),
}


class Section:
    """Section of a file, with its model, its base body and its last call."""

    def __init__(
        self,
        base: str,
        *,
        template: str | None = FakeTokenizer.chat_template,
        form: str = "demo",
        is_on: bool | None = None,
        budget: int | None = None,
        is_flexible: bool = False,
        has_control: bool = False,
        has_fim: bool = False,
        has_boundaries: bool = False,
    ) -> None:
        """`is_on` and `budget` are the server's options for thinking. With `has_control`, the marks of all
        tool formats are control tokens."""
        self._base = base
        self._first: dict[str, Any] | None = None
        compiled = None if template is None else ChatTemplate(template, bos_text="<s>", eos_text="</s>")
        reasoning = compiled and template_reasoning(compiled)
        self._follower = TAUGHT if has_control else PLAIN
        self._info = STATEFUL_INFO if has_boundaries else FAKE_INFO
        self._model = model_read_here(
            names=("fake", "other"),
            engine=FakeEngine(),
            tokenizer=FakeTokenizer(has_fim=has_fim, control=CONTROL if has_control else ()),
            template=compiled,
            tool_format=TOOL_FORMATS[form],
            is_flexible=is_flexible,
            thinking=ModelThinking(reasoning, is_on=is_on, budget=budget) if reasoning else None,
        )

    def record(self, line: str) -> str:
        """Return the line that follows this one in the record."""
        if line.startswith("? "):
            constraint = self._call.requests[0].constraint
            is_one = constraint is None or self._follower.accepts(constraint, json.loads(line[2:]))
            return "yes" if is_one else "no"
        if line.startswith("> "):
            return self._read(json.loads(line[2:]))
        path, _, base = self._base.partition(" ")
        changes = "{}" if line is self._base else REPEATED.sub(repeated, line)
        body = {**json.loads(base), **json.loads(changes)}
        try:
            self._call = resolved(FAMILIES[path], self._model, body, Caller(), self._info)
        except ServerError as error:
            return msgspec.json.encode(error_object(error, request_id="r").error).decode()
        found = json.loads(json.dumps(facts(self._call), default=str))
        if "seed" not in body:
            del found["sampling.seed"]
        if "constraint.grammar" in found:
            found["constraint.grammar"] = True
        first = self._first or {}
        unlike = {name: found.get(name) for name in found | first if found.get(name) != first.get(name)}
        self._first = self._first or found
        return json.dumps(unlike, ensure_ascii=False)

    def _read(self, output: str) -> str:
        """Read an output letter by letter."""
        call, parts = self._call, list[Part]()
        letters = (TokenEvent(id=call.requests[0].id, tokens=tokens_of(char), text=char) for char in output)
        events = itertools.chain.from_iterable(engine_events(call, letters))
        for part in itertools.chain.from_iterable(map(call.reader().read, events)):
            if parts and type(part) is type(parts[-1]) and not isinstance(part, CallBegin):
                part = msgspec.structs.replace(part, text=parts.pop().text + part.text)
            parts.append(part)
        return " ".join(map(repr, parts))


def shown(tokens: Sequence[int]) -> str:
    runs = itertools.groupby(tokens, lambda token: 2 <= token < 258)
    pieces = ((is_text, [*run]) for is_text, run in runs)
    return "".join(
        bytes(token - 2 for token in run).decode() if is_text else "".join(f"«{token}»" for token in run)
        for is_text, run in pieces
    )


def facts(call: ResolvedRequest) -> dict[str, Any]:
    """Facts about a call and its first request, without defaults."""
    request = call.requests[0]
    found = {"prompts": [shown(prompt.tokens) for prompt in call.prompts]}
    found["echo"] = [prompt.echo for prompt in call.prompts if prompt.echo is not None]
    found |= fields_of(request, "tokens", "id", "constraint", "sampling", "priority")
    found |= {f"sampling.{name}": value for name, value in fields_of(request.sampling)}
    found |= {f"constraint.{name}": value for name, value in fields_of(request.constraint)}
    found |= fields_of(call, "id", "created", "fingerprint", "prompts", "requests", "tool_calls", "thinking")
    if style := call.tool_calls:
        found["calls"] = [style.form.name, style.reason, *(["legacy"] if style.is_legacy else [])]
    if thinking := call.thinking:
        found["thinks"] = [thinking.stage.name, *(["hidden"] if thinking.is_hidden else [])]
    if len(call.requests) > 1:
        found["seeds"] = [each.sampling.seed for each in call.requests]
    return found


def fields_of(struct: msgspec.Struct | None, *excluded: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields whose values are not defaults."""
    for field in msgspec.structs.fields(struct) if struct else ():
        value = getattr(struct, field.name)
        if field.name in excluded or value in (field.default, "", None, {}, ()):
            continue
        if field.name in ("opening", "closing"):
            value = shown(value)
        yield field.name, dict(fields_of(value)) if isinstance(value, msgspec.Struct) else value


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_calls_are_as_recorded(name: str) -> None:
    sections = []
    for section in (FOLDER / f"{name}.txt").read_text("utf-8").split("\n\n## "):
        title, *lines = [line for line in section.split("\n") if line and not line.startswith("    ")]
        record = [title, *(lines.pop(0) for _ in range(lines[0].startswith("{")))]
        recorded_section = Section(lines[0], **(json.loads(record[1]) if record[1:] else {}))
        for line in lines:
            record += [line] if line.startswith("# ") else [line, f"    {recorded_section.record(line)}"]
        sections.append("\n".join(record))
    assert "\n\n\n## ".join(sections) + "\n" == external_file(f"resolved/{name}.txt")
