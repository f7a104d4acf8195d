"""Work of a reader process."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from openai_cpu_server.errors import InvalidRequest, ServerError, StartupError, wrong
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.grammar.constraints import grammar_trial
from openai_cpu_server.llama.measure.measurements import load_profile
from openai_cpu_server.llama.model.vocabulary import Vocabulary, control_tokens, try_out
from openai_cpu_server.prompt.chat import ControlNames
from openai_cpu_server.prompt.chat_prompts import ChatPrompts, Conversation
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.go_template import GoTemplate
from openai_cpu_server.prompt.reasoning import REASONING_FORMATS, TemplateReasoning, template_reasoning
from openai_cpu_server.prompt.rerank_template import TemplatePrompts, rerank_template
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, format_for
from openai_cpu_server.reader.decoders import decoded, decoded_sounds, document_text
from openai_cpu_server.reader.messages import (
    CloseModel,
    DocumentRead,
    EncodedTexts,
    EncodeTexts,
    FindProfile,
    MakeGrammar,
    ModelClosed,
    ModelOpened,
    ModelSource,
    OpenModel,
    OpenPicture,
    OpenSound,
    PictureOpened,
    Profiled,
    ReadDocument,
    ReadTemplate,
    RenderChat,
    Rendered,
    RenderRerank,
    Result,
    SoundOpened,
    VocabularyFacts,
    Work,
    WorkRefused,
    WriteTemplate,
)
from openai_cpu_server.structured.compiler import MakesGrammar, grammar_maker


class _Template:
    def __init__(
        self, source: ModelSource, template: ChatTemplate | None, vocabulary: Vocabulary, names: ControlNames
    ) -> None:
        chosen = source.tool_format  # the user's choice, else what suits the template
        form = format_for(template) if chosen == "auto" else TOOL_FORMATS[chosen]
        reasoning = _reasoning(source.reasoning_format, template)
        self.prompts = ChatPrompts(template, vocabulary, form, names, reasoning)
        self.facts = ReadTemplate(form.name, reasoning, "" if template is None else template.source)


class OpenedModel:
    def __init__(self, source: ModelSource) -> None:
        self.vocabulary = Vocabulary.open(Path(source.path))
        try:
            try_out(self.vocabulary)
            self._read_templates(source)
        except BaseException:
            self.vocabulary.close()
            raise

    def _read_templates(self, source: ModelSource) -> None:
        names = ControlNames(control_tokens(self.vocabulary))
        template = _template(source, self.vocabulary)
        self._opened = {"": _Template(source, template, self.vocabulary, names)}
        for name, further in _further_templates(source, self.vocabulary):
            self._opened[name] = _Template(source, further, self.vocabulary, names)
        rerank = rerank_template(self.vocabulary.named_chat_template("rerank"), template)
        self.rerank = TemplatePrompts(rerank, self.vocabulary, names) if rerank is not None else None

    @functools.cached_property
    def make_grammar(self) -> MakesGrammar:
        """Created on first use, because it takes a second for a large vocabulary. Raises InvalidRequest
        for a vocabulary without end tokens."""
        trial = grammar_trial(self.vocabulary)
        return grammar_maker(trial, set(self.vocabulary.pieces.text), has_own_numbers=True)

    def prompts(self, template: str) -> ChatPrompts:
        return self._opened[template].prompts

    def facts(self) -> VocabularyFacts:
        vocabulary, pieces = self.vocabulary, self.vocabulary.pieces
        return VocabularyFacts(
            vocab_size=vocabulary.vocab_size,
            bos=vocabulary.bos,
            eos=vocabulary.eos,
            bos_text=vocabulary.bos_text,
            eos_text=vocabulary.eos_text,
            adds_bos=vocabulary.adds_bos,
            fim=vocabulary.fim,
            marks=vocabulary.marks,
            end_tokens=vocabulary.end_tokens,
            pieces=pieces.text,
            piece_ends=pieces.ends.tobytes(),
            silent=pieces.silent.tobytes(),
            longest_piece=vocabulary.longest_piece,
            template=self._opened[""].facts if self._opened[""].prompts.has_template else None,
            named={name: template.facts for name, template in self._opened.items() if name},
            rerank_answers=None if self.rerank is None else (self.rerank.yes, self.rerank.no),
        )


class ReaderWorker:
    def __init__(self) -> None:
        self._models: dict[int, OpenedModel] = {}

    def do(self, work: Work) -> Result:
        """Return the result or the failure. Raises only panics of native code."""
        try:
            return self._done(work)
        except ServerError as error:
            param, code = (error.param, error.code) if isinstance(error, InvalidRequest) else (None, None)
            return WorkRefused(kind=_kind(error), message=str(error), param=param, code=code)
        except (MemoryError, RecursionError) as error:
            message = f"This takes too much {'memory' if isinstance(error, MemoryError) else 'nesting'}."
            return WorkRefused(kind=InvalidRequest.__name__, message=message)

    def _done(self, work: Work) -> Result:
        match work:
            case OpenModel():
                return self._opened(work)
            case CloseModel():
                return self._closed(work)
            case EncodeTexts():
                return EncodedTexts(
                    self._models[work.key].vocabulary.encode_all(
                        work.texts, add_special=work.add_special, parse_special=work.parse_special
                    )
                )
            case RenderChat():
                return self._rendered(work)
            case RenderRerank():
                template = self._models[work.key].rerank
                assert template is not None, "the model has no template for reranking"
                return EncodedTexts(template.prompts(work.query, work.documents))
            case MakeGrammar(order=order):
                return self._models[work.key].make_grammar(order)
            case WriteTemplate():
                return _written(work)
            case OpenPicture() | OpenSound() | ReadDocument():
                return _decoded(work)
            case FindProfile():
                return _profiled(work)

    def _opened(self, work: OpenModel) -> ModelOpened:
        model = self._models[work.key] = OpenedModel(work.source)
        facts = model.facts()
        digest = hashlib.sha256(msgspec.msgpack.encode(facts, order="deterministic")).digest()
        return ModelOpened(digest=digest, facts=None if work.is_known else facts)

    def _closed(self, work: CloseModel) -> ModelClosed:
        if (closed := self._models.pop(work.key, None)) is not None:
            closed.vocabulary.close()
        return ModelClosed()

    def _rendered(self, work: RenderChat) -> Rendered:
        messages, tools, variables = json.loads(work.conversation)
        prompt = (
            self._models[work.key]
            .prompts(work.template)
            .prompt(
                Conversation(
                    messages=messages,
                    tools=tools,
                    variables=variables,
                    written=work.written,
                    thinks_not=work.thinks_not,
                    most_tokens=work.most_tokens,
                    begins_answer=work.begins_answer,
                    has_marks=work.has_marks,
                    shown=work.shown,
                )
            )
        )
        return Rendered(prompt.tokens, prompt.stage, prompt.wants_thoughts, prompt.borders)


def _written(work: WriteTemplate) -> DocumentRead:
    template = GoTemplate(work.template, "template")
    if work.messages is None:
        return DocumentRead("")
    if work.suffix and not template.has_suffix:
        raise wrong("This 'template' has no place for a 'suffix'.", "suffix")
    return DocumentRead(template.prompt(work.messages, work.suffix, most_chars=work.most_chars))


def _decoded(work: OpenPicture | OpenSound | ReadDocument) -> PictureOpened | SoundOpened | DocumentRead:
    if isinstance(work, OpenPicture):
        return PictureOpened(decoded(work.data, most_pixels=work.most_pixels, most_side=work.most_side))
    if isinstance(work, OpenSound):
        bounds = {"most_samples": work.most_samples, "most_at_once": work.most_at_once}
        return SoundOpened(decoded_sounds(work.data, rate=work.rate, **bounds))
    return DocumentRead(document_text(work.data, most_chars=work.most_chars))


def _kind(error: ServerError) -> str:
    """Subclasses count as their base, which the client knows."""
    known: tuple[type[ServerError], ...] = (StartupError, InvalidRequest)
    return next((each.__name__ for each in known if isinstance(error, each)), type(error).__name__)


def _template(source: ModelSource, vocabulary: Vocabulary) -> ChatTemplate | None:
    text = (source.chat_template or vocabulary.chat_template) if source.generates else None
    if text is None:
        return None
    return ChatTemplate(text, bos_text=vocabulary.bos_text, eos_text=vocabulary.eos_text)


_OTHERS = ("default", "rerank")
"""Not for chats."""
_MOST_TEMPLATES = 16


def _further_templates(source: ModelSource, vocabulary: Vocabulary) -> Iterator[tuple[str, ChatTemplate]]:
    if source.chat_template is not None or vocabulary.chat_template is None or not source.generates:
        return
    names = GgufHeader(Path(source.path)).get_strings("tokenizer.chat_templates").values()
    for name in [name for name in names if name not in _OTHERS][:_MOST_TEMPLATES]:
        if (text := vocabulary.named_chat_template(name)) is not None:
            with contextlib.suppress(StartupError):
                further = ChatTemplate(text, bos_text=vocabulary.bos_text, eos_text=vocabulary.eos_text)
                yield name, further


def _reasoning(name: str, template: ChatTemplate | None) -> TemplateReasoning | None:
    """Return None if thoughts are absent, or shown as they are."""
    if template is None or name == "none":
        return None
    return template_reasoning(template, REASONING_FORMATS.get(name))


def _profiled(work: FindProfile) -> Profiled:
    profile = load_profile(Path(work.options.model_path), Path(work.profile_dir))
    if profile is None:
        return Profiled(work.options, None)
    return Profiled(profile.applied(work.options, work.given), str(profile))
