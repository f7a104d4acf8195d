"""Grammars for an opened model, imported by the first reader while the engine loads, by others with their
first grammar."""

from __future__ import annotations

from openai_cpu_server.contract.grammar import GrammarMaker
from openai_cpu_server.llama.grammar.compile import grammar_trial
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.structured.compiler import grammar_maker


def maker_for(vocabulary: Vocabulary) -> GrammarMaker:
    """Return a maker. Raises InvalidRequest for a vocabulary without end tokens."""
    return grammar_maker(grammar_trial(vocabulary), set(vocabulary.pieces.text), has_own_numbers=True)
