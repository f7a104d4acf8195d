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
_DSML = "｜DSML｜"
_M3 = "]<]minimax[>["
_JSON_TYPES = ("string", "boolean", "null", "number", "array", "object")

_HERMES = ToolFormat(
    "hermes",
    marker=_TOOL_CALL,
    head=("\n", *json_head()),
    tail=(*JSON_TAIL, "\n</tool_call>"),
    between=("\n<tool_call>",),
    signs=(_TOOL_CALL, r'"arguments\\*"'),
    others=(_FUNCTION, _ARG_KEY, "<tool_calls>"),
)
_DEEPSEEK_V4 = ToolFormat(
    "deepseek-v4",
    marker=f"<{_DSML}tool_calls>",
    head=(f'\n<{_DSML}invoke name="', _NAME, '">\n'),
    tail=(f"</{_DSML}invoke>",),
    closing=(f"\n</{_DSML}tool_calls>",),
    parameters=Parameters(
        begin=(f'<{_DSML}parameter name="', _NAME, '" string="', PatternSlot.KIND, '">'),
        raw_end=f"</{_DSML}parameter>",
        behind=("\n",),
        close=f"</{_DSML}invoke>",
        kinds={**dict.fromkeys(_JSON_TYPES, "false"), "string": "true"},
    ),
    signs=(_DSML, "tool_calls>"),
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
    # Hunyuan 3, whose template builds the marks from a suffix.
    ToolFormat(
        "hy3",
        marker="<tool_calls:opensource>",
        head=("\n<tool_call:opensource>", _NAME, "<tool_sep:opensource>\n"),
        tail=("</tool_call:opensource>",),
        closing=("\n</tool_calls:opensource>",),
        parameters=Parameters(
            begin=("<arg_key:opensource>", _NAME, "</arg_key:opensource>\n<arg_value:opensource>"),
            raw_end="</arg_value:opensource>",
            behind=("\n",),
            close="</tool_call:opensource>",
        ),
        signs=(r"HYTK = ':opensource'", r"<tool_calls\{\}>"),
    ),
    _DEEPSEEK_V4,
    msgspec.structs.replace(
        _DEEPSEEK_V4,
        name="deepseek-v3.2",
        marker=f"<{_DSML}function_calls>",
        closing=(f"\n</{_DSML}function_calls>",),
        signs=(_DSML, "function_calls>"),
    ),
    ToolFormat(
        "minicpm5",
        marker='<function name="',
        head=(_NAME, '">'),
        tail=("</function>",),
        between=("\n", '<function name="'),
        parameters=Parameters(
            begin=('<param name="', _NAME, '">'),
            raw_end="</param>",
            wrapping=("<![CDATA[", "]]>"),
            close="</function>",
        ),
        signs=('<function name="', '<param name="'),
    ),
    ToolFormat(
        "kimi-k3",
        marker="<|close|>response<|sep|><|open|>tools<|sep|>",
        head=('<|open|>call tool="', _NAME, '" index="', PatternSlot.INDEX, '"<|sep|>'),
        tail=("<|close|>call<|sep|>",),
        closing=("<|close|>tools<|sep|>",),
        parameters=Parameters(
            begin=('<|open|>argument key="', _NAME, '" type="', PatternSlot.KIND, '"<|sep|>'),
            raw_end="<|close|>argument<|sep|>",
            close="<|close|>call<|sep|>",
            kinds={each: each for each in _JSON_TYPES},
        ),
        signs=(r"<\|open\|>", "argument"),
    ),
    _LISTED("apriel", marker="<tool_calls>", closing=("]</tool_calls>",), signs=(r"<tool_calls>\[",)),
    ToolFormat(
        "minimax-m1",
        marker="<tool_calls>",
        opening=("\n",),
        between=("\n",),
        closing=("\n</tool_calls>",),
        signs=(r"<tool_calls>\\n", "<beginning_of_sentence>"),
    ),
    ToolFormat(
        "minimax-m3",
        marker=f"{_M3}<tool_call>",
        head=(f'\n{_M3}<invoke name="', _NAME, '">'),
        tail=(f"{_M3}</invoke>",),
        closing=(f"\n{_M3}</tool_call>",),
        parameters=Parameters(
            begin=(f"{_M3}<", _NAME, ">"),
            raw_end=f"{_M3}</",
            behind=(_NAME, ">"),
            close=f"{_M3}</invoke>",
            nesting=_M3,
        ),
        signs=(r"\]<\]minimax\[>\[",),
    ),
    # GigaChat 3.1, then 3.
    ToolFormat(
        "gigachat", marker="<|function_call|>", is_single=True, signs=(r"<\|function_call\|>", "role_sep")
    ),
    ToolFormat(
        "gigachat3",
        marker="<|message_sep|>\n\nfunction call<|role_sep|>\n",
        is_single=True,
        signs=("'function call'", "role_sep"),
        others=(r"<\|function_call\|>",),
    ),
    ToolFormat(
        "solar",
        marker="<|tool_calls|>",
        head=("<|tool_call:begin|>", PatternSlot.ID, "<|tool_call:name|>", _NAME, "<|tool_call:args|>"),
        tail=("<|tool_call:end|>",),
        closing=("<|calls|>",),
        signs=(r"<\|tool_call:begin\|>",),
    ),
    ToolFormat(
        "functionary-v3.1",
        marker=_FUNCTION,
        head=(_NAME, ">"),
        tail=("</function>",),
        between=(_FUNCTION,),
        signs=(_FUNCTION, "</function>", r"<\|start_header_id\|>"),
        others=(_TOOL_CALL,),
    ),
    # Command R+.
    _LISTED(
        "command-r",
        marker="Action:\n```json\n",
        head=json_head("parameters", "tool_name"),
        closing=("]\n```",),
        signs=(r"Action:\\n```json", '"tool_name"'),
    ),
    msgspec.structs.replace(
        _PYTHONIC,
        name="lfm2",
        marker="<|tool_call_start|>",
        closing=("]<|tool_call_end|>",),
        signs=(r"<\|tool_list_start\|>|List of tools: \[",),  # LFM2, LFM2.5
    ),
)
