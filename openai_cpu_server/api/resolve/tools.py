"""Which functions are offered to the model, and what it may or must do with them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from openai_cpu_server.api.asking.ask import AskedFunction, AskedTools, ToolUse, wrong


class ToolPlan(msgspec.Struct, frozen=True):
    shown: Sequence[Mapping[str, object]]
    """All tools, for the chat template, as OpenAI writes them."""
    callable: tuple[AskedFunction, ...]
    """Those that the model may call."""
    use: ToolUse
    several: bool
    path: str
    is_legacy: bool


def tool_plan(asked: AskedTools | None) -> ToolPlan | None:
    """None: there are no tools, or none that may be called or shown. Raises InvalidRequest."""
    if asked is None:
        return None
    _check_names(asked.functions)
    chosen = asked.chosen
    if chosen is not None:
        _check_known(chosen, {function.name for function in asked.functions}, asked.choice_path)
    if asked.use is None:
        return None
    return ToolPlan(
        shown=[_shown(function) for function in asked.functions],
        callable=tuple(each for each in asked.functions if chosen is None or each.name in chosen),
        use=asked.use,
        several=asked.several and asked.use is not ToolUse.NAMED,
        path=asked.path,
        is_legacy=asked.is_legacy,
    )


def check_no_choice(choice: object, *, without: str, path: str) -> None:
    """Raises InvalidRequest for a choice between functions (`without`) of which there are none."""
    if choice not in (None, "none", "auto"):
        raise wrong(f"'{path}' is only allowed together with '{without}'.", path)


def _shown(function: AskedFunction) -> dict[str, object]:
    """Templates expect all three fields."""
    described = {"name": function.name, "description": function.description or ""}
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**described, "parameters": parameters}}


def _check_names(functions: Sequence[AskedFunction]) -> None:
    seen: set[str] = set()
    for function in functions:
        if function.name in seen:
            message = f"There are several functions of the name '{function.name}'."
            raise wrong(message, f"{function.path}.name")
        seen.add(function.name)


def _check_known(names: Sequence[str], known: Collection[str], path: str) -> None:
    for name in names:
        if name not in known:
            raise wrong(f"'{path}' names '{name[:64]}', which is none of the functions given.", path)
