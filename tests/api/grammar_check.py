"""The check that the application makes of grammars, once for each text: most tests' tools are the same."""

from __future__ import annotations

import functools

from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck

check_grammar = functools.lru_cache(maxsize=1024)(GrammarCheck)
