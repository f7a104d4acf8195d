"""A model's chat template. It is compiled once and rendered for every request."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import jinja2

from openai_cpu_server.errors import StartupError, TemplateFailed
from openai_cpu_server.prompt.sandbox import MAX_STEPS, ChatEnvironment
from openai_cpu_server.prompt.template import CallShape, Message, template_messages, tried

_NEEDLE = "needle 5b1f"
_TRYING_STEPS = 20_000
"""The limit of the renderings by which is found out, at load, what the template shows. A message or two take
a few hundred; a template that never ends would take seconds each time.
"""


class ChatTemplate:
    """`PromptTemplate`, compiled. Raises StartupError for source that does not compile. Several threads may
    render at once.

    Rendering can take milliseconds, and seconds for a hostile template: do not call it in an event loop.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_text: str,
        eos_text: str,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.source = source
        environment = ChatEnvironment(max_steps=min(max_steps, _TRYING_STEPS))
        self._template = _compile(source, environment)
        self._constants: dict[str, object] = {
            "bos_token": bos_text,
            "eos_token": eos_text,
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: now().strftime(form),
        }
        self.wants_parts = not self._shows(_NEEDLE) and self._shows([{"type": "text", "text": _NEEDLE}])
        self.shows_tools = self._finds([self._text("user", "")], tools=[_tool(_NEEDLE)])
        self.shows_system = self._finds([self._text("system", _NEEDLE), self._text("user", "")])
        self.shows_system_tools = self._finds([{**self._text("system", ""), "tools": _NEEDLE}])
        self.call_shape = self._call_shape()
        environment.max_steps = max_steps

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt's text. `extra` are further variables; none of them replaces one of ours.

        Raises TemplateFailed, with the template's own words if it refuses the messages.
        """
        variables = {
            "documents": None,
            **(extra or {}),
            **self._constants,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except _Refused as error:
            raise TemplateFailed(str(error)) from None
        except Exception as error:  # somebody else's program: it can raise anything
            raise TemplateFailed(f"the chat template failed: {_words(error)}") from None

    def _call_shape(self) -> CallShape | None:
        """Tried out, from the most common to the rarest."""
        shapes = [CallShape(text, empty) for text in (False, True) for empty in (False, True)]
        found = next((shape for shape in shapes if self._shows_calls(shape, 1)), None)
        if found is None or self._shows_calls(found, 2):
            return found
        return found._replace(one_by_one=True)

    def _shows_calls(self, shape: CallShape, num_calls: int) -> bool:
        """Whether calls, their arguments and their results are seen, and arguments are written as JSON."""
        calls = [_call(index) for index in range(num_calls)]
        calling = {"role": "assistant", "content": None, "tool_calls": calls}
        results = [
            {"role": "tool", "content": f"{_NEEDLE} {i}", "tool_call_id": f"00000000{i}", "name": _NEEDLE}
            for i in range(num_calls)
        ]
        told = template_messages(
            [{"role": "user", "content": "-"}, calling, *results], as_parts=self.wants_parts, shape=shape
        )
        try:
            text = self.render(told, tools=[_tool("")])
            self.render(told[:2], tools=[_tool("")])
        except TemplateFailed:
            return False
        is_json = "{'k5b1f'" not in text and '\\"k5b1f' not in text
        seen = [f"{name}{i}" for name in ("f5b1f", f"{_NEEDLE} ") for i in range(num_calls)]
        return is_json and all(each in text for each in seen)

    def _text(self, role: str, text: str) -> dict[str, object]:
        return {"role": role, "content": [{"type": "text", "text": text}] if self.wants_parts else text}

    def _shows(self, content: object) -> bool:
        return self._finds([{"role": "user", "content": content}])

    def _finds(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> bool:
        return _NEEDLE in tried(lambda: self.render(messages, tools=tools))


def _call(index: int) -> dict[str, object]:
    function = {"name": f"f5b1f{index}", "arguments": {"k5b1f": "x"}}
    return {"id": f"00000000{index}", "type": "function", "function": function}


def _tool(description: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": "f", "description": description, "parameters": parameters},
    }


class _Refused(jinja2.TemplateError):
    """The template called `raise_exception`."""


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _compile(source: str, environment: ChatEnvironment) -> jinja2.Template:
    try:
        return environment.compile_bounded(source)
    except jinja2.TemplateSyntaxError as error:
        raise StartupError(f"the chat template, line {error.lineno}: {_words(error)}") from None
    except Exception as error:  # constants are folded at once, and can fail like a rendering
        raise StartupError(f"the chat template does not compile: {_words(error)}") from None


def _words(error: Exception) -> str:
    """The error's words on one line."""
    message = error.message if isinstance(error, jinja2.TemplateError) else str(error)
    first_line = (message or "").strip().partition("\n")[0]
    return first_line or type(error).__name__
