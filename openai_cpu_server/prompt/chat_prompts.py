"""Prompt tokens of a conversation, rendered by its template, and of a reranker that answers yes or no."""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise, takewhile
from typing import Protocol

import msgspec

from openai_cpu_server.contract.model_info import SequenceMarks, Tokenizer
from openai_cpu_server.errors import InvalidRequest, PromptFarTooLong, TemplateFailed
from openai_cpu_server.prompt.chat import ChatText, ControlNames, Literals, needs_special_tokens, render_chat
from openai_cpu_server.prompt.conversation import adapted, in_words, lost, with_bound_results
from openai_cpu_server.prompt.reasoning import ReasoningField, TemplateReasoning, ThinkingStage
from openai_cpu_server.prompt.template import Message, PromptTemplate, tried
from openai_cpu_server.prompt.tool_formats import ToolFormat

Written = Mapping[int, Sequence[int]]
"""Tokens that the model wrote for a message, by its index."""
Render = Callable[[Sequence[Message]], str]


@dataclass(frozen=True)
class MarkedChat:
    """Rendered conversation, with a mark for each answer that keeps its tokens."""

    messages: Sequence[Message]
    text: str
    tokens: Mapping[str, Sequence[int]] = field(default_factory=dict)
    blanks: str = ""
    """White space that the template writes only before an earlier answer, and that is dropped."""
    shown: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Tokens of media by mark."""

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


def marked_chat(messages: Sequence[Message], written: Written, render: Render) -> MarkedChat | None:
    """Return the conversation with the written answers as tokens, or None if the template does not show
    them plainly. Templates trim and rewrite answers, and even the same text may become other tokens than
    those sampled. So a mark is rendered and replaced."""
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


def parting_conversations(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """Return conversations that begin like this one: another first text, a next turn, and, after calls,
    further calls."""
    user, answer = {"role": "user", "content": _ELSE}, {"role": "assistant", "content": _ELSE}
    head = [*takewhile(lambda each: each.get("role") in ("system", "developer"), messages)]
    finished = messages[:-1] if _ends_with(messages, "assistant") else messages
    parting: list[Sequence[Message]] = [[*head, user], [*finished, answer, user]]
    if _ends_with(messages, "tool"):
        # Many templates keep thoughts between calls, and leave them out when a user has spoken again.
        calls = (at for at in reversed(range(len(messages))) if messages[at].get("role") == "assistant")
        parting += [[*messages, *messages[at:]] for at in islice(calls, 1)]
    return parting


def _ends_with(messages: Sequence[Message], role: str) -> bool:
    return bool(messages) and messages[-1].get("role") == role


def _shared_lengths(chat: MarkedChat, other: str) -> Iterator[int]:
    """The common beginning, and all before another last text of the user."""
    yield _common_length(chat.text, other)
    _, mark, behind = other.rpartition(_ELSE)
    if mark and _ends_with(chat.messages, "user") and chat.text.endswith(behind):
        yield len(chat.text) - len(behind)


def _common_length(one: str, other: str) -> int:
    """Slices, because single characters would take longer than the rendering."""
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
    """At least one token."""
    stage: ThinkingStage
    wants_thoughts: bool
    """True if the model surely thinks first."""
    boundaries: tuple[int, ...] = ()
    """Same as in `GenerationRequest`."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] = ()
    template: str = ""
    """Name of a further template, or "" for the one for chats."""
    written: Written = msgspec.field(default_factory=dict)
    variables: Mapping[str, object] = msgspec.field(default_factory=dict)
    skips_thinking: bool = False
    """True to begin with the answer, if the model has marks for thoughts."""
    most_tokens: int | None = None
    """Longer prompts are rejected before tokenising."""
    begins_answer: bool = True
    """False to end behind the last message."""
    has_marks: bool | None = None
    """True to add the tokenizer's first and last tokens, or None to add them unless the template did."""
    shown: Mapping[str, Sequence[int]] = msgspec.field(default_factory=dict)
    """Tokens of media, by their marks in texts."""
    finds_boundaries: bool = True
    """True to compute `boundaries`, which takes a few more renderings."""


class ChatPromptMaker(Protocol):
    """Makes the prompts of one model. Takes milliseconds, so do not call it in an event loop."""

    @property
    def has_template(self) -> bool: ...

    def prompt(self, conversation: Conversation) -> ChatPrompt:
        """Return the prompt's tokens. Raises InvalidRequest, TemplateFailed, PromptFarTooLong."""


@dataclass(frozen=True, eq=False)
class ChatPrompts:
    """`ChatPromptMaker` of this process."""

    template: PromptTemplate | None
    tokenizer: Tokenizer
    tool_format: ToolFormat
    names: ControlNames
    reasoning: TemplateReasoning | None = None

    @property
    def has_template(self) -> bool:
        return self.template is not None

    def prompt(self, conversation: Conversation) -> ChatPrompt:
        if self.template is None:
            raise TemplateFailed(
                "The model has no chat template; start the server with --chat-template FILE."
            )
        literals = Literals(self.names)
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
        self, chat: Conversation, rendered: Callable[[Sequence[Message]], ChatText], literals: Literals
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
        self, template: PromptTemplate, chat: Conversation, messages: Sequence[Message]
    ) -> ChatText:
        """If the template rejects or loses a message, write all but plain chat in words."""
        shows_thoughts = self.reasoning is not None and self.reasoning.echo is not ReasoningField.NOWHERE
        ways, failures = list[ChatText](), list[TemplateFailed]()
        for shape in (template.shape, in_words(template.shape)):
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
            if ways and not lost(messages, ways[-1].text):
                return ways[-1]
        if not ways:
            raise failures[0]
        return min(ways, key=lambda way: lost(messages, way.text))

    def _boundaries(self, chat: MarkedChat, rendered: Callable[[Sequence[Message]], ChatText]) -> list[int]:
        """Tokenisers cut behind a control token anyway, unless it takes the white space behind it."""
        names = self.names.places(chat.text)
        ends = [name.end for name in names if not name.token.strips_behind]
        boundaries = set()
        for other in parting_conversations(chat.messages) if ends else ():
            try:
                text = rendered(other).text
            except (TemplateFailed, InvalidRequest):
                continue  # no conversation gets that far
            for length in _shared_lengths(chat, text):
                boundaries.update(ends[: bisect_right(ends, length)][-1:])
        return sorted(boundaries)


def require_room(tokenizer: Tokenizer, text: str, most_tokens: int | None) -> None:
    """Check a text before tokenising. Raises PromptFarTooLong."""
    if most_tokens is not None and (least := tokenizer.least_tokens(text)) > most_tokens:
        raise PromptFarTooLong(least_tokens=least, limit=most_tokens)


def whole_prompt(
    text: str, tokenizer: Tokenizer, *, most_tokens: int | None, add_special: bool = True
) -> tuple[int, ...]:
    """Encode a prompt with control tokens, and with BOS unless it has it. Raises PromptFarTooLong."""
    require_room(tokenizer, text, most_tokens)
    needs_begin = add_special and needs_special_tokens(text, bos_text=tokenizer.bos_text)
    return tuple(tokenizer.encode(text, add_special=needs_begin, parse_special=True))


_PLACE = re.compile(r"(\{query\}|\{document\})")
_YES_OR_NO = re.compile(r"\b(yes)\b.*\b(no)\b", re.IGNORECASE | re.DOTALL)
_QUERY, _DOCUMENT = "query 5b1f", "document 5b1f"


class RerankTemplate:
    """For any thread."""

    def __init__(self, source: str | PromptTemplate) -> None:
        """`source`: text with `{query}` and `{document}` (llama.cpp), or a chat template with these roles
        (vLLM)."""
        self._parts = _PLACE.split(source) if isinstance(source, str) else None
        self._template = None if isinstance(source, str) else source
        answers = _YES_OR_NO.search(self.render(_QUERY, _DOCUMENT))
        self.yes, self.no = (answers[1], answers[2]) if answers else ("yes", "no")

    def render(self, query: str, document: str) -> str:
        """Return the prompt's text, for `encode` with `parse_special`. Raises TemplateFailed."""
        if self._parts is not None:
            texts = {"{query}": query, "{document}": document}
            return "".join(texts.get(part, part) for part in self._parts)
        assert self._template is not None, "it has one of the two"
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        return self._template.render(messages)


class RerankPrompts(Protocol):
    """Not for event loops, because prompts take milliseconds."""

    @property
    def yes(self) -> str: ...

    @property
    def no(self) -> str: ...

    def prompts(self, query: str, documents: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the tokens for each document. Raises TemplateFailed."""


class TemplatePrompts:
    """`RerankPrompts` of this process."""

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
