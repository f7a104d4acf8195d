"""The formats that differ only in what stands around a call, and how chat templates give them away."""

from __future__ import annotations

import msgspec

from openai_cpu_server.prompt.tool_formats.form import JSON_TAIL, CallForm, json_head
from openai_cpu_server.prompt.tool_formats.parameters import Parameters
from openai_cpu_server.prompt.tool_formats.patterns import Pattern, PatternSlot

_NAME = PatternSlot.NAME
_LIST_COMMA: Pattern = (",", PatternSlot.GAP)
_TOOL_CALL, _FUNCTION, _ARG_KEY = "<tool_call>", "<function=", "<arg_key>"

# One JSON object for each call

DEMO = CallForm(
    name="demo",
    marker="<|tool_call|>",
    head=json_head(),
    tail=JSON_TAIL,
    between=("\n",),
    signs=(r"<\|tool_call\|>",),
    others=(r"<\|start_of_role\|>", r"<\|/?tool\|>"),
)
GRANITE = CallForm(
    name="granite",
    marker="<|tool_call|>",
    opening=("[",),
    head=json_head(),
    tail=JSON_TAIL,
    between=_LIST_COMMA,
    closing=("]",),
    signs=(r"<\|tool_call\|>", r"<\|start_of_role\|>"),
    others=("<tool_call>",),
)
PHI4 = CallForm(
    name="phi4",
    marker="<|tool_call|>",
    opening=("[",),
    head=json_head(),
    tail=JSON_TAIL,
    between=_LIST_COMMA,
    closing=("]<|/tool_call|>",),
    signs=(r"<\|/tool\|>",),
    others=(r"<\|tool_call\|>",),
)
PHI4_TAGS = CallForm(
    name="phi4-tags",
    marker="<|tool_call|>",
    head=json_head(),
    tail=(*JSON_TAIL, "<|/tool_call|>"),
    between=("<|tool_call|>",),
    signs=(r"<\|/tool\|>", r"<\|/tool_call\|>"),
)
FUNCTOOLS = CallForm(
    name="functools",
    marker="functools[",
    head=json_head(),
    tail=JSON_TAIL,
    between=_LIST_COMMA,
    closing=("]",),
    signs=(r"functools\[",),
)
MISTRAL = CallForm(
    name="mistral",
    marker="[TOOL_CALLS]",
    opening=(PatternSlot.GAP, "["),
    head=json_head(),
    tail=JSON_TAIL,
    between=_LIST_COMMA,
    closing=("]",),
    signs=(r"\[TOOL_CALLS\]",),
    others=(r"\[ARGS\]",),
    has_short_ids=True,
)
"""Up to tokenizer version 7."""
MISTRAL_ARGS = CallForm(
    name="mistral-args",
    marker="[TOOL_CALLS]",
    head=(_NAME, "[ARGS]"),
    between=("[TOOL_CALLS]",),
    signs=(r"\[TOOL_CALLS\]", r"\[ARGS\]"),
    others=(r"\[CALL_ID\]",),
    has_short_ids=True,
)
MISTRAL_IDS = msgspec.structs.replace(
    MISTRAL_ARGS,
    name="mistral-ids",
    head=(_NAME, "[CALL_ID]", PatternSlot.ID, "[ARGS]"),
    signs=(*MISTRAL_ARGS.signs, r"\[CALL_ID\]"),
    others=(),
)
HERMES = CallForm(
    name="hermes",
    marker=_TOOL_CALL,
    head=("\n", *json_head()),
    tail=(*JSON_TAIL, "\n</tool_call>"),
    between=("\n<tool_call>",),
    signs=(_TOOL_CALL, r'"arguments\\*"'),
    others=(_FUNCTION, _ARG_KEY),
)
GENERIC = msgspec.structs.replace(HERMES, name="generic", signs=(), others=(), replaces_template=True)
"""For templates that know no tools, or show them for a format that is unknown here."""
LLAMA3 = CallForm(
    name="llama3",
    prelude="<|python_tag|>",
    head=json_head("parameters"),
    tail=JSON_TAIL,
    between=("; ",),
    signs=(r"<\|start_header_id\|>", '"parameters": '),
    others=(r"\[func_name1\(", _TOOL_CALL, _FUNCTION),
)
DEEPSEEK = CallForm(
    name="deepseek",
    marker="<｜tool▁calls▁begin｜>",
    head=("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", _NAME, "\n```json\n"),
    tail=("\n```<｜tool▁call▁end｜>",),
    between=("\n",),
    closing=("<｜tool▁calls▁end｜>",),
    signs=("<｜tool▁call▁begin｜>", "```json"),
)
DEEPSEEK_V31 = CallForm(
    name="deepseek-v3.1",
    marker="<｜tool▁calls▁begin｜>",
    head=("<｜tool▁call▁begin｜>", _NAME, "<｜tool▁sep｜>"),
    tail=("<｜tool▁call▁end｜>",),
    closing=("<｜tool▁calls▁end｜>",),
    signs=("<｜tool▁call▁begin｜>",),
    others=("```json",),
)
KIMI = CallForm(
    name="kimi",
    marker="<|tool_calls_section_begin|>",
    head=("<|tool_call_begin|>functions.", _NAME, ":", PatternSlot.INDEX, "<|tool_call_argument_begin|>"),
    tail=("<|tool_call_end|>",),
    closing=("<|tool_calls_section_end|>",),
    signs=(r"<\|tool_calls_section_begin\|>",),
)
NEMOTRON = CallForm(
    name="nemotron",
    marker="<TOOLCALL>",
    opening=("[",),
    head=json_head(),
    tail=JSON_TAIL,
    between=_LIST_COMMA,
    closing=("]</TOOLCALL>",),
    signs=("<TOOLCALL>",),
)
COMMAND = CallForm(
    name="command-r7b",
    marker="<|START_ACTION|>",
    opening=("[",),
    head=('{"tool_call_id": "', PatternSlot.INDEX, '", "tool_name": "', _NAME, '", "parameters": '),
    tail=JSON_TAIL,
    between=_LIST_COMMA,
    closing=("]<|END_ACTION|>",),
    signs=(r"<\|START_ACTION\|>", '"tool_call_id'),
)
APERTUS = CallForm(
    name="apertus",
    marker="<|tools_prefix|>",
    opening=("[",),
    head=('{"', _NAME, '":', PatternSlot.GAP),
    tail=("}",),
    between=_LIST_COMMA,
    closing=("]<|tools_suffix|>",),
    signs=(r"<\|tools_prefix\|>",),
)

# Each parameter by itself

QWEN3_CODER = CallForm(
    name="qwen3-coder",
    marker=_TOOL_CALL,
    head=("\n<function=", _NAME, ">\n"),
    tail=("</function>\n</tool_call>",),
    between=("\n<tool_call>",),
    parameters=Parameters(
        begin=("<parameter=", _NAME, ">\n"),
        raw_end="\n</parameter>",
        behind=("\n",),
        close="</function>",
    ),
    signs=(_TOOL_CALL, _FUNCTION, "<parameter="),
    others=("<seed:tool_call>",),
)
SEED = CallForm(
    name="seed-oss",
    marker="<seed:tool_call>",
    head=("\n<function=", _NAME, ">\n"),
    tail=("</function>\n</seed:tool_call>",),
    between=("\n<seed:tool_call>",),
    parameters=Parameters(
        begin=("<parameter=", _NAME, ">"), raw_end="</parameter>", behind=("\n",), close="</function>"
    ),
    signs=("<seed:tool_call>",),
)
MINIMAX = CallForm(
    name="minimax",
    marker="<minimax:tool_call>",
    head=('\n<invoke name="', _NAME, '">\n'),
    tail=("</invoke>",),
    closing=("\n</minimax:tool_call>",),
    parameters=Parameters(
        begin=('<parameter name="', _NAME, '">'), raw_end="</parameter>", behind=("\n",), close="</invoke>"
    ),
    signs=("<minimax:tool_call>",),
)
GLM = CallForm(
    name="glm",
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
)
PYTHONIC = CallForm(
    name="pythonic",
    opening=("[",),
    head=(_NAME, "("),
    tail=(")",),
    between=(",", PatternSlot.GAP),
    closing=("]",),
    parameters=Parameters(
        begin=(_NAME, "="),
        raw_begin="'",
        raw_end="'",
        between=(",", PatternSlot.GAP),
        close=")",
        is_python=True,
    ),
    signs=(r"\[func_name1\(",),
)
FUNCTION_GEMMA = CallForm(
    name="functiongemma",
    marker="<start_function_call>",
    head=("call:", _NAME, "{"),
    tail=("}<end_function_call>",),
    between=("<start_function_call>",),
    parameters=Parameters(
        begin=(_NAME, ":"), raw_begin="<escape>", raw_end="<escape>", between=(",",), close="}"
    ),
    signs=("<start_function_call>",),
)
GEMMA4 = CallForm(
    name="gemma4",
    marker="<|tool_call>",
    head=("call:", _NAME, "{"),
    tail=("}<tool_call|>",),
    between=("<|tool_call>",),
    parameters=Parameters(begin=(_NAME, ":"), raw_begin='<|"|>', raw_end='<|"|>', between=(",",), close="}"),
    signs=(r"<\|tool_call>",),
)
LFM2 = msgspec.structs.replace(
    PYTHONIC,
    name="lfm2",
    marker="<|tool_call_start|>",
    closing=("]<|tool_call_end|>",),
    signs=(r"<\|tool_list_start\|>",),
)
FORMS = (
    DEMO,
    HERMES,
    LLAMA3,
    PYTHONIC,
    MISTRAL,
    MISTRAL_ARGS,
    MISTRAL_IDS,
    QWEN3_CODER,
    GLM,
    DEEPSEEK,
    DEEPSEEK_V31,
    GRANITE,
    PHI4,
    PHI4_TAGS,
    FUNCTOOLS,
    FUNCTION_GEMMA,
    GEMMA4,
    KIMI,
    NEMOTRON,
    COMMAND,
    APERTUS,
    SEED,
    MINIMAX,
    LFM2,
)
"""Those that a template can teach."""
