"""A served model whose reader's code runs in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openai_cpu_server.contract.engine import Engine
from openai_cpu_server.errors import wrong
from openai_cpu_server.models.grammars import ModelGrammars
from openai_cpu_server.models.served import ModelThinking, ServedModel
from openai_cpu_server.prompt.chat_prompts import ChatPrompts, ControlNames, TemplatePrompts, rerank_template
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.go_template import GoTemplate
from openai_cpu_server.prompt.tool_formats import ToolFormat
from openai_cpu_server.structured.compiler import grammar_maker
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.grammar_check import check_grammar as known_check


def model_read_here(
    *,
    names: tuple[str, ...],
    engine: Engine,
    tool_format: ToolFormat,
    tokenizer: FakeTokenizer | None = None,
    template: ChatTemplate | None = None,
    check_grammar: Callable[[str], object] = known_check,
    is_flexible: bool = False,
    is_open: bool = False,
    thinking: ModelThinking | None = None,
    **more: Any,
) -> ServedModel:
    tokenizer = tokenizer or FakeTokenizer()
    control = ControlNames(tokenizer.control_tokens)
    rerank = rerank_template(tokenizer.rerank_template, template)
    reasoning = thinking.template if thinking is not None else None
    return ServedModel(
        names=names,
        created=1,
        engine=engine,
        tokenizer=tokenizer,
        prompts=ChatPrompts(template, tokenizer, tool_format, control, reasoning),
        tool_format=tool_format,
        grammars=ModelGrammars(grammar_maker(check_grammar), is_flexible=is_flexible, is_open=is_open),
        rerank=TemplatePrompts(rerank, tokenizer, control) if rerank is not None else None,
        thinking=thinking,
        write_template=write_template,
        **more,
    )


def write_template(
    template: str, messages: Sequence[Mapping[str, str]] | None, suffix: str, most_tokens: int
) -> str:
    """Stand in for `ReadModel.write_template`."""
    parsed = GoTemplate(template, "template")
    if suffix and not parsed.has_suffix:
        raise wrong("This 'template' has no place for a 'suffix'.", "suffix")
    return "" if messages is None else parsed.prompt(messages, suffix)
