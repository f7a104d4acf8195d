"""Prompt tokens of a conversation, and of a reranker that answers yes or no."""

from __future__ import annotations

import functools
import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, pairwise, takewhile
from typing import Any, NamedTuple, Protocol

import msgspec

from openai_cpu_server.contract.model_info import ControlToken, SequenceMarks, Tokenizer
from openai_cpu_server.errors import InvalidRequest, PromptFarTooLong, TemplateFailed
from openai_cpu_server.prompt.conversation import adapted, in_words, lost, with_bound_results
from openai_cpu_server.prompt.reasoning import (
    ReasoningField,
    TemplateReasoning,
    ThinkingStage,
    answer_prefix,
    stage_behind,
    stage_within,
    with_echo,
)
from openai_cpu_server.prompt.template import (
    PromptTemplate,
    TemplateMessage,
    content_text,
    template_messages,
    to_json,
    tried,
)
from openai_cpu_server.prompt.tool_formats import ToolFormat

_MARK = re.compile(r"<\|\w+\|>")


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

    Text around them is tokenised without control tokens, up to the template's, where tokenisers cut anyway.
    """

    def __init__(self, names: ControlNames, marks: re.Pattern[str] | None = None) -> None:
        """`marks`: further texts that a template looks for."""
        self._names = names
        self._marks = marks
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
        spans = self._names.risky_spans(text)
        if self._marks is not None:
            spans = sorted([*spans, *(found.span() for found in self._marks.finditer(text))])
        for start, end in spans:
            if start < behind:
                continue
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


def render_chat(
    template: PromptTemplate,
    messages: Sequence[TemplateMessage],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool = True,
    extra: Mapping[str, object] | None = None,
    reasoning: TemplateReasoning | None = None,
    skips_thinking: bool = False,
) -> ChatText:
    """Return text for `encode` with `parse_special`, and `add_special` if `needs_special_tokens`.

    The model continues a last message of the assistant. `skips_thinking`: close the thoughts, even if the
    template cannot switch them off.
    """
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
        return ChatText(text + (prefill[1] if prefill else ""), ThinkingStage.BEHIND)
    rendered = ChatText(text, stage_behind(text, reasoning.form))
    if skips_thinking:
        rendered = _closed(rendered, reasoning)
    if prefill is None:
        return rendered
    beginning = answer_prefix(rendered.stage, *prefill, reasoning.form)
    return ChatText(rendered.text + beginning, stage_within(rendered.stage, beginning, reasoning.form))


def needs_special_tokens(text: str, *, bos_text: str) -> bool:
    """Two BOS confuse a model."""
    return not (bos_text and text.lstrip().startswith(bos_text))


def _closed(rendered: ChatText, reasoning: TemplateReasoning) -> ChatText:
    form = reasoning.form
    if rendered.stage is ThinkingStage.WITHIN:
        return ChatText(f"{rendered.text}\n{form.end}{form.gap}{form.answer_begin}", ThinkingStage.BEHIND)
    if rendered.stage is ThinkingStage.BEFORE and (not reasoning.has_switch or form.begin in rendered.text):
        return ChatText(rendered.text + form.empty, ThinkingStage.BEHIND)
    return rendered


def _prefill(messages: Sequence[TemplateMessage]) -> tuple[str, str] | None:
    if not messages or messages[-1].get("role") != "assistant":
        return None
    if messages[-1].get("tool_calls"):
        message = "The last message calls tools, so the results of the calls must follow."
        raise InvalidRequest(message, code="invalid_value")
    content = content_text(messages[-1].get("content"), f"messages[{len(messages) - 1}].content")
    reasoning = messages[-1].get("reasoning_content")
    return reasoning if isinstance(reasoning, str) else "", content


Written = Mapping[int, Sequence[int]]
"""Tokens that the model wrote, by index of the message."""
Render = Callable[[Sequence[TemplateMessage]], str]


@dataclass(frozen=True)
class MarkedChat:
    messages: Sequence[TemplateMessage]
    text: str
    tokens: Mapping[str, Sequence[int]] = field(default_factory=dict)
    blanks: str = ""
    """White space that the template writes only before an earlier answer, and that is dropped."""
    shown: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def plain(self) -> str:
        return "".join(part for part in self.parts(0, len(self.text)) if isinstance(part, str))

    def parts(self, start: int, end: int) -> Iterator[str | Sequence[int]]:
        marks = {**self.tokens, **self.shown}
        if not marks:
            yield self.text[start:end]
            return
        texts = re.split(f"({'|'.join(marks)})", self.text[start:end])
        for before, mark in zip(texts[::2], texts[1::2], strict=False):
            yield before.removesuffix(self.blanks) if mark in self.tokens else before
            yield marks[mark]
        yield texts[-1]


def marked_chat(messages: Sequence[TemplateMessage], written: Written, render: Render) -> MarkedChat | None:
    """Return None if the template does not show the written answers plainly.

    Templates trim and rewrite answers, so a mark is rendered and replaced.
    """
    places = sorted(written)
    marks = {f"w{secrets.token_hex(12)}w": written[place] for place in places}
    marked = list(messages)
    for place, mark in zip(places, marks, strict=True):
        marked[place] = {"role": "assistant", "content": mark}
    try:
        text, opening = render(marked), render(marked[: places[0]])
    except (TemplateFailed, InvalidRequest):
        return None
    if re.findall("|".join(marks), text) != [*marks]:
        return None
    first, _, _ = text.partition(next(iter(marks)))
    is_blank = first.startswith(opening) and first.rstrip() == opening.rstrip()
    return MarkedChat(marked, text, marks, first[len(opening) :] if is_blank else "")


_ELSE = "\ue000"
"""Text of other conversations. No text begins with this character for private use."""


def parting_conversations(messages: Sequence[TemplateMessage]) -> list[Sequence[TemplateMessage]]:
    """Return conversations that begin like this one: another first text, a next turn, and, after calls,
    further calls."""
    user, answer = {"role": "user", "content": _ELSE}, {"role": "assistant", "content": _ELSE}
    head = [*takewhile(lambda each: each.get("role") in ("system", "developer"), messages)]
    finished = messages[:-1] if _ends_with(messages, "assistant") else messages
    parting: list[Sequence[TemplateMessage]] = [[*head, user], [*finished, answer, user]]
    if _ends_with(messages, "tool"):
        # Many templates keep thoughts between calls, and leave them out when a user has spoken again.
        calls = (at for at in reversed(range(len(messages))) if messages[at].get("role") == "assistant")
        parting += [[*messages, *messages[at:]] for at in islice(calls, 1)]
    return parting


def _ends_with(messages: Sequence[TemplateMessage], role: str) -> bool:
    return bool(messages) and messages[-1].get("role") == role


def _common_length(one: str, other: str) -> int:
    """Slices are faster than single characters, which would take longer than the rendering."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


class ChatPrompt(msgspec.Struct, frozen=True, tag=True):
    tokens: tuple[int, ...]
    stage: ThinkingStage
    wants_thoughts: bool
    boundaries: tuple[int, ...] = ()


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    messages: Sequence[TemplateMessage]
    tools: Sequence[Mapping[str, object]] = ()
    template: str = ""
    """Further template, or ""."""
    written: Written = msgspec.field(default_factory=dict)
    variables: Mapping[str, object] = msgspec.field(default_factory=dict)
    skips_thinking: bool = False
    """True to begin with the answer, if the model has marks for thoughts."""
    most_tokens: int | None = None
    """Limit that is checked before tokenising."""
    begins_answer: bool = True
    """False to end behind the last message."""
    has_marks: bool | None = None
    """True to add the tokenizer's first and last tokens, or None to add them unless the template did."""
    shown: Mapping[str, Sequence[int]] = msgspec.field(default_factory=dict)
    """Tokens of media, by mark."""
    finds_boundaries: bool = True
    """True to compute `boundaries`, which takes a few more renderings."""


class ChatPromptMaker(Protocol):
    """Takes milliseconds, so do not call it in an event loop."""

    @property
    def has_template(self) -> bool: ...

    def prompt(self, conversation: Conversation) -> ChatPrompt:
        """Compute the prompt's tokens. Raises InvalidRequest, TemplateFailed, PromptFarTooLong."""


@dataclass(frozen=True, eq=False)
class ChatPrompts:
    template: PromptTemplate | None
    tokenizer: Tokenizer
    tool_format: ToolFormat
    names: ControlNames
    reasoning: TemplateReasoning | None = None

    @property
    def has_template(self) -> bool:
        return self.template is not None

    @functools.cached_property
    def _marks(self) -> re.Pattern[str] | None:
        """Marks that gpt-oss' template looks for in answers, also where the vocabulary lacks them."""
        found = set(_MARK.findall(self.template.source)) if self.template is not None else set()
        return re.compile("|".join(map(re.escape, sorted(found)))) if found else None

    def prompt(self, conversation: Conversation) -> ChatPrompt:
        if self.template is None:
            raise TemplateFailed(
                "The model has no chat template; start the server with --chat-template FILE."
            )
        literals = Literals(self.names, self._marks)
        bound = with_bound_results(conversation.messages)
        hidden = msgspec.structs.replace(
            conversation,
            messages=literals.hidden_messages([each.message for each in bound]),
            tools=literals.hidden(conversation.tools),
            variables=literals.hidden(conversation.variables),
            written={
                index: conversation.written[each.place]
                for index, each in enumerate(bound)
                if each.place in conversation.written and each.message.get("role") == "assistant"
            },
        )
        try:
            return self._prompt(hidden, partial(self._rendered, self.template, hidden), literals)
        except TemplateFailed as error:
            raise TemplateFailed(literals.shown(str(error))) from None

    def _prompt(
        self,
        chat: Conversation,
        rendered: Callable[[Sequence[TemplateMessage]], ChatText],
        literals: Literals,
    ) -> ChatPrompt:
        # Templates leave out what a model thought before earlier answers, and the tokens that it wrote have
        # that, too.
        written = chat.written if self.reasoning is None else {}
        marked = marked_chat(chat.messages, written, lambda turns: rendered(turns).text) if written else None
        stage, wants_thoughts = ThinkingStage.BEHIND, False
        if marked is not None:
            marked = replace(marked, shown=chat.shown)
        else:
            text, stage = rendered(chat.messages)
            marked = MarkedChat(chat.messages, text, shown=chat.shown)
            wants_thoughts = self.reasoning is not None and self.reasoning.wants_thoughts(text)
        require_room(self.tokenizer, marked.plain, chat.most_tokens)
        boundaries = self._boundaries(marked, rendered) if chat.finds_boundaries else []
        has_marks = chat.has_marks
        if has_marks is None:
            has_marks = needs_special_tokens(marked.text, bos_text=self.tokenizer.bos_text)
        around = self.tokenizer.marks if has_marks else SequenceMarks()
        tokens, lengths = [*around.begin], []
        for start, end in pairwise((0, *boundaries, len(marked.text))):
            for part in marked.parts(start, end):
                if isinstance(part, str):
                    part = literals.encode(part, self.tokenizer, add_special=False)
                tokens += part
            lengths.append(len(tokens))
        tokens += around.end
        if not tokens:
            raise TemplateFailed("The chat template rendered nothing.")
        return ChatPrompt(
            tuple(tokens), stage, wants_thoughts and not chat.skips_thinking, tuple(lengths[:-1])
        )

    def _rendered(
        self, template: PromptTemplate, chat: Conversation, messages: Sequence[TemplateMessage]
    ) -> ChatText:
        """Write all but plain chat in words if the template rejects or loses a message; only tools if a tool
        is the cause."""
        shows_thoughts = self.reasoning is not None and self.reasoning.echo is not ReasoningField.NOWHERE
        ways, failures = list[ChatText](), list[TemplateFailed]()
        functions = [tool.get("function") for tool in chat.tools]
        names = [str(each["name"]) for each in functions if isinstance(each, Mapping)]
        shapes = [template.shape, in_words(template.shape)]
        if names and template.shape.shows_tools:
            shapes += [msgspec.structs.replace(shape, shows_tools=False) for shape in shapes]
        for shape in shapes:
            try:
                turns, tools = adapted(
                    messages, chat.tools, shape, self.tool_format, shows_thoughts=shows_thoughts
                )
                text = render_chat(
                    template,
                    turns,
                    tools=tools,
                    extra=chat.variables,
                    reasoning=self.reasoning,
                    skips_thinking=chat.skips_thinking,
                    add_generation_prompt=chat.begins_answer,
                )
                ways.append(text)
            except TemplateFailed as failure:
                failures.append(failure)
            if ways and not lost(messages, names, ways[-1].text):
                return ways[-1]
        if not ways:
            raise failures[0]
        return min(ways, key=lambda way: lost(messages, names, way.text))

    def _boundaries(
        self, chat: MarkedChat, rendered: Callable[[Sequence[TemplateMessage]], ChatText]
    ) -> list[int]:
        """Tokenisers cut behind a control token anyway, unless it takes the white space behind it."""
        names = self.names.places(chat.text)
        ends = [name.end for name in names if not name.token.strips_behind]
        boundaries = set()
        for other in parting_conversations(chat.messages) if ends else ():
            try:
                text = rendered(other).text
            except (TemplateFailed, InvalidRequest):
                continue  # no conversation gets that far
            shared_lengths = [_common_length(chat.text, text)]
            _, mark, behind = text.rpartition(_ELSE)
            if mark and _ends_with(chat.messages, "user") and chat.text.endswith(behind):
                shared_lengths.append(
                    len(chat.text) - len(behind)
                )  # all before another last text of the user
            for length in shared_lengths:
                boundaries.update(ends[: bisect_right(ends, length)][-1:])
        return sorted(boundaries)


def require_room(tokenizer: Tokenizer, text: str, most_tokens: int | None, num_ids: int = 0) -> None:
    """Check a text, beside so many ids, before tokenising. Raises PromptFarTooLong."""
    if most_tokens is not None and (least := tokenizer.least_tokens(text) + num_ids) > most_tokens:
        raise PromptFarTooLong(least_tokens=least, limit=most_tokens)


def whole_prompt(
    prompt: str | Sequence[int | str],
    tokenizer: Tokenizer,
    *,
    most_tokens: int | None,
    add_special: bool = True,
    parse_special: bool = True,
) -> tuple[int, ...]:
    """Encode texts and ids, with BOS unless the prompt has it. All texts but the first are one
    piece of work."""
    items = [prompt] if isinstance(prompt, str) else prompt
    texts = [item for item in items if isinstance(item, str)]
    require_room(tokenizer, "".join(texts), most_tokens, len(items) - len(texts))
    tokens = list[int]()
    if items and isinstance(items[0], str):
        first, *texts = texts
        needs_begin = not parse_special or needs_special_tokens(first, bos_text=tokenizer.bos_text)
        tokens += tokenizer.encode(
            first, add_special=add_special and needs_begin, parse_special=parse_special
        )
        items = items[1:]
    encoded = tokenizer.encode_all(texts, add_special=False, parse_special=parse_special) if texts else []
    rows = iter(encoded)
    tokens += chain.from_iterable((one,) if isinstance(one, int) else next(rows) for one in items)
    return tuple(tokens)


_PLACE = re.compile(r"(\{query\}|\{document\})")
_YES_OR_NO = re.compile(r"\b(yes)\b.*\b(no)\b", re.IGNORECASE | re.DOTALL)
_QUERY, _DOCUMENT = "query 5b1f", "document 5b1f"


class RerankTemplate:
    """Thread-safe."""

    def __init__(self, source: str | PromptTemplate) -> None:
        """`source`: text with `{query}` and `{document}` (llama.cpp), or a chat template with these roles
        (vLLM)."""
        self._parts = _PLACE.split(source) if isinstance(source, str) else None
        self._template = None if isinstance(source, str) else source
        answers = _YES_OR_NO.search(self.render(_QUERY, _DOCUMENT))
        self.yes, self.no = (answers[1], answers[2]) if answers else ("yes", "no")

    def render(self, query: str, document: str) -> str:
        if self._parts is not None:
            texts = {"{query}": query, "{document}": document}
            return "".join(texts.get(part, part) for part in self._parts)
        assert self._template is not None, "it has one of the two"
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        return self._template.render(messages)


class RerankPrompts(Protocol):
    """Takes milliseconds, so do not call it in an event loop."""

    @property
    def yes(self) -> str: ...

    @property
    def no(self) -> str: ...

    def prompts(self, query: str, documents: Sequence[str]) -> list[tuple[int, ...]]:
        """Compute the tokens for each document. Raises TemplateFailed."""


class TemplatePrompts:
    def __init__(self, template: RerankTemplate, tokenizer: Tokenizer, names: ControlNames) -> None:
        self.yes, self.no = template.yes, template.no
        self._template = template
        self._tokenizer = tokenizer
        self._names = names

    def prompts(self, query: str, documents: Sequence[str]) -> list[tuple[int, ...]]:
        found = []
        for document in documents:
            literals, tokenizer = Literals(self._names), self._tokenizer
            text = self._template.render(literals.hidden(query), literals.hidden(document))
            needs_begin = needs_special_tokens(text, bos_text=tokenizer.bos_text)
            tokens = literals.encode(text, tokenizer, add_special=False)
            found.append((*tokenizer.marks.begin * needs_begin, *tokens))
        return found


def rerank_template(own: str | None, chat: PromptTemplate | None) -> RerankTemplate | None:
    """Return None if neither reranks. `own`: the file's template, preferred to `chat`."""
    if own is not None and {"{query}", "{document}"} <= set(_PLACE.split(own)):
        return RerankTemplate(own)
    if chat is None:
        return None
    messages = [{"role": "query", "content": _QUERY}, {"role": "document", "content": _DOCUMENT}]
    text = tried(lambda: chat.render(messages))
    # Only a reranker's template names the answers.
    has_answers = _QUERY in text and _DOCUMENT in text and _YES_OR_NO.search(text) is not None
    return RerankTemplate(chat) if has_answers else None
