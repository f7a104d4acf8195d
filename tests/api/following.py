"""Checks outputs against their constraints as an engine does, token by token, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from llguidance import LLTokenizer, TokenizerWrapper

from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.errors import ConstraintFailed
from openai_cpu_server.llama.grammar.constraints import CompiledGrammars, ConstrainedOutput, ModelTokens
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.api.fake_tokenizer import FakeTokenizer

_END = 1


class _LlguidanceVocabulary:
    """The fake vocabulary in the form that llguidance reads."""

    eos_token_id = _END
    bos_token_id = 0

    def __init__(self, tokenizer: FakeTokenizer) -> None:
        self._tokenizer = tokenizer
        count = range(tokenizer.vocab_size)
        self.tokens = [tokenizer.piece(t) or tokenizer.piece(t, special=True) for t in count]
        self.special_token_ids = [t for t in count if not tokenizer.piece(t)]

    def __call__(self, text: bytes | str) -> list[int]:
        text = text.decode() if isinstance(text, bytes) else text
        return self._tokenizer.encode(text, add_special=False, parse_special=False)


class _TokenizerWithEnd(FakeTokenizer):
    end_tokens = frozenset({_END})
    eos = _END


class Follower:
    def __init__(self, control: Sequence[str] = ()) -> None:
        self.tokenizer = _TokenizerWithEnd(control=control)
        vocabulary = LLTokenizer(TokenizerWrapper(_LlguidanceVocabulary(self.tokenizer)))
        self._tokens = ModelTokens(cast("Vocabulary", self.tokenizer), vocabulary)
        self._grammars = CompiledGrammars()

    def accepts(self, constraint: Constraint, text: str) -> bool:
        """Return whether the constraint permits this text as the whole output."""
        matcher = self._grammars.matcher(constraint.grammar, self._tokens.tokenizer)
        output = ConstrainedOutput(constraint, matcher, self._tokens)
        try:
            for token in self.tokenizer.encode(text, add_special=False, parse_special=True):
                if not self._takes(output, token):
                    return False
            return self._takes(output, _END)
        except ConstraintFailed:
            self._grammars.forget(constraint.grammar)
            return False

    def _takes(self, output: ConstrainedOutput, token: int) -> bool:
        if output.is_forced:
            return output.take_one_forced() == token
        allowed = output.allowed()
        if (allowed is not None and not allowed[token]) or not output.takes(token):
            return False
        output.accept(token)
        return True
