"""A conversation becomes prompt tokens: rendered by the model's template, tokenised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.errors import PromptFarTooLong, TemplateFailed
from openai_cpu_server.prompt.chat import ChatText, needs_special_tokens, render_chat
from openai_cpu_server.prompt.literals import ControlNames, Literals
from openai_cpu_server.prompt.messages import Message
from openai_cpu_server.prompt.reasoning.stage import Stage
from openai_cpu_server.prompt.reasoning.template import TemplateReasoning
from openai_cpu_server.prompt.template import Template
from openai_cpu_server.prompt.tool_formats import ToolFormat
from openai_cpu_server.prompt.tool_texts import told_tools
from openai_cpu_server.prompt.written import Written, written_parts


class ChatPrompt(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]
    """At least one."""
    stage: Stage
    """Where the output begins."""
    wants_thoughts: bool
    """The model surely thinks first."""


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


class Prompts(Protocol):
    """Makes the prompts of one model. It takes milliseconds: do not call it in an event loop."""

    @property
    def has_template(self) -> bool: ...

    def prompt(self, conversation: Conversation) -> ChatPrompt:
        """Raises InvalidRequest, TemplateFailed, PromptFarTooLong."""
        ...


class ChatPrompts:
    """`Prompts` of this process. `template`: None for a model without one. `reasoning`: None for a model that
    does not think."""

    def __init__(
        self,
        template: Template | None,
        tokenizer: Tokenizer,
        tool_format: ToolFormat,
        names: ControlNames,
        reasoning: TemplateReasoning | None = None,
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._tool_format = tool_format
        self._names = names
        self._reasoning = reasoning

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def prompt(self, conversation: Conversation) -> ChatPrompt:
        if self._template is None:
            raise TemplateFailed(
                "The model has no chat template; start the server with --chat-template FILE."
            )
        literals = Literals(self._names)
        rendering = _Rendering(self._template, self._tool_format, self._reasoning, literals, conversation)
        try:
            return self._prompt(conversation, rendering, literals)
        except TemplateFailed as error:
            raise TemplateFailed(literals.shown(str(error))) from None

    def _prompt(self, asked: Conversation, rendering: _Rendering, literals: Literals) -> ChatPrompt:
        messages = literals.hidden_messages(asked.messages)
        # Templates leave out what a model thought before earlier answers, and the tokens that it wrote have
        # that, too.
        written = asked.written if self._reasoning is None else {}
        parts = written_parts(messages, written, rendering.text) if written else None
        if parts is not None:
            return ChatPrompt(self._spliced(parts, written, literals, asked), Stage.BEHIND, False)
        text, stage = rendering.of(messages)
        tokens = self._encoded(text, literals, asked.most_tokens)
        if not tokens:
            raise TemplateFailed("The chat template rendered nothing.")
        wants_thoughts = self._reasoning is not None and self._reasoning.wants_thoughts(text)
        return ChatPrompt(tokens, stage, wants_thoughts and not asked.thinks_not)

    def _encoded(self, text: str, literals: Literals, most_tokens: int | None) -> tuple[int, ...]:
        require_room(self._tokenizer, text, most_tokens)
        add_special = needs_special_tokens(text, bos_text=self._tokenizer.bos_text)
        return tuple(literals.encode(text, self._tokenizer, add_special=add_special))

    def _spliced(
        self, parts: Sequence[str], written: Written, literals: Literals, asked: Conversation
    ) -> tuple[int, ...]:
        tokens = [*self._encoded(parts[0], literals, asked.most_tokens)]
        for place, part in zip(sorted(written), parts[1:], strict=True):
            require_room(self._tokenizer, part, asked.most_tokens)
            tokens += [*written[place], *literals.encode(part, self._tokenizer, add_special=False)]
        return tuple(tokens)


class _Rendering:
    """Renders the messages of one conversation."""

    def __init__(
        self,
        template: Template,
        form: ToolFormat,
        reasoning: TemplateReasoning | None,
        literals: Literals,
        asked: Conversation,
    ) -> None:
        self._template = template
        self._form = form
        self._reasoning = reasoning
        self._tools = literals.hidden(asked.tools)
        self._variables = literals.hidden(asked.variables)
        self._thinks_not = asked.thinks_not

    def text(self, messages: Sequence[Message]) -> str:
        return self.of(messages).text

    def of(self, messages: Sequence[Message]) -> ChatText:
        messages, shown = told_tools(messages, self._tools, self._template, self._form)
        return render_chat(
            self._template,
            messages,
            tools=shown,
            extra=self._variables,
            reasoning=self._reasoning,
            thinks_not=self._thinks_not,
        )


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
