"""Reader process: `python -m openai_cpu_server.reader.process FD`.

Exceeding its memory or CPU limit kills it. The stack is large because some tokenizers recurse per character
of a word, and the grammar library per rule of a chain.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import hashlib
import json
import pkgutil
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO

import msgspec
import psutil

from openai_cpu_server.child_processes.confine import confine
from openai_cpu_server.child_processes.signals import die_with_parent, leave_signals_to_parent
from openai_cpu_server.contract.grammar import GrammarMaker
from openai_cpu_server.contract.media import Picture, Sound
from openai_cpu_server.contract.messages import framed, read_frame
from openai_cpu_server.errors import InvalidRequest, ServerError, StartupError, wrong
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.measure.measurements import load_profile
from openai_cpu_server.llama.model.model import native_log
from openai_cpu_server.llama.model.vocabulary import Vocabulary, control_tokens, try_out
from openai_cpu_server.prompt.chat_prompts import (
    ChatPrompt,
    ChatPrompts,
    ControlNames,
    TemplatePrompts,
    rerank_template,
)
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.go_template import GoTemplate
from openai_cpu_server.prompt.reasoning import REASONING_FORMATS, template_reasoning
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, format_for
from openai_cpu_server.reader import messages as wire
from openai_cpu_server.reader.decoders import decoded_picture, load_decoders
from openai_cpu_server.reader.documents.pdf import rendered_page
from openai_cpu_server.reader.documents.read import document_parts
from openai_cpu_server.reader.sounds import sound_pieces

_GRAMMARS = "openai_cpu_server.reader.grammars:maker_for"
_OTHER_TEMPLATES = ("default", "rerank")
_MOST_TEMPLATES = 16
_PIECES_AT_ONCE, _TURN_S, _OPEN_SOUNDS = 8, 0.5, 2
"""A piece of work covers four minutes of a recording at most, and ends after this CPU time."""


class OpenedModel:
    def __init__(self, source: wire.ModelSource) -> None:
        self._source = source
        self.vocabulary = Vocabulary.open(Path(source.path))
        try:
            try_out(self.vocabulary)
            self._read_templates()
        except BaseException:
            self.vocabulary.close()
            raise

    def _read_templates(self) -> None:
        names = ControlNames(control_tokens(self.vocabulary))
        text = self._source.chat_template or self.vocabulary.chat_template
        template = self._compiled(text) if self._source.generates and text is not None else None
        self.prompts = {"": self._chat_prompts(template, names)}
        """Prompts by the template's name, "" for chats."""
        for name, further in self._further_templates():
            self.prompts[name] = self._chat_prompts(further, names)
        rerank = rerank_template(self.vocabulary.named_chat_template("rerank"), template)
        self.rerank = TemplatePrompts(rerank, self.vocabulary, names) if rerank is not None else None

    def _compiled(self, text: str) -> ChatTemplate:
        return ChatTemplate(text, bos_text=self.vocabulary.bos_text, eos_text=self.vocabulary.eos_text)

    def _further_templates(self) -> Iterator[tuple[str, ChatTemplate]]:
        source, vocabulary = self._source, self.vocabulary
        if source.chat_template is not None or vocabulary.chat_template is None or not source.generates:
            return
        names = GgufHeader(Path(source.path)).get_strings("tokenizer.chat_templates").values()
        for name in [name for name in names if name not in _OTHER_TEMPLATES][:_MOST_TEMPLATES]:
            if (text := vocabulary.named_chat_template(name)) is not None:
                with contextlib.suppress(StartupError):
                    yield name, self._compiled(text)

    def _chat_prompts(self, template: ChatTemplate | None, names: ControlNames) -> ChatPrompts:
        tool_format, reasoning_format = self._source.tool_format, self._source.reasoning_format
        form = format_for(template) if tool_format == "auto" else TOOL_FORMATS[tool_format]
        reasoning = None
        if template is not None and reasoning_format != "none":
            reasoning = template_reasoning(template, REASONING_FORMATS.get(reasoning_format))
        return ChatPrompts(template, self.vocabulary, form, names, reasoning)

    @functools.cached_property
    def make_grammar(self) -> GrammarMaker:
        """Create on first use, because it takes a second for a large vocabulary. May raise InvalidRequest."""
        make: GrammarMaker = pkgutil.resolve_name(_GRAMMARS)(self.vocabulary)
        return make

    def facts(self) -> wire.VocabularyFacts:
        vocabulary, pieces = self.vocabulary, self.vocabulary.pieces
        return wire.VocabularyFacts(
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
            template=_template_facts(self.prompts[""]) if self.prompts[""].has_template else None,
            named={name: _template_facts(prompts) for name, prompts in self.prompts.items() if name},
            rerank_answers=None if self.rerank is None else (self.rerank.yes, self.rerank.no),
        )


class ReaderWorker:
    def __init__(self) -> None:
        self._models: dict[int, OpenedModel] = {}
        self._sounds: dict[wire.OpenSound, tuple[int, Iterator[Sound]]] = {}
        """Decoders, and the numbers of pieces made."""

    def do(self, work: wire.ReaderWork) -> wire.ReaderResult:
        """Return the result or failure. Raises only panics of native code."""
        try:
            return self._done(work)
        except ServerError as error:
            param, code = (error.param, error.code) if isinstance(error, InvalidRequest) else (None, None)
            bases = (StartupError, InvalidRequest)  # subclasses count as their base, which the client knows
            kind = next((each for each in bases if isinstance(error, each)), type(error))
            return wire.WorkRefused(kind=kind.__name__, message=str(error), param=param, code=code)
        except (MemoryError, RecursionError) as error:
            message = f"This takes too much {'memory' if isinstance(error, MemoryError) else 'nesting'}."
            return wire.WorkRefused(kind=InvalidRequest.__name__, message=message)

    def _done(self, work: wire.ReaderWork) -> wire.ReaderResult:
        match work:
            case wire.OpenModel():
                return self._opened(work)
            case wire.CloseModel(key=key):
                self._close(key)
                return None
            case wire.EncodeTexts():
                vocabulary = self._models[work.key].vocabulary
                return vocabulary.encode_all(
                    work.texts, add_special=work.add_special, parse_special=work.parse_special
                )
            case wire.RenderChat():
                return self._rendered(work)
            case wire.RenderRerank():
                template = self._models[work.key].rerank
                assert template is not None, "the model has no template for reranking"
                return [*map(list, template.prompts(work.query, work.documents))]
            case wire.MakeGrammar(order=order):
                return self._models[work.key].make_grammar(order)
            case wire.WriteTemplate():
                return _written(work)
            case wire.OpenPicture() | wire.OpenSound() | wire.ReadDocument() | wire.RenderPage():
                return self._opened_sound(work) if isinstance(work, wire.OpenSound) else _decoded(work)
            case wire.FindProfile():
                return _profiled(work)

    def _opened_sound(self, work: wire.OpenSound) -> wire.SoundOpened | None:
        """Continue an opened sound after its last piece."""
        num_done, pieces = self._sounds.pop(work.identity, (0, None))
        if pieces is None or num_done > work.first:
            if work.is_continued and not work.data:
                return None
            bounds = {"most_samples": work.most_samples, "most_at_once": work.most_at_once}
            num_done, pieces = 0, sound_pieces(work.data, rate=work.rate, **bounds)
        for _ in islice(pieces, work.first - num_done):
            pass
        opened, end_s = list[Sound](), time.process_time() + _TURN_S
        for piece in pieces:
            opened.append(piece)
            if len(opened) == _PIECES_AT_ONCE or time.process_time() > end_s:
                break
        else:
            return wire.SoundOpened(tuple(opened), is_last=True)
        self._sounds[work.identity] = work.first + len(opened), pieces
        while len(self._sounds) > _OPEN_SOUNDS:
            del self._sounds[next(iter(self._sounds))]
        return wire.SoundOpened(tuple(opened), is_last=False)

    def _opened(self, work: wire.OpenModel) -> wire.ModelOpened:
        model = self._models[work.key] = OpenedModel(work.source)
        facts = model.facts()
        digest = hashlib.sha256(msgspec.msgpack.encode(facts, order="deterministic")).digest()
        return wire.ModelOpened(digest=digest, facts=None if work.has_facts else facts)

    def _close(self, key: int) -> None:
        if (closed := self._models.pop(key, None)) is not None:
            closed.vocabulary.close()

    def _rendered(self, work: wire.RenderChat) -> ChatPrompt:
        messages, tools, variables = json.loads(work.texts)
        conversation = msgspec.structs.replace(
            work.conversation, messages=messages, tools=tools, variables=variables
        )
        return self._models[work.key].prompts[conversation.template].prompt(conversation)


def _written(work: wire.WriteTemplate) -> str:
    template = GoTemplate(work.template, "template")
    if work.messages is None:
        return ""
    if work.suffix and not template.has_suffix:
        raise wrong("This 'template' has no place for a 'suffix'.", "suffix")
    return template.prompt(work.messages, work.suffix, most_chars=work.most_chars)


def _decoded(
    work: wire.OpenPicture | wire.ReadDocument | wire.RenderPage,
) -> Picture | wire.DocumentRead:
    if isinstance(work, wire.OpenPicture):
        return decoded_picture(work.data, most_pixels=work.most_pixels, most_side=work.most_side)
    if isinstance(work, wire.RenderPage):
        return rendered_page(work.data, work.number, most_pixels=work.most_pixels)
    return document_parts(work.data, most_chars=work.most_chars, charset=work.charset)


def _template_facts(prompts: ChatPrompts) -> wire.ReadTemplate:
    source = "" if prompts.template is None else prompts.template.source
    return wire.ReadTemplate(prompts.tool_format.name, prompts.reasoning, source)


def _profiled(work: wire.FindProfile) -> wire.Profiled:
    profile = load_profile(Path(work.options.model_path), Path(work.profile_dir))
    if profile is None:
        return wire.Profiled(work.options, None)
    return wire.Profiled(profile.applied(work.options, work.user_options), str(profile))


STACK_BYTES = 512 * 2**20
"""Reserved size, of which the used part takes memory."""
_DATA_BYTES = 2 * 2**30
"""Limit beside the stack. A vocabulary of 260,000 tokens takes about 100 MB."""
_DOCUMENT_BYTES = 2**30
_PICTURE_BYTES, _PIXEL_BYTES = 128 * 2**20, 40
"""Growth per picture and per allowed pixel: WebP with transparency and a profile takes 28. AVIF and HEIC
headers may understate the decoded size."""
_GROWTH_BYTES = 256 * 2**20
"""Growth since opening a model after which a process ends to return the memory."""
_MODEL_S = 60.0
"""CPU time for opening a trusted model file."""
_NATIVE_S = 5
"""Further CPU seconds for native code before the kill."""

_works: msgspec.msgpack.Decoder[wire.ReaderWork] = msgspec.msgpack.Decoder(wire.ReaderWork)
_start: msgspec.msgpack.Decoder[wire.ReaderStart] = msgspec.msgpack.Decoder(wire.ReaderStart)
_encoder = msgspec.msgpack.Encoder()


class _ShareUsed(BaseException):
    """Libraries do not catch BaseException."""


class _Bounds:
    """Memory and CPU limits, created on the worker thread."""

    def __init__(self, share_s: float) -> None:
        self.share_s = share_s
        self._own = psutil.Process()
        self._usual_bytes = 0
        self._is_working = False
        self.has_interrupted = False
        """True if aborted work has made the process unusable."""
        self._thread = threading.get_ident()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})  # it is for the main thread
        self.open()
        _limit(resource.RLIMIT_CORE, 0)  # a death is expected here, and its core would have prompts in it

    def open(self) -> None:
        self._usual_bytes = self._own.memory_info().rss

    def begin(self, work: wire.ReaderWork) -> None:
        """Interrupt Python when the share is used up; native code is killed a little later."""
        share_s = _MODEL_S if isinstance(work, wire.OpenModel) else self.share_s
        _limit(resource.RLIMIT_CPU, int(time.process_time() + share_s) + 1 + _NATIVE_S)
        _limit(resource.RLIMIT_DATA, self._most_bytes(work))
        self._is_working = True
        signal.setitimer(signal.ITIMER_PROF, share_s)

    def end(self) -> None:
        self._is_working = False
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        if self.has_interrupted:  # CPython is slower after this, but the process is about to end
            _raise_in(self._thread, None)

    def _most_bytes(self, work: wire.ReaderWork) -> int:
        if isinstance(work, (wire.ReadDocument, wire.RenderPage)):
            return STACK_BYTES + _DOCUMENT_BYTES
        if isinstance(work, wire.OpenPicture):
            growth = _PICTURE_BYTES + work.most_pixels * _PIXEL_BYTES
            return min(STACK_BYTES + _DATA_BYTES, self._own.memory_info().data + growth)
        return STACK_BYTES + _DATA_BYTES

    def interrupt(self, number: int, frame: object) -> None:
        """Handle SIGPROF on the main thread."""
        if self._is_working:
            self.has_interrupted = True
            _raise_in(self._thread, _ShareUsed)

    @property
    def has_grown(self) -> bool:
        return self._own.memory_info().rss > self._usual_bytes + _GROWTH_BYTES


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    """Raise before the thread's next Python instruction; None cancels a pending exception."""
    raised = ctypes.py_object(exception) if exception else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _serve(sock: socket.socket, stream: BinaryIO, share_s: float, has_bounds: SimpleQueue[_Bounds]) -> None:
    bounds = _Bounds(share_s)
    has_bounds.put(bounds)
    worker = ReaderWorker()
    while (payload := read_frame(stream)) is not None:
        work = _works.decode(payload)
        if isinstance(work, wire.FileWork):
            if (data := read_frame(stream)) is None:
                return
            work = msgspec.structs.replace(work, data=data)
        result = _contained(worker, work, bounds)
        if isinstance(work, wire.OpenModel):
            gc.freeze()
            bounds.open()
        is_last = bounds.has_grown or bounds.has_interrupted
        sock.sendall(framed(_encoded(result, is_last=is_last)))
        if is_last:
            return
        if isinstance(work, wire.OpenModel) and work.source.generates and not work.has_facts:
            pkgutil.resolve_name(_GRAMMARS)  # while the engine loads the model


def _encoded(result: wire.ReaderResult, *, is_last: bool) -> bytes:
    """Replace unpaired surrogates of PDFs, JSON and error messages."""
    try:
        return _encoder.encode(wire.WorkReply(result, is_last))
    except UnicodeEncodeError:
        valid = msgspec.convert(
            _valid(msgspec.to_builtins(result, builtin_types=(bytes, memoryview))), wire.ReaderResult
        )
        return _encoder.encode(wire.WorkReply(valid, is_last))


def _valid(value: object) -> object:
    if isinstance(value, str):
        return wire.valid_text(value)
    if isinstance(value, dict):
        return {_valid(key): _valid(one) for key, one in value.items()}
    return [*map(_valid, value)] if isinstance(value, (list, tuple)) else value


def _contained(worker: ReaderWorker, work: wire.ReaderWork, bounds: _Bounds) -> wire.ReaderResult:
    """Rust panics are BaseExceptions."""
    try:
        try:
            if isinstance(work, wire.MakeGrammar):  # imports are in no client's share
                pkgutil.resolve_name(_GRAMMARS)
            elif isinstance(work, wire.OpenPicture):
                load_decoders()
            bounds.begin(work)
            return worker.do(work)
        finally:
            bounds.end()
    except _ShareUsed:
        message = f"Reading this takes more than {bounds.share_s:g} seconds of computing."
        return wire.WorkRefused(kind=InvalidRequest.__name__, message=message)
    except BaseException as panic:
        return wire.WorkRefused(kind="NativePanic", message=f"{type(panic).__name__}: {panic}"[:500])


def main() -> None:
    leave_signals_to_parent()
    die_with_parent()
    native_log()
    sock = socket.socket(fileno=int(sys.argv[1]))
    stream = sock.makefile("rb")
    if (first := read_frame(stream)) is None:
        return
    start = _start.decode(first)
    if start.opens_media:
        load_decoders()
    if start.readable is not None:
        confine(read=map(Path, start.readable))
    threading.stack_size(STACK_BYTES)
    has_bounds: SimpleQueue[_Bounds] = SimpleQueue()
    thread = threading.Thread(target=_serve, args=(sock, stream, start.share_s, has_bounds))
    thread.start()
    signal.signal(signal.SIGPROF, has_bounds.get().interrupt)
    thread.join()


if __name__ == "__main__":
    main()
