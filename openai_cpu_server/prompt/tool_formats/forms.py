"""Formats that differ only in the text around a call, and their signs in chat templates."""

from __future__ import annotations

from functools import partial

import msgspec

from openai_cpu_server.prompt.tool_formats.form import JSON_TAIL, CallIds, ToolFormat, json_head
from openai_cpu_server.prompt.tool_formats.parameters import Parameters
from openai_cpu_server.prompt.tool_formats.patterns import Pattern, PatternSlot

_NAME = PatternSlot.NAME
_LIST_COMMA: Pattern = (",", PatternSlot.GAP)
_LISTED = partial(ToolFormat, opening=("[",), between=_LIST_COMMA)
_TOOL_CALL, _FUNCTION, _ARG_KEY = "<tool_call>", "<function=", "<arg_key>"

_HERMES = ToolFormat(
    "hermes",
    marker=_TOOL_CALL,
    head=("\n", *json_head()),
    tail=(*JSON_TAIL, "\n</tool_call>"),
    between=("\n<tool_call>",),
    signs=(_TOOL_CALL, r'"arguments\\*"'),
    others=(_FUNCTION, _ARG_KEY),
)
_MISTRAL_ARGS = ToolFormat(
    "mistral-args",
    marker="[TOOL_CALLS]",
    head=(_NAME, "[ARGS]"),
    tail=(),
    between=("[TOOL_CALLS]",),
    signs=(r"\[TOOL_CALLS\]", r"\[ARGS\]"),
    others=(r"\[CALL_ID\]",),
    ids=CallIds.SHORT,
)
_PYTHONIC = _LISTED(
    "pythonic",
    head=(_NAME, "("),
    tail=(")",),
    closing=("]",),
    parameters=Parameters(
        begin=(_NAME, "="), raw_begin="'", raw_end="'", between=_LIST_COMMA, close=")", is_python=True
    ),
    signs=(r"\[func_name1\(",),
)
GENERIC = msgspec.structs.replace(_HERMES, name="generic", signs=(), others=(), replaces_template=True)
"""For templates that know no tools, or use an unknown format."""
FORMS: tuple[ToolFormat, ...] = (
    ToolFormat(
        "demo",
        marker="<|tool_call|>",
        between=("\n",),
        signs=(r"<\|tool_call\|>",),
        others=(r"<\|start_of_role\|>", r"<\|/?tool\|>"),
    ),
    _HERMES,
    ToolFormat(
        "llama3",
        prelude="<|python_tag|>",
        head=json_head("parameters"),
        between=("; ",),
        signs=(r"<\|start_header_id\|>", '"parameters": '),
        others=(r"\[func_name1\(", _TOOL_CALL, _FUNCTION),
    ),
    _PYTHONIC,
    # Up to tokenizer version 7.
    ToolFormat(
        "mistral",
        marker="[TOOL_CALLS]",
        opening=(PatternSlot.GAP, "["),
        between=_LIST_COMMA,
        closing=("]",),
        signs=(r"\[TOOL_CALLS\]",),
        others=(r"\[ARGS\]",),
        ids=CallIds.SHORT,
    ),
    _MISTRAL_ARGS,
    msgspec.structs.replace(
        _MISTRAL_ARGS,
        name="mistral-ids",
        head=(_NAME, "[CALL_ID]", PatternSlot.ID, "[ARGS]"),
        signs=(*_MISTRAL_ARGS.signs, r"\[CALL_ID\]"),
        others=(),
    ),
    ToolFormat(
        "qwen3-coder",
        marker=_TOOL_CALL,
        head=("\n<function=", _NAME, ">\n"),
        tail=("</function>\n</tool_call>",),
        between=("\n<tool_call>",),
        parameters=Parameters(
            begin=("<parameter=", _NAME, ">\n"), raw_end="\n</parameter>", behind=("\n",), close="</function>"
        ),
        signs=(_TOOL_CALL, _FUNCTION, "<parameter="),
        others=("<seed:tool_call>",),
    ),
    ToolFormat(
        "glm",
        marker=_TOOL_CALL,
        head=(_NAME, PatternSlot.LINE),
        tail=("</tool_call>",),
        between=(PatternSlot.LINE, _TOOL_CALL),
        parameters=Parameters(
            begin=("<arg_key>", _NAME, "</arg_key>", PatternSlot.LINE, "<arg_value>"),
            raw_end="</arg_value>",
            behind=(PatternSlot.LINE,),
            close="</tool_call>",
        ),
        signs=(_TOOL_CALL, _ARG_KEY),
    ),
    ToolFormat(
        "deepseek",
        marker="<｜tool▁calls▁begin｜>",
        head=("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", _NAME, "\n```json\n"),
        tail=("\n```<｜tool▁call▁end｜>",),
        between=("\n",),
        closing=("<｜tool▁calls▁end｜>",),
        signs=("<｜tool▁call▁begin｜>", "```json"),
    ),
    ToolFormat(
        "deepseek-v3.1",
        marker="<｜tool▁calls▁begin｜>",
        head=("<｜tool▁call▁begin｜>", _NAME, "<｜tool▁sep｜>"),
        tail=("<｜tool▁call▁end｜>",),
        closing=("<｜tool▁calls▁end｜>",),
        signs=("<｜tool▁call▁begin｜>",),
        others=("```json",),
    ),
    _LISTED(
        "granite",
        marker="<|tool_call|>",
        closing=("]",),
        signs=(r"<\|tool_call\|>", r"<\|start_of_role\|>"),
        others=("<tool_call>",),
    ),
    _LISTED(
        "phi4",
        marker="<|tool_call|>",
        closing=("]<|/tool_call|>",),
        signs=(r"<\|/tool\|>",),
        others=(r"<\|tool_call\|>",),
    ),
    ToolFormat(
        "phi4-tags",
        marker="<|tool_call|>",
        tail=(*JSON_TAIL, "<|/tool_call|>"),
        between=("<|tool_call|>",),
        signs=(r"<\|/tool\|>", r"<\|/tool_call\|>"),
    ),
    ToolFormat(
        "functools", marker="functools[", between=_LIST_COMMA, closing=("]",), signs=(r"functools\[",)
    ),
    ToolFormat(
        "functiongemma",
        marker="<start_function_call>",
        head=("call:", _NAME, "{"),
        tail=("}<end_function_call>",),
        between=("<start_function_call>",),
        parameters=Parameters(
            begin=(_NAME, ":"), raw_begin="<escape>", raw_end="<escape>", between=(",",), close="}"
        ),
        signs=("<start_function_call>",),
    ),
    ToolFormat(
        "gemma4",
        marker="<|tool_call>",
        head=("call:", _NAME, "{"),
        tail=("}<tool_call|>",),
        between=("<|tool_call>",),
        parameters=Parameters(
            begin=(_NAME, ":"), raw_begin='<|"|>', raw_end='<|"|>', between=(",",), close="}"
        ),
        signs=(r"<\|tool_call>",),
    ),
    ToolFormat(
        "kimi",
        marker="<|tool_calls_section_begin|>",
        head=("<|tool_call_begin|>functions.", _NAME, ":", PatternSlot.INDEX, "<|tool_call_argument_begin|>"),
        tail=("<|tool_call_end|>",),
        closing=("<|tool_calls_section_end|>",),
        ids=CallIds.NAMED,
        signs=(r"<\|tool_calls_section_begin\|>",),
    ),
    _LISTED("nemotron", marker="<TOOLCALL>", closing=("]</TOOLCALL>",), signs=("<TOOLCALL>",)),
    _LISTED(
        "command-r7b",
        marker="<|START_ACTION|>",
        head=('{"tool_call_id": "', PatternSlot.INDEX, '", "tool_name": "', _NAME, '", "parameters": '),
        closing=("]<|END_ACTION|>",),
        signs=(r"<\|START_ACTION\|>", '"tool_call_id'),
    ),
    _LISTED(
        "apertus",
        marker="<|tools_prefix|>",
        head=('{"', _NAME, '":', PatternSlot.GAP),
        tail=("}",),
        closing=("]<|tools_suffix|>",),
        signs=(r"<\|tools_prefix\|>",),
    ),
    ToolFormat(
        "seed-oss",
        marker="<seed:tool_call>",
        head=("\n<function=", _NAME, ">\n"),
        tail=("</function>\n</seed:tool_call>",),
        between=("\n<seed:tool_call>",),
        parameters=Parameters(
            begin=("<parameter=", _NAME, ">"), raw_end="</parameter>", behind=("\n",), close="</function>"
        ),
        signs=("<seed:tool_call>",),
    ),
    ToolFormat(
        "minimax",
        marker="<minimax:tool_call>",
        head=('\n<invoke name="', _NAME, '">\n'),
        tail=("</invoke>",),
        closing=("\n</minimax:tool_call>",),
        parameters=Parameters(
            begin=('<parameter name="', _NAME, '">'),
            raw_end="</parameter>",
            behind=("\n",),
            close="</invoke>",
        ),
        signs=("<minimax:tool_call>",),
    ),
    msgspec.structs.replace(
        _PYTHONIC,
        name="lfm2",
        marker="<|tool_call_start|>",
        closing=("]<|tool_call_end|>",),
        signs=(r"<\|tool_list_start\|>|List of tools: \[",),  # LFM2, LFM2.5
    ),
)
