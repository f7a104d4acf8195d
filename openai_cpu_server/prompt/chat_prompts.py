"""A conversation becomes prompt tokens: tools and earlier answers as its template wants them, rendered,
tokenised."""

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
from openai_cpu_server.prompt.reasoning import TemplateReasoning, ThinkingStage, ThoughtsField
from openai_cpu_server.prompt.template import Message, PromptTemplate, TemplateShape
from openai_cpu_server.prompt.tool_formats import ToolFormat

Written = Mapping[int, Sequence[int]]
"""By the index of an assistant's message: the tokens that the model wrote for it."""
Render = Callable[[Sequence[Message]], str]
"""Renders messages, up to where the model's next answer begins."""


@dataclass(frozen=True)
class MarkedChat:
    """A rendered conversation, with a mark for each answer that stands there as the tokens of before."""

    messages: Sequence[Message]
    """They have the marks too."""
    text: str
    tokens: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By mark."""
    blanks: str = ""
    """What stands before such an answer, and not where the model began to write it: it is left out."""
    shown: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By mark, the tokens of what is no text."""

    @property
    def plain(self) -> str:
        """The text alone."""
        return "".join(part for part in self.parts(0, len(self.text)) if isinstance(part, str))

    def parts(self, start: int, end: int) -> Iterator[str | Sequence[int]]:
        """This stretch of it as texts, and tokens between them. No mark is cut."""
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
    """The conversation with the written answers as tokens.

    A template writes an answer of before from its text: it trims white space, and writes calls anew from
    their arguments. Tokenised again, even the very same text can become other tokens than those that were
    sampled. So a mark is rendered in place of such an answer, and the tokens are put where the mark stands.

    None: the template does not show a plain answer where one of these stands.
    """
    places = sorted(written)
    marks = {f"w{secrets.token_hex(12)}w": written[place] for place in places}
    told = list(messages)
    for place, mark in zip(places, marks, strict=True):
        told[place] = {"role": "assistant", "content": mark}
    try:
        text, opening = render(told), render(told[: places[0]])
    except (TemplateFailed, InvalidRequest):
        return None
    if re.findall("|".join(marks), text) != [*marks]:
        return None
    first, _, _ = text.partition(next(iter(marks)))
    return MarkedChat(told, text, marks, _blanks(first, opening))


def _blanks(before: str, opening: str) -> str:
    """What the template writes more before an answer of before than it does where it asks for one: some set a
    blank there."""
    is_more = before.startswith(opening) and before.rstrip() == opening.rstrip()
    return before[len(opening) :] if is_more else ""


_ELSE = "\ue000"
"""What is said in other conversations: no text begins with this character, which is for private use."""


def parting_conversations(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """Others that begin as this one does: one with another first text, what becomes of this one, and, where
    functions have been called, what becomes of it when that is done again."""
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
    """Lengths of the text that stays: what another conversation has too; and all before another last text of
    the user, whose own end is found by what the template writes behind it in the other."""
    yield _common_length(chat.text, other)
    _, said, behind = other.rpartition(_ELSE)
    if said and _ends_with(chat.messages, "user") and chat.text.endswith(behind):
        yield len(chat.text) - len(behind)


def _common_length(one: str, other: str) -> int:
    """How much both begin with. It compares slices: one character after the other would take longer than the
    rendering did."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least


class ChatPrompt(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]
    """At least one."""
    stage: ThinkingStage
    """Where the output begins."""
    wants_thoughts: bool
    """The model surely thinks first."""
    borders: tuple[int, ...] = ()
    """As a `GenerationRequest` has them."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be rendered, in JSON's types."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] = ()
    """To be offered to the model."""
    template: str = ""
    """The name of one of the model's further templates; "": the one for chats."""
    written: Written = msgspec.field(default_factory=dict)
    """What the model wrote for some of the messages."""
    variables: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Further ones for the template."""
    thinks_not: bool = False
    """The answer begins at once, if the model has marks for thoughts."""
    most_tokens: int | None = None
    """What is surely longer is not tokenised."""
    begins_answer: bool = True
    """The prompt ends where the model answers; False: behind the last message."""
    has_marks: bool | None = None
    """Whether the tokenizer's own first and last tokens are around it; None: unless the template wrote
    one."""
    shown: Mapping[str, Sequence[int]] = msgspec.field(default_factory=dict)
    """By what stands for it in texts: tokens of what is no text, such as a picture."""
    marks_borders: bool = True
    """Whether the prompt's `borders` are wanted, which take a few further renderings."""


class ChatPromptMaker(Protocol):
    """Makes the prompts of one model. It takes milliseconds: do not call it in an event loop."""

    @property
    def has_template(self) -> bool: ...

    def prompt(self, conversation: Conversation) -> ChatPrompt:
        """Raises InvalidRequest, TemplateFailed, PromptFarTooLong."""


@dataclass(frozen=True, eq=False)
class ChatPrompts:
    """`ChatPromptMaker` of this process."""

    template: PromptTemplate | None
    """None: the model has none."""
    tokenizer: Tokenizer
    tool_format: ToolFormat
    names: ControlNames
    reasoning: TemplateReasoning | None = None
    """None: the model does not think."""

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
        asked = msgspec.structs.replace(
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
            return self._prompt(asked, partial(self._rendered, self.template, asked), literals)
        except TemplateFailed as error:
            raise TemplateFailed(literals.shown(str(error))) from None

    def _prompt(
        self, asked: Conversation, rendered: Callable[[Sequence[Message]], ChatText], literals: Literals
    ) -> ChatPrompt:
        messages = asked.messages
        # Templates leave out what a model thought before earlier answers, and the tokens that it wrote have
        # that, too.
        written = asked.written if self.reasoning is None else {}
        chat = marked_chat(messages, written, lambda those: rendered(those).text) if written else None
        stage, wants_thoughts = ThinkingStage.BEHIND, False
        if chat is not None:
            chat = replace(chat, shown=asked.shown)
        else:
            text, stage = rendered(messages)
            chat = MarkedChat(messages, text, shown=asked.shown)
            wants_thoughts = self.reasoning is not None and self.reasoning.wants_thoughts(text)
        require_room(self.tokenizer, chat.plain, asked.most_tokens)
        parts = self._borders(chat, rendered) if asked.marks_borders else []
        has_marks = asked.has_marks
        if has_marks is None:
            has_marks = needs_special_tokens(chat.text, bos_text=self.tokenizer.bos_text)
        around = self.tokenizer.marks if has_marks else SequenceMarks()
        tokens, borders = self._encoded(chat, parts, literals, around)
        if not tokens:
            raise TemplateFailed("The chat template rendered nothing.")
        return ChatPrompt(tokens, stage, wants_thoughts and not asked.thinks_not, borders)

    def _rendered(
        self, template: PromptTemplate, asked: Conversation, messages: Sequence[Message]
    ) -> ChatText:
        """The messages as the template takes them, as far as trying has told. Where it refuses them all the
        same, or does not show one of them, all that is no plain chat is told in words, if that helps."""
        ways, failures = list[ChatText](), list[TemplateFailed]()
        for shape in (template.shape, in_words(template.shape)):
            try:
                ways.append(self._told(template, asked, messages, shape))
            except TemplateFailed as failure:
                failures.append(failure)
            if ways and not lost(messages, ways[-1].text):
                return ways[-1]
        if not ways:
            raise failures[0]
        return min(ways, key=lambda way: lost(messages, way.text))

    def _told(
        self, template: PromptTemplate, asked: Conversation, messages: Sequence[Message], shape: TemplateShape
    ) -> ChatText:
        shows_thoughts = self.reasoning is not None and self.reasoning.echo is not ThoughtsField.NOWHERE
        told, shown = adapted(messages, asked.tools, shape, self.tool_format, shows_thoughts=shows_thoughts)
        return render_chat(
            template,
            told,
            tools=shown,
            extra=asked.variables,
            reasoning=self.reasoning,
            thinks_not=asked.thinks_not,
            add_generation_prompt=asked.begins_answer,
        )

    def _borders(self, chat: MarkedChat, rendered: Callable[[Sequence[Message]], ChatText]) -> list[int]:
        """Where to cut the text: each time behind the last control token that other conversations have too.
        Tokenisers cut there anyway, whatever follows, unless the token takes the white space behind it."""
        names = self.names.places(chat.text)
        ends = [name.end for name in names if not name.token.strips_behind]
        borders = set()
        for other in parting_conversations(chat.messages) if ends else ():
            try:
                told = rendered(other).text
            except (TemplateFailed, InvalidRequest):
                continue  # the template refuses it: nobody will get that far
            for length in _shared_lengths(chat, told):
                borders.update(ends[: bisect_right(ends, length)][-1:])
        return sorted(borders)

    def _encoded(
        self, chat: MarkedChat, borders: Sequence[int], literals: Literals, around: SequenceMarks
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens, and how many of them are before each border."""
        tokens, lengths = [*around.begin], []
        for start, end in pairwise((0, *borders, len(chat.text))):
            for part in chat.parts(start, end):
                if isinstance(part, str):
                    part = literals.encode(part, self.tokenizer, add_special=False)
                tokens += part
            lengths.append(len(tokens))
        return (*tokens, *around.end), tuple(lengths[:-1])


def require_room(tokenizer: Tokenizer, text: str, most_tokens: int | None) -> None:
    """Raises PromptFarTooLong for a text that has more tokens, whatever they are."""
    if most_tokens is not None and (least := tokenizer.least_tokens(text)) > most_tokens:
        raise PromptFarTooLong(least_tokens=least, limit=most_tokens)


def whole_prompt(
    text: str, tokenizer: Tokenizer, *, most_tokens: int | None, add_special: bool = True
) -> tuple[int, ...]:
    """A text that is a prompt by itself: names of control tokens in it mean them, and BOS is added unless it
    has it. Raises PromptFarTooLong."""
    require_room(tokenizer, text, most_tokens)
    needs_begin = add_special and needs_special_tokens(text, bos_text=tokenizer.bos_text)
    return tuple(tokenizer.encode(text, add_special=needs_begin, parse_special=True))
