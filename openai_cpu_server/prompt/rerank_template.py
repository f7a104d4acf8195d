"""Prompt of a reranker that answers yes or no."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from openai_cpu_server.contract.model_info import Tokenizer
from openai_cpu_server.prompt.chat import ControlNames, Literals, needs_special_tokens
from openai_cpu_server.prompt.template import PromptTemplate, tried

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
        return [self._prompt(query, document) for document in documents]

    def _prompt(self, query: str, document: str) -> tuple[int, ...]:
        literals, tokenizer = Literals(self._names), self._tokenizer
        text = self._template.render(literals.hidden(query), literals.hidden(document))
        needs_begin = needs_special_tokens(text, bos_text=tokenizer.bos_text)
        tokens = literals.encode(text, tokenizer, add_special=False)
        return (*tokenizer.marks.begin * needs_begin, *tokens)


def rerank_template(own: str | None, chat: PromptTemplate | None) -> RerankTemplate | None:
    """Return None if neither reranks. `own`: the file's template, preferred to `chat`."""
    if own is not None and {"{query}", "{document}"} <= set(_PLACE.split(own)):
        return RerankTemplate(own)
    return RerankTemplate(chat) if chat is not None and _asks_yes_or_no(chat) else None


def _asks_yes_or_no(template: PromptTemplate) -> bool:
    """Only a reranker's template names the answers."""
    messages = [{"role": "query", "content": _QUERY}, {"role": "document", "content": _DOCUMENT}]
    text = tried(lambda: template.render(messages))
    return _QUERY in text and _DOCUMENT in text and _YES_OR_NO.search(text) is not None
