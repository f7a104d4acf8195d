"""Reads, checks and translates GBNF, llama.cpp's grammar language, for llguidance. Pure."""

from openai_cpu_server.structured.gbnf.parser import ParsedGrammar, parse_gbnf
from openai_cpu_server.structured.gbnf.to_lark import gbnf_to_lark

__all__ = ["ParsedGrammar", "gbnf_to_lark", "parse_gbnf"]
