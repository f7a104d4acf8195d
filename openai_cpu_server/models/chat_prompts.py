"""A conversation becomes prompt tokens: rendered by the model's template, tokenised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.errors import TemplateFailed
from openai_cpu_server.models.written import Message, Render, Written, spliced, written_parts
from openai_cpu_server.prompt.chat import ChatText, needs_special_tokens, render_chat
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning.stage import Stage
from openai_cpu_server.prompt.reasoning.template import TemplateReasoning
from openai_cpu_server.prompt.tool_formats import ToolFormat
from openai_cpu_server.prompt.tool_texts import told_tools


class ChatPrompt(NamedTuple):
    tokens: tuple[int, ...]
    """At least one."""
    stage: Stage
    """Where the output begins."""
    wants_thoughts: bool
    """The model surely thinks first."""


NOTHING: Written = {}


class ChatPrompts:
    """`template`: None for a model without one. `reasoning`: None for a model that does not think."""

    def __init__(
        self,
        template: ChatTemplate | None,
        tokenizer: Tokenizer,
        tool_format: ToolFormat,
        reasoning: TemplateReasoning | None = None,
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._tool_format = tool_format
        self._reasoning = reasoning

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def tokens(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] = (),
        written: Written = NOTHING,
    ) -> tuple[int, ...]:
        """At least one token. `tools`: to be offered to the model. `written`: what it wrote for some of the
        messages. Raises InvalidRequest, TemplateFailed."""
        return self.prompt(messages, tools, written).tokens

    def prompt(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] = (),
        written: Written = NOTHING,
        *,
        variables: Mapping[str, object] | None = None,
        thinks_not: bool = False,
    ) -> ChatPrompt:
        """`variables`: further ones for the template. `thinks_not`: the answer begins at once, if the model
        has marks for thoughts. Raises InvalidRequest, TemplateFailed."""
        if self._template is None:
            raise TemplateFailed(
                "The model has no chat template; start the server with --chat-template FILE."
            )
        render = partial(
            self._rendered, self._template, tools=tools, variables=variables, thinks_not=thinks_not
        )
        parts = self._written_parts(messages, written, lambda told: render(told).text)
        if parts is not None:
            add_special = needs_special_tokens(parts[0], bos_text=self._tokenizer.bos_text)
            spelt = spliced(parts, written, self._tokenizer, add_special=add_special)
            return ChatPrompt(spelt, Stage.BEHIND, wants_thoughts=False)
        text, stage = render(messages)
        add_special = needs_special_tokens(text, bos_text=self._tokenizer.bos_text)
        tokens = tuple(self._tokenizer.encode(text, add_special=add_special, parse_special=True))
        if not tokens:
            raise TemplateFailed("The chat template rendered nothing.")
        wants_thoughts = self._reasoning is not None and self._reasoning.wants_thoughts(text)
        return ChatPrompt(tokens, stage, wants_thoughts and not thinks_not)

    def _written_parts(
        self, messages: Sequence[Message], written: Written, render: Render
    ) -> list[str] | None:
        """None: the messages' texts are rendered. Templates leave out what a model thought before earlier
        answers, and the tokens that it wrote have that, too."""
        if not written or self._reasoning is not None:
            return None
        return written_parts(messages, written, render)

    def _rendered(
        self,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]],
        variables: Mapping[str, object] | None,
        *,
        thinks_not: bool,
    ) -> ChatText:
        messages, shown = told_tools(messages, tools, template, self._tool_format)
        return render_chat(
            template,
            messages,
            tools=shown,
            extra=variables,
            reasoning=self._reasoning,
            thinks_not=thinks_not,
        )
