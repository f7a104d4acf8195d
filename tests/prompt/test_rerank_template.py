"""Templates of prompts that let a model judge whether a document fits a query."""

from __future__ import annotations

import pytest

from openai_cpu_server.prompt.chat_prompts import rerank_template
from openai_cpu_server.prompt.chat_template import ChatTemplate

QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
JINJA = (
    "Answer 'Yes' or 'No'.\n{% for m in messages %}{% if m.role == 'query' %}Q: {{ m.content }}\n{% endif %}"
    "{% if m.role == 'document' %}D: {{ m.content }}\n{% endif %}{% endfor %}"
)
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def chat(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_text="", eos_text="")


def test_the_files_own_template_is_used_or_a_chat_template_with_yes_or_no() -> None:
    found = rerank_template(QWEN3, chat(JINJA))
    assert found is not None
    assert found.render("a {document} b", "c {query}").split("<|im_start|>user\n")[1] == (
        "<Query>: a {document} b\n<Document>: c {query}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert (found.yes, found.no) == ("yes", "no")
    found = rerank_template(None, chat(JINJA))
    assert found is not None
    assert found.render("q", "d") == "Answer 'Yes' or 'No'.\nQ: q\nD: d\n"
    assert (found.yes, found.no) == ("Yes", "No")


@pytest.mark.parametrize(
    ("own", "source"),
    [
        *((None, None), (None, CHATML), ("only {query}", None), (None, "{{ raise_exception('no') }}")),
        (None, "Say yes or no. {{ messages[0].content }}"),
    ],
)
def test_other_templates_are_not_for_reranking(own: str | None, source: str | None) -> None:
    assert rerank_template(own, chat(source) if source is not None else None) is None
