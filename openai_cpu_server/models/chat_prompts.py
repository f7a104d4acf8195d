"""A conversation becomes prompt tokens: rendered by the model's template, tokenised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.errors import TemplateFailed
from openai_cpu_server.models.written import Written, spliced, written_parts
from openai_cpu_server.prompt.chat import needs_special_tokens, render_chat
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats import ToolFormat
from openai_cpu_server.prompt.tool_texts import with_history_ids, with_instructions, with_written_calls

NOTHING: Written = {}


class ChatPrompts:
    """`template`: None for a model without one. `tool_format`: None where the template's is unknown."""

    def __init__(
        self, template: ChatTemplate | None, tokenizer: Tokenizer, tool_format: ToolFormat | None = None
    ) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._tool_format = tool_format

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
        if self._template is None:
            raise TemplateFailed(
                "The model has no chat template; start the server with --chat-template FILE."
            )
        render = partial(self._rendered, self._template, tools=tools)
        parts = written_parts(messages, written, render) if written else None
        if parts is not None:
            add_special = needs_special_tokens(parts[0], bos_text=self._tokenizer.bos_text)
            return spliced(parts, written, self._tokenizer, add_special=add_special)
        text = render(messages)
        add_special = needs_special_tokens(text, bos_text=self._tokenizer.bos_text)
        tokens = tuple(self._tokenizer.encode(text, add_special=add_special, parse_special=True))
        if not tokens:
            raise TemplateFailed("The chat template rendered nothing.")
        return tokens

    def _rendered(
        self,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]],
    ) -> str:
        form = self._tool_format
        if form is None:
            return render_chat(template, messages)
        known = with_history_ids if template.shows_calls else with_written_calls
        messages = known(messages, form)
        if tools and not template.shows_tools:
            return render_chat(template, with_instructions(messages, tools, form))
        return render_chat(template, messages, tools=tools)
