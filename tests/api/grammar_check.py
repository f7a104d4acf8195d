"""The application's check of grammars, cached by their text: most tests use the same tools."""

from __future__ import annotations

import functools

from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck

check_grammar = functools.lru_cache(maxsize=1024)(GrammarCheck)
