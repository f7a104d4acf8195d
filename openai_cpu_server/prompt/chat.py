"""Rendering of a conversation in which only the template's own words become control tokens."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from openai_cpu_server.contract.model_info import ControlToken, SequenceMarks, Tokenizer
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.prompt.reasoning import (
    ReasoningField,
    TemplateReasoning,
    ThinkingStage,
    begun_answer,
    stage_behind,
    stage_within,
    with_echo,
)
from openai_cpu_server.prompt.template import (
    Message,
    PromptTemplate,
    content_text,
    template_messages,
    to_json,
)


class _Place(NamedTuple):
    start: int
    end: int
    token: ControlToken


class ControlNames:
    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        self._tokens = {token.text: token for token in tokens}
        by_first: dict[str, set[int]] = {}
        for name in self._tokens:
            by_first.setdefault(name[0], set()).add(len(name))
        self._lengths = {first: sorted(lengths, reverse=True) for first, lengths in by_first.items()}
        firsts = "".join(map(re.escape, sorted(by_first)))
        self._first = re.compile(f"[{firsts}]") if firsts else re.compile(r"(?!)")
        # Words alone stay: templates compare values such as `string` and `function`.
        cut = [(name[:at], name[at:]) for name in self._tokens for at in range(1, len(name))]
        self._heads = {head for head, _ in cut if not head.isalnum()}
        self._tails = {tail for _, tail in cut if not tail.isalnum()}
        self._reach = max(map(len, self._tokens), default=1) - 1

    def places(self, text: str) -> Iterator[_Place]:
        """Yield the names in a text, the longest at each place."""
        behind = 0
        for first in self._first.finditer(text):
            start = first.start()
            if start < behind:
                continue
            ends = (min(start + length, len(text)) for length in self._lengths[text[start]])
            found = next((end for end in ends if text[start:end] in self._tokens), None)
            if found is not None:
                behind = found
                yield _Place(start, found, self._tokens[text[start:found]])

    def risky_spans(self, text: str) -> list[tuple[int, int]]:
        """Return parts that may become control tokens, alone or with the template's text beside them."""
        found = [(place.start, place.end) for place in self.places(text)]
        head = next((n for n in range(min(self._reach, len(text)), 0, -1) if text[:n] in self._tails), 0)
        if head and not (found and found[0][0] < head):
            found.insert(0, (0, head))
        tail = next((n for n in range(min(self._reach, len(text)), 0, -1) if text[-n:] in self._heads), 0)
        if tail and not (found and found[-1][1] > len(text) - tail):
            found.append((len(text) - tail, len(text)))
        return found


class Literals:
    """Stand-ins for names of control tokens, such as `<|im_end|>`, that a user, a tool's result or a web page
    spells.

    The stretch of text around a stand-in is tokenised without control tokens. Such stretches lie between the
    control tokens that the template wrote, where tokenisers cut anyway, so all other tokens stay the same.
    """

    def __init__(self, names: ControlNames) -> None:
        self._names = names
        self._stem = f"{secrets.randbits(96):029d}"  # digits pass through all that templates do to texts
        self._hidden_texts: list[str] = []
        self._stand_in = re.compile(self._stem + r"(\d{6})")

    def hidden(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._hidden_text(value)
        if isinstance(value, Mapping):
            return {self._hidden_text(name): self.hidden(each) for name, each in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.hidden(each) for each in value]
        return value

    def hidden_messages(self, messages: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
        """Hide names, also in parsed arguments of calls, because JSON's escapes can conceal one."""
        found = []
        for message in messages:
            calls = message.get("tool_calls")
            if isinstance(calls, Sequence):
                message = {**message, "tool_calls": [self._plain_call(call) for call in calls]}
            found.append(self.hidden(message))
        return found

    def shown(self, text: str) -> str:
        return self._stand_in.sub(lambda found: self._hidden_texts[int(found[1])], text)

    def encode(self, text: str, tokenizer: Tokenizer, *, add_special: bool) -> list[int]:
        if not self._hidden_texts or self._stem not in text:
            return tokenizer.encode(text, add_special=add_special, parse_special=True)
        around = tokenizer.marks if add_special else SequenceMarks()
        tokens = list(around.begin)
        for part, is_literal in self._stretches(text):
            tokens += tokenizer.encode(self.shown(part), add_special=False, parse_special=not is_literal)
        return [*tokens, *around.end]

    def _plain_call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call.get("function")
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(arguments, str) or "\\" not in arguments:
            return call
        try:
            plain = to_json(json.loads(arguments))
        except (ValueError, RecursionError):
            return call
        if not any(self._names.places(plain)):
            return call
        return {**call, "function": {**function, "arguments": plain}}

    def _hidden_text(self, text: str) -> str:
        parts, behind = [], 0
        for start, end in self._names.risky_spans(text):
            parts += [text[behind:start], f"{self._stem}{len(self._hidden_texts):06d}"]
            self._hidden_texts.append(text[start:end])
            behind = end
        return "".join([*parts, text[behind:]])

    def _stretches(self, text: str) -> Iterator[tuple[str, bool]]:
        start, behind, strips = 0, 0, False
        for place in (*self._names.places(text), None):
            end = len(text) if place is None else place.start
            if self._stem in text[behind:end]:
                if behind > start:
                    yield text[start:behind], False
                literal = text[behind:end].lstrip() if strips else text[behind:end]
                if place is not None and place.token.strips_before:
                    literal = literal.rstrip()
                yield literal, True
                start = end
            behind, strips = (end, False) if place is None else (place.end, place.token.strips_behind)
        if start < len(text):
            yield text[start:], False


class ChatText(NamedTuple):
    text: str
    stage: ThinkingStage


class _Prefill(NamedTuple):
    reasoning: str
    content: str


def render_chat(
    template: PromptTemplate,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool = True,
    extra: Mapping[str, object] | None = None,
    reasoning: TemplateReasoning | None = None,
    skips_thinking: bool = False,
) -> ChatText:
    """Return the prompt's text, for `encode` with `parse_special`, and `add_special` if
    `needs_special_tokens`. The model continues a last message of the assistant (prefill). Raises
    TemplateFailed, InvalidRequest. `skips_thinking`: close the thoughts, also if the template cannot switch
    them off."""
    prefill = _prefill(messages) if add_generation_prompt else None
    finished = messages if prefill is None else messages[:-1]
    echo = ReasoningField.NOWHERE if reasoning is None else reasoning.echo
    rendered_messages = template_messages(
        finished, as_parts=template.shape.wants_parts, shape=template.shape.calls
    )
    text = template.render(
        [with_echo(message, echo) for message in rendered_messages],
        tools=tools or None,
        add_generation_prompt=add_generation_prompt,
        extra=extra,
    )
    if reasoning is None:
        return ChatText(text + (prefill.content if prefill else ""), ThinkingStage.BEHIND)
    rendered = ChatText(text, stage_behind(text, reasoning.form))
    if skips_thinking:
        rendered = _closed(rendered, reasoning)
    if prefill is None:
        return rendered
    beginning = begun_answer(rendered.stage, prefill.reasoning, prefill.content, reasoning.form)
    return ChatText(rendered.text + beginning, stage_within(rendered.stage, beginning, reasoning.form))


def needs_special_tokens(text: str, *, bos_text: str) -> bool:
    """Return True unless the template wrote BOS, because two of them confuse a model."""
    return not (bos_text and text.lstrip().startswith(bos_text))


def _closed(rendered: ChatText, reasoning: TemplateReasoning) -> ChatText:
    form = reasoning.form
    if rendered.stage is ThinkingStage.WITHIN:
        return ChatText(f"{rendered.text}\n{form.end}{form.gap}{form.answer_begin}", ThinkingStage.BEHIND)
    if rendered.stage is ThinkingStage.BEFORE and (not reasoning.has_switch or form.begin in rendered.text):
        return ChatText(rendered.text + form.empty, ThinkingStage.BEHIND)
    return rendered


def _prefill(messages: Sequence[Message]) -> _Prefill | None:
    if not messages or messages[-1].get("role") != "assistant":
        return None
    if messages[-1].get("tool_calls"):
        message = "The last message calls tools: the tools' answers must follow."
        raise InvalidRequest(message, code="invalid_value")
    content = content_text(messages[-1].get("content"), f"messages[{len(messages) - 1}].content")
    reasoning = messages[-1].get("reasoning_content")
    return _Prefill(reasoning if isinstance(reasoning, str) else "", content)
