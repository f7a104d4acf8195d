"""A conversation becomes prompt tokens: checked, rendered by the model's template, tokenised."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.api.resolve.messages import checked_messages
from openai_cpu_server.api.schemas.chat import Message
from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.errors import TemplateFailed
from openai_cpu_server.prompt.chat import needs_special_tokens, render_chat
from openai_cpu_server.prompt.chat_template import ChatTemplate


class ChatPrompts:
    """`template`: None for a model without one."""

    def __init__(self, template: ChatTemplate | None, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer

    def tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """At least one token. Raises InvalidRequest, TemplateFailed."""
        if self._template is None:
            raise TemplateFailed(
                "The model has no chat template; start the server with --chat-template FILE."
            )
        text = render_chat(self._template, checked_messages(messages))
        add_special = needs_special_tokens(text, bos_text=self._tokenizer.bos_text)
        tokens = tuple(self._tokenizer.encode(text, add_special=add_special, parse_special=True))
        if not tokens:
            raise TemplateFailed("The chat template rendered nothing.")
        return tokens
