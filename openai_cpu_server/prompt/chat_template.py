"""A model's chat template, compiled once."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import jinja2

from openai_cpu_server.errors import StartupError, TemplateFailed
from openai_cpu_server.prompt.sandbox import MAX_STEPS, ChatEnvironment
from openai_cpu_server.prompt.template import (
    CallShape,
    Message,
    SystemPlace,
    TemplateShape,
    template_messages,
    tried,
)

_NEEDLE = "needle 5b1f"
_TRYING_STEPS = 20_000
"""Limit of the trial renderings at load, which take a few hundred. A template that never ends would take
seconds each time."""


class ChatTemplate:
    """For any thread, but not for event loops, because rendering takes milliseconds, or seconds for a
    hostile template. Raises StartupError for source that does not compile."""

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
        # Some templates take the length of their tools, and fail with None.
        self._no_tools: Sequence[Message] | None = None
        question: Sequence[Message] = [{"role": "user", "content": _NEEDLE}]
        if not tried(lambda: self.render(question)):
            self._no_tools = ()
            if not tried(lambda: self.render(question)):
                self._no_tools = None
        self.shape = _Trial(self).shape()
        environment.max_steps = max_steps

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt's text. Raises TemplateFailed. `extra`: variables that do not replace ours."""
        variables = {
            "documents": None,
            **(extra or {}),
            **self._constants,
            "messages": messages,
            "tools": tools or self._no_tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except _Refused as error:
            raise TemplateFailed(str(error)) from None
        except Exception as error:  # an untrusted program can raise anything
            raise TemplateFailed(f"the chat template failed: {_words(error)}") from None


class _Trial:
    def __init__(self, template: ChatTemplate) -> None:
        self._render = template.render
        self._calls: CallShape | None = None
        self._wants_parts = False
        if not self._finds([_user(_NEEDLE)]):
            self._wants_parts = True
            self._wants_parts = self._finds([_user(_NEEDLE)])

    def shape(self) -> TemplateShape:
        self._calls = self._call_shape()
        called = ("UCU", "UCTU") if self._calls else ()
        return TemplateShape(
            wants_parts=self._wants_parts,
            shows_tools=self._finds([_user("")], tools=[_tool(_NEEDLE)]),
            shows_system_tools=self._finds([{"role": "system", "content": "", "tools": _NEEDLE}]),
            system=self._system(),
            alternates=not all(self._shows(turns) for turns in ("UU", "AU", "UAAU", *called)),
            takes_empty=self._shows("UEU"),
            calls=self._calls,
        )

    def _system(self) -> SystemPlace:
        lasting = ("SU", "SUAU", "SUCT" if self._calls else "SU")  # some show it when a user speaks last only
        if not all(self._shows(turns) for turns in lasting):
            return SystemPlace.NOWHERE
        if not self._shows("SSU"):
            return SystemPlace.FIRST
        is_anywhere = all(self._shows(turns) for turns in ("US", "USAU", "UASU"))
        return SystemPlace.ANYWHERE if is_anywhere else SystemPlace.HEAD

    def _call_shape(self) -> CallShape | None:
        shapes = [CallShape(text, empty) for text in (False, True) for empty in (False, True)]
        found = next((shape for shape in shapes if self._shows_calls(shape, 1)), None)
        if found is None:
            return None
        self._calls = found
        return found._replace(one_by_one=not self._shows_calls(found, 2), text_apart=not self._shows("UDT"))

    def _shows_calls(self, shape: CallShape, num_calls: int) -> bool:
        calling = _calling([_call(index) for index in range(num_calls)])
        results = [_result(f"{_NEEDLE} {index}", index) for index in range(num_calls)]
        self._calls = shape
        text = self._tried([_user("-"), calling, *results], tools=[_tool("")])
        is_json = "{'k5b1f" not in text and '\\"k5b1f' not in text
        seen = [f"{name}{i}" for name in ("f5b1f", "k5b1f", f"{_NEEDLE} ") for i in range(num_calls)]
        is_begun = bool(self._tried([_user("-"), calling], tools=[_tool("")]))
        return is_begun and is_json and all(each in text for each in seen)

    def _shows(self, turns: str) -> bool:
        """`turns`: System, Users, Answers, Empty answers, Calls, calls with worDs, Tools' results."""
        messages = [_turn(kind, f"{_NEEDLE} {at}", at) for at, kind in enumerate(turns)]
        seen = [f"{_NEEDLE} {at}" for at, kind in enumerate(turns) if kind not in "EC"]
        seen += [f"f5b1f{at}" for at, kind in enumerate(turns) if kind in "CD"]
        texts = (self._tried(messages, tools=tools) for tools in (None, [_tool("")]))
        return all(all(each in text for each in seen) and bool(text) for text in texts)

    def _finds(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> bool:
        return _NEEDLE in self._tried(messages, tools)

    def _tried(self, messages: Sequence[Message], tools: Sequence[Message] | None) -> str:
        shaped = template_messages(messages, as_parts=self._wants_parts, shape=self._calls)
        return tried(lambda: self._render(shaped, tools=tools))


def _turn(kind: str, text: str, at: int) -> Message:
    if kind in "CD":
        return {**_calling([_call(at)]), "content": text if kind == "D" else None}
    if kind == "T":
        return _result(text, at - 1)
    role = {"S": "system", "U": "user"}.get(kind, "assistant")
    return {"role": role, "content": "" if kind == "E" else text}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _calling(calls: Sequence[Message]) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _result(text: str, call: int) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": f"00000000{call}", "name": f"f5b1f{call}"}


def _call(index: int) -> Message:
    function = {"name": f"f5b1f{index}", "arguments": {f"k5b1f{index}": "x"}}
    return {"id": f"00000000{index}", "type": "function", "function": function}


def _tool(description: str) -> Message:
    parameters = {"type": "object", "properties": {}}
    function = {"name": "f", "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


class _Refused(jinja2.TemplateError): ...


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
    message = error.message if isinstance(error, jinja2.TemplateError) else str(error)
    first_line = (message or "").strip().partition("\n")[0]
    return first_line or type(error).__name__
