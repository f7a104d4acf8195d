"""A conversation becomes prompt tokens: tools and earlier answers as its template wants them, rendered,
tokenised."""

from __future__ import annotations

import json
import re
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise, takewhile
from typing import Protocol

import msgspec

from openai_cpu_server.contract.model_info import SequenceMarks, Tokenizer
from openai_cpu_server.errors import InvalidRequest, PromptFarTooLong, TemplateFailed
from openai_cpu_server.prompt.chat import ChatText, ControlNames, Literals, needs_special_tokens, render_chat
from openai_cpu_server.prompt.reasoning import TemplateReasoning, ThinkingStage
from openai_cpu_server.prompt.template import Message, PromptTemplate, arguments_object, content_text
from openai_cpu_server.prompt.tool_formats import ToolFormat, WrittenCall

Tools = Sequence[Mapping[str, object]]


def told_tools(
    messages: Sequence[Message], tools: Tools, template: PromptTemplate, form: ToolFormat
) -> tuple[Sequence[Message], Tools]:
    """The messages as the template can show them, and the tools that are left for it to show."""
    shape = None if form.replaces_template else template.call_shape
    if shape is None:
        messages = with_written_calls(messages, form)
    else:
        messages = with_history_ids(with_single_calls(messages) if shape.one_by_one else messages, form)
    if not tools or (template.shows_tools and not form.replaces_template):
        return messages, tools
    if template.shows_system_tools and not form.replaces_template:
        return with_system_tools(messages, tools), ()
    return with_instructions(messages, tools, form, as_system=template.shows_system), ()


def with_history_ids(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """The messages, with the ids of calls in the form that the format's templates want."""
    return [_with_ids(message, form) for message in messages]


def with_single_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages, with a message of its own for each call, and each result behind its call."""
    single: list[Message] = []
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        calls = message.get("tool_calls")
        if not isinstance(calls, Sequence) or len(calls) < 2:
            single.append(message)
            continue
        results = list(takewhile(lambda each: each.get("role") == "tool", rest))
        del rest[: len(results)]
        for index, call in enumerate(calls):
            single.append({**message, "tool_calls": [call], **({"content": None} if index else {})})
            of_call = [result for result in results if result.get("tool_call_id") == call["id"]]
            single += of_call[:1]
            results = [result for result in results if result not in of_call[:1]]
        single += results
    return single


def with_written_calls(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """The messages, with earlier calls and results as text.
    A last message that calls stays: it is an error anyway."""
    texts: list[Message] = []
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            _add_result(texts, message)
        elif message.get("tool_calls") and index < len(messages) - 1:
            texts.append(_written(message, form))
        else:
            texts.append(message)
    return texts


def with_system_tools(messages: Sequence[Message], tools: Tools) -> list[Message]:
    """The messages, with the tools as JSON in a field of the system message."""
    listed = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if messages and messages[0].get("role") in ("system", "developer"):
        return [{**messages[0], "tools": listed}, *messages[1:]]
    content = "You are a helpful assistant with some tools."
    return [{"role": "system", "content": content, "tools": listed}, *messages]


def with_instructions(
    messages: Sequence[Message], tools: Tools, form: ToolFormat, *, as_system: bool = True
) -> list[Message]:
    """The messages, with the tools and how to call them in the system message; in the first message if the
    template shows none."""
    instructions = _instructions(tools, form)
    first = messages[0] if messages else {}
    if first.get("role") in ("system", "developer"):
        text = content_text(first.get("content"), "messages[0].content")
        return [{**first, "content": f"{text}\n\n{instructions}"}, *messages[1:]]
    if not as_system and first.get("role") == "user":
        text = content_text(first.get("content"), "messages[0].content")
        return [{**first, "content": f"{instructions}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


def _with_ids(message: Message, form: ToolFormat) -> Message:
    fields = dict(message)
    if isinstance(answered := message.get("tool_call_id"), str):
        fields["tool_call_id"] = form.history_id(answered)
    if isinstance(calls := message.get("tool_calls"), Sequence):
        fields["tool_calls"] = [{**call, "id": form.history_id(call["id"])} for call in calls]
    return fields


def _instructions(tools: Tools, form: ToolFormat) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = form.written([WrittenCall("NAME", {"PARAMETER": "VALUE"})])
    return f"You can call these functions:\n{listed}\nTo call them, end your answer with:\n{example}"


def _written(message: Message, form: ToolFormat) -> Message:
    calls = message["tool_calls"]
    assert isinstance(calls, Sequence)
    written = form.written([_call(call["function"]) for call in calls])
    text = content_text(message.get("content"))
    return {"role": "assistant", "content": f"{text}\n{written}" if text else written}


def _call(function: Mapping[str, object]) -> WrittenCall:
    arguments = arguments_object(function["arguments"])
    # Arguments that are no object were never ours: they are shown under a name that says so.
    known = arguments if isinstance(arguments, Mapping) else {"arguments": arguments}
    return WrittenCall(str(function["name"]), known)


_RESULTS = "Results of the functions:"


def _add_result(texts: list[Message], message: Message) -> None:
    """Add a result to the message before it, if that has results:
    many templates demand that roles take turns."""
    result = content_text(message.get("content"))
    last = texts[-1].get("content") if texts else None
    if isinstance(last, str) and texts[-1].get("role") == "user" and last.startswith(_RESULTS):
        texts[-1] = {"role": "user", "content": f"{last}\n{result}"}
    else:
        texts.append({"role": "user", "content": f"{_RESULTS}\n{result}"})


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

    @property
    def plain(self) -> str:
        """The text alone."""
        return "".join(part for part in self.parts(0, len(self.text)) if isinstance(part, str))

    def parts(self, start: int, end: int) -> Iterator[str | Sequence[int]]:
        """This stretch of it as texts, and tokens between them. No mark is cut."""
        if not self.tokens:
            yield self.text[start:end]
            return
        texts = re.split(f"({'|'.join(self.tokens)})", self.text[start:end])
        for before, mark in zip(texts[::2], texts[1::2], strict=False):
            yield before.removesuffix(self.blanks)
            yield self.tokens[mark]
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
    written: Written = msgspec.field(default_factory=dict)
    """What the model wrote for some of the messages."""
    variables: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Further ones for the template."""
    thinks_not: bool = False
    """The answer begins at once, if the model has marks for thoughts."""
    most_tokens: int | None = None
    """What is surely longer is not tokenised."""
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
        tools, variables = literals.hidden(conversation.tools), literals.hidden(conversation.variables)
        asked = msgspec.structs.replace(conversation, tools=tools, variables=variables)
        try:
            return self._prompt(asked, partial(self._rendered, self.template, asked), literals)
        except TemplateFailed as error:
            raise TemplateFailed(literals.shown(str(error))) from None

    def _prompt(
        self, asked: Conversation, rendered: Callable[[Sequence[Message]], ChatText], literals: Literals
    ) -> ChatPrompt:
        messages = literals.hidden_messages(asked.messages)
        # Templates leave out what a model thought before earlier answers, and the tokens that it wrote have
        # that, too.
        written = asked.written if self.reasoning is None else {}
        chat = marked_chat(messages, written, lambda those: rendered(those).text) if written else None
        stage, wants_thoughts = ThinkingStage.BEHIND, False
        if chat is None:
            text, stage = rendered(messages)
            chat = MarkedChat(messages, text)
            wants_thoughts = self.reasoning is not None and self.reasoning.wants_thoughts(text)
        require_room(self.tokenizer, chat.plain, asked.most_tokens)
        parts = self._borders(chat, rendered) if asked.marks_borders else []
        tokens, borders = self._encoded(chat, parts, literals)
        if not tokens:
            raise TemplateFailed("The chat template rendered nothing.")
        return ChatPrompt(tokens, stage, wants_thoughts and not asked.thinks_not, borders)

    def _rendered(
        self, template: PromptTemplate, asked: Conversation, messages: Sequence[Message]
    ) -> ChatText:
        messages, shown = told_tools(messages, asked.tools, template, self.tool_format)
        return render_chat(
            template,
            messages,
            tools=shown,
            extra=asked.variables,
            reasoning=self.reasoning,
            thinks_not=asked.thinks_not,
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
        self, chat: MarkedChat, borders: Sequence[int], literals: Literals
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens, and how many of them are before each border."""
        add_special = needs_special_tokens(chat.text, bos_text=self.tokenizer.bos_text)
        around = self.tokenizer.marks if add_special else SequenceMarks()
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
