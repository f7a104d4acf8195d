"""What a chat template says about its model's thoughts. It is found out once, by reading and trying."""

from __future__ import annotations

import msgspec

from openai_cpu_server.errors import TemplateFailed
from openai_cpu_server.prompt.reasoning.echo import Echo, echo_of
from openai_cpu_server.prompt.reasoning.formats import ReasoningFormat, reasoning_format_for
from openai_cpu_server.prompt.template import Template


class TemplateReasoning(msgspec.Struct, frozen=True):
    """A template whose model thinks."""

    form: ReasoningFormat
    echo: Echo
    has_switch: bool
    """It can be told to think, and not to."""
    thinks_unasked: bool
    """It can be told not to, and thinks otherwise."""
    reads_effort: bool
    """It tells the model how hard to think."""

    def wants_thoughts(self, prompt: str) -> bool:
        """Whether the model surely begins with thoughts behind a prompt that has not opened them.

        A prompt with the mark in it has taught the model to write it.
        """
        return self.thinks_unasked or self.form.begin in prompt


def switch(on: bool) -> dict[str, object]:
    """The variables that make templates think or not, under all their names."""
    return {"enable_thinking": on, "thinking": on, "reasoning": on}


def template_reasoning(template: Template, form: ReasoningFormat | None = None) -> TemplateReasoning | None:
    """`form`: the user's choice, which goes before what the template teaches. None: the model does not
    think."""
    form = form or reasoning_format_for(template)
    if form is None:
        return None
    unasked, on, off = (_tried(template, said) for said in ({}, switch(on=True), switch(on=False)))
    return TemplateReasoning(
        form=form,
        echo=echo_of(template),
        has_switch=on != off,
        thinks_unasked=unasked != off,
        reads_effort="reasoning_effort" in template.source,
    )


def _tried(template: Template, variables: dict[str, object]) -> str:
    try:
        return template.render([{"role": "user", "content": "a"}], extra=variables)
    except TemplateFailed:
        return ""
