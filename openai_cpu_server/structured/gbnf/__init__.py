"""GBNF, the grammar language of llama.cpp: read, checked, and translated for llguidance. Pure."""

from openai_cpu_server.structured.gbnf.parser import ParsedGrammar, parse_gbnf
from openai_cpu_server.structured.gbnf.to_lark import gbnf_to_lark

__all__ = ["ParsedGrammar", "gbnf_to_lark", "parse_gbnf"]
