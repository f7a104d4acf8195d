"""The engine's side of grammars: the model's tokenizer, and the threads that work beside a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from openai_cpu_server.contract.containment import RequestFailed, contained
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.llama.grammar.constrained import ConstrainedOutput, Words
from openai_cpu_server.llama.grammar.grammars import Grammars, grammar_tokenizer
from openai_cpu_server.llama.model.vocabulary import Vocabulary

_THREADS = 2


class Constraints:
    """Opens constrained outputs and computes their masks beside llama.cpp, without the interpreter's lock."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Begin to read the vocabulary. It must outlive this: call `close` first."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._words = self._threads.submit(_words, vocabulary)
        self._grammars = Grammars()

    def wait_until_ready(self) -> None:
        """Wait until the vocabulary is read.
        A model that can have no constraints refuses them when they come."""
        self._words.exception()

    def start(self, constraint: Constraint, output: Sequence[int]) -> ConstrainedOutput:
        """Start an output and replay what there is of it. Any thread. Raises `ConstraintFailed`."""
        words = self._words.result()
        grammar = constraint.grammar
        matcher = None if grammar is None else self._grammars.matcher(grammar, words.tokenizer)
        constrained = ConstrainedOutput(constraint, matcher, words)
        constrained.replay(output)
        return constrained

    def start_beside(self, constraint: Constraint, output: Sequence[int]) -> Future[ConstrainedOutput]:
        return self._threads.submit(self.start, constraint, output)

    @contextmanager
    def foreseeing(self, outputs: Sequence[Future[ConstrainedOutput]]) -> Iterator[None]:
        """Find the tokens that each output allows next, while the block runs."""
        job = self._threads.submit(_foresee, outputs) if outputs else None
        try:
            yield
        finally:
            if job is not None:
                job.result()

    def give_up(self, constraint: Constraint) -> None:
        """Forget a grammar that failed on its way, so that other requests compile it anew."""
        if constraint.grammar is not None:
            self._grammars.forget(constraint.grammar)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


def _words(vocabulary: Vocabulary) -> Words:
    return Words(vocabulary, grammar_tokenizer(vocabulary))


def _foresee(outputs: Sequence[Future[ConstrainedOutput]]) -> None:
    """Compute the outputs' masks. Errors are ignored: they come again, and are told, when a mask is used."""
    for output in outputs:
        with contextlib.suppress(RequestFailed), contained():
            constrained = output.result()
            if not constrained.is_forced:
                constrained.allowed()
