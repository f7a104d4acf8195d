"""Fetching and measuring of attached images and audio, which readers decode, and reading of files."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import re
import urllib.parse
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

import msgspec

from openai_cpu_server.api.generation.params import (
    MARK,
    UPLOAD,
    Attached,
    ConversationParam,
    ConversationsParam,
    DocumentParam,
    GenerationParams,
    MediaParam,
    MessageParam,
    PictureParam,
    RecordingParam,
    SoundParam,
    TakenMedia,
    mark_of,
)
from openai_cpu_server.contract.media import DEAF, MediaItem, MediaShape, Picture, Sound
from openai_cpu_server.errors import (
    DeadlyInput,
    EngineUnavailable,
    InvalidRequest,
    JobObjectNotFound,
    wrong,
)
from openai_cpu_server.http.body import in_thread
from openai_cpu_server.http.fetching import Fetched, fetch
from openai_cpu_server.http.options import MediaOptions
from openai_cpu_server.http.parse import Ignored
from openai_cpu_server.models.served import ServedModel

_INVALID: dict[type[Attached], str] = {
    PictureParam: "invalid_image",
    SoundParam: "invalid_audio",
    DocumentParam: "invalid_file",
}
_TOO_LARGE: dict[type[Attached], str] = {
    PictureParam: "image_too_large",
    SoundParam: "audio_too_large",
    DocumentParam: "file_too_large",
}
_NAMES: dict[type[Attached], str] = {PictureParam: "picture", SoundParam: "sound", DocumentParam: "file"}
_PIXEL_BYTES = 3
_MOST_SIDES = {"low": 512}
"""Longest side in pixels by the client's detail. Some encoders make fewer tokens of small images."""
_AS_THEY_ARE = ("auto", "high", "original")
_MOST_KEPT_CHARS = 8 * 1024 * 1024
_CONVERSATIONS = 4
"""Number of conversations with the most media that may be in memory at a time."""
_AGAIN_S = 5

ReadUpload = Callable[[str, str, int], Awaitable[bytes]]
"""Read an owner's upload by id, up to one byte above the limit. Raises JobObjectNotFound."""


class AttachmentFinder:
    """Resolver of attachments. Its methods belong to one event loop's thread."""

    def __init__(self, options: MediaOptions, upload: ReadUpload | None) -> None:
        self._options = options
        self._upload = upload
        self._decoded = _Kept[MediaItem](_PIXEL_BYTES * options.max_pixels, lambda item: len(item.content))
        self._texts = _Kept[str](_MOST_KEPT_CHARS, len)
        self._held: WeakValueDictionary[str, MediaItem] = WeakValueDictionary()
        """Items of `_decoded` and of open requests, by digest."""

    async def taken(self, ask: GenerationParams, model: ServedModel, owner: str) -> GenerationParams:
        """Resolve all attachments, and replace unsupported ones by text. Raises InvalidRequest,
        EngineUnavailable."""
        if ask.recording is not None:
            return await self._cut(ask, ask.recording, model)
        if not ask.attached:
            return ask
        ask = await self._read(ask, model, owner)
        info = model.engine.info
        sees, hears = (info.sees, info.hears) if info is not None else (False, False)
        ask = await in_thread(partial(untaken, ask, sees=sees, hears=hears), is_slow=ask.is_slow)
        told = {one.mark: one for one in _media(ask)}
        if len(told) > self._options.max_items:
            what = f"{self._options.max_items} pictures and sounds, and this one has {len(told)}"
            raise wrong(f"A conversation may have {what}.", next(iter(told.values())).at)
        items = await self._items(list(told.values()), model, owner)
        shapes = await asyncio.gather(
            *(self._shape(one, item, model) for one, item in zip(told.values(), items, strict=True))
        )
        return msgspec.structs.replace(ask, attached=(), media=tuple(map(TakenMedia, told, items, shapes)))

    async def _cut(
        self, ask: GenerationParams, recording: RecordingParam, model: ServedModel
    ) -> GenerationParams:
        assert isinstance(ask.prompt, ConversationParam), "there is one for the recording"
        asked = SoundParam(recording.mark, "", recording.at, recording.at, DEAF)
        with _blamed(asked):
            data = _checked(asked, recording.data, self._options)
            pieces = await self._heard(data, model, recording.piece_s)
            shapes = await model.engine.shapes([piece.size for piece in pieces])
        marks = [mark_of(piece.digest, "sound") for piece in pieces]
        said = ask.prompt.messages
        if len(said) == 1:  # else a preset has the say
            said = recording.trained.get(model.loaded().architecture, said)
        conversation = msgspec.structs.replace(ask.prompt, messages=said)
        each = tuple(_about(conversation, recording.mark, mark) for mark in marks)
        media = dict(zip(marks, map(TakenMedia, marks, pieces, shapes), strict=True))
        prompt = ConversationsParam(each, recording.at)
        return msgspec.structs.replace(ask, prompt=prompt, recording=None, media=tuple(media.values()))

    async def _read(self, ask: GenerationParams, model: ServedModel, owner: str) -> GenerationParams:
        """Insert the text of files, or the error of earlier ones. Raises InvalidRequest for files of the
        question."""
        documents = [one for one in ask.attached if isinstance(one, DocumentParam)]
        if len({one.mark for one in documents}) > self._options.max_items:
            most = self._options.max_items
            raise wrong(f"A conversation may have {most} files.", documents[0].at)
        words, unread = dict[str, str](), list[str]()
        left = self._options.max_document_chars
        for one in documents:
            if one.mark not in words:
                try:
                    text = await self._document(one, model, owner)
                except InvalidRequest as error:
                    if one.is_asked:
                        raise
                    text = f"[{error}]"
                    unread.append(one.name)
                words[one.mark] = f"{one.title}\n{text}" if one.title else text
            left -= len(words[one.mark])
            if left < 0:
                most = self._options.max_document_chars
                message = f"The files of a conversation may have {most} characters of text."
                raise InvalidRequest(message, param=one.at, code="file_too_large")
        if not documents:
            return ask
        telling = partial(_worded, ask, words, unread, left=tuple(_media(ask)))
        return await in_thread(telling, is_slow=ask.is_slow)

    async def _document(self, asked: DocumentParam, model: ServedModel, owner: str) -> str:
        with _blamed(asked):
            data = await self._bytes(asked, owner)
            digest = await in_thread(partial(_digest, data), is_slow=True)
            if (known := self._texts.find(digest)) is not None:
                return known
            reading = partial(model.read_document, data, self._options.max_document_chars)
            return self._texts.keep(digest, await in_thread(reading, is_slow=True))

    async def _items(self, asked: Sequence[MediaParam], model: ServedModel, owner: str) -> list[MediaItem]:
        """Check sizes one by one, because small files may have many pixels or be long."""
        most_pixels, most_s = self._options.max_pixels_together, self._options.max_sound_s
        pixels, sound_s, items = 0, 0.0, list[MediaItem]()
        for one in asked:
            items.append(item := await self._item(one, model, owner))
            if isinstance(item, Picture):
                pixels += item.size.width * item.size.height
            else:
                sound_s += item.size.num_samples / _rate(model)
            if pixels > most_pixels or sound_s > most_s:
                has = f"pictures of a conversation may have {most_pixels} pixels"
                lasts = f"sounds of a conversation may last {most_s:g} seconds"
                message = f"The {has if pixels > most_pixels else lasts} together."
                raise InvalidRequest(message, param=one.at, code=_TOO_LARGE[type(one)])
        return items

    async def _shape(self, asked: MediaParam, item: MediaItem, model: ServedModel) -> MediaShape:
        with _blamed(asked):
            (shape,) = await model.engine.shapes([item.size])
            return shape

    async def _item(self, asked: MediaParam, model: ServedModel, owner: str) -> MediaItem:
        with _blamed(asked):
            if isinstance(asked, SoundParam):
                (sound,) = await self._heard(await self._bytes(asked, owner), model)
                return sound
            most_side = _MOST_SIDES.get(asked.detail, 0)
            if most_side == 0 and asked.detail not in _AS_THEY_ARE:
                raise InvalidRequest(f"its detail may be {', '.join((*_MOST_SIDES, *_AS_THEY_ARE))}")
            return await self._seen(await self._bytes(asked, owner), most_side, model)

    async def _bytes(self, asked: Attached, owner: str) -> bytes:
        return _checked(asked, await self._fetched(asked, owner), self._options)

    async def _fetched(self, asked: Attached, owner: str) -> bytes:
        source, options = asked.source, self._options
        most_bytes = _most_bytes(asked, options)
        if source.startswith(UPLOAD):
            if self._upload is None:
                raise InvalidRequest("this server keeps no files, for it has no jobs database (--jobs-db)")
            try:
                return await self._upload(owner, source.removeprefix(UPLOAD), most_bytes)
            except JobObjectNotFound as error:
                raise InvalidRequest(str(error), code="file_not_found") from None
        scheme = source[:16].partition(":")[0].lower()
        if scheme == "data":
            return await in_thread(partial(_of_data_uri, source), is_slow=True)
        if scheme in ("http", "https"):
            too_large = _TOO_LARGE[type(asked)]
            found = Fetched(source, options.domains, most_bytes, too_large, options.fetch_timeout_s)
            return await fetch(found)
        if scheme == "file":
            return await asyncio.to_thread(_of_file, source, options.folder, most_bytes)
        raise InvalidRequest("expected a data URI in base64, or a URL")

    async def _seen(self, data: bytes, most_side: int, model: ServedModel) -> Picture:
        digest = await in_thread(partial(_digest, data), is_slow=True) + most_side.to_bytes(4, "little")
        if isinstance(known := self._decoded.find(digest), Picture):
            return known
        self._require_memory()
        opening = partial(model.open_picture, data, self._options.max_pixels, most_side)
        opened = await in_thread(opening, is_slow=True)
        self._decoded.keep(digest, self._held.setdefault(opened.digest, opened))
        return opened

    async def _heard(
        self, data: bytes, model: ServedModel, piece_s: float | None = None
    ) -> tuple[Sound, ...]:
        rate = _rate(model)
        digest = await in_thread(partial(_digest, data), is_slow=True) + b"sound%d" % rate
        if piece_s is None and isinstance(known := self._decoded.find(digest), Sound):
            return (known,)
        self._require_memory()
        bounds = int(self._options.max_sound_s * rate), int((piece_s or 0) * rate)
        opened = await in_thread(partial(model.open_sound, data, rate, *bounds), is_slow=True)
        for one in opened:
            self._held.setdefault(one.digest, one)
        if piece_s is None:
            self._decoded.keep(digest, opened[0])
        return opened

    def _require_memory(self) -> None:
        held_bytes = sum(len(item.content) for item in self._held.values())
        if held_bytes >= _CONVERSATIONS * _PIXEL_BYTES * self._options.max_pixels_together:
            message = "Other requests have too many pictures and sounds; try again later."
            raise EngineUnavailable(message, _AGAIN_S)


def _rate(model: ServedModel) -> int:
    info = model.engine.info
    if info is None or not info.hears:
        raise InvalidRequest(DEAF)
    return info.sound_rate


def _most_bytes(asked: Attached, options: MediaOptions) -> int:
    return options.max_sound_bytes if isinstance(asked, SoundParam) else options.max_bytes


def _checked(asked: Attached, data: bytes, options: MediaOptions) -> bytes:
    kind, most_bytes = type(asked), _most_bytes(asked, options)
    if len(data) > most_bytes:
        message = f"a {_NAMES[kind]} may have {most_bytes} bytes, and this one has {len(data)}"
        raise InvalidRequest(message, code=_TOO_LARGE[kind])
    return data


_T = TypeVar("_T")


class _Kept(Generic[_T]):
    """LRU cache by digest, because clients resend the whole conversation in each turn."""

    def __init__(self, most: int, size: Callable[[_T], int]) -> None:
        self._found = OrderedDict[bytes, _T]()
        self._left = most
        self._size = size

    def find(self, digest: bytes) -> _T | None:
        if (known := self._found.get(digest)) is not None:
            self._found.move_to_end(digest)
        return known

    def keep(self, digest: bytes, found: _T) -> _T:
        if digest not in self._found:
            self._found[digest] = found
            self._left -= self._size(found)
            while self._left < 0:
                self._left += self._size(self._found.popitem(last=False)[1])
        return found


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


@contextlib.contextmanager
def _blamed(asked: Attached) -> Iterator[None]:
    code = _INVALID[type(asked)]
    try:
        yield
    except DeadlyInput:
        message = f"'{asked.at}': the {_NAMES[type(asked)]} is damaged."
        raise InvalidRequest(message, param=asked.at, code=code) from None
    except InvalidRequest as error:
        why = str(error).rstrip(".")
        message = f"'{asked.at}': {why}."
        raise InvalidRequest(message, param=asked.at, code=error.code or code) from None


def untaken(ask: GenerationParams, *, sees: bool = False, hears: bool = False) -> GenerationParams:
    """Reject unsupported media of the question, and replace others by text. Raises InvalidRequest."""
    left = [one for one in _media(ask) if (sees if isinstance(one, PictureParam) else hears)]
    others = [one for one in _media(ask) if one not in left]
    for one in others:
        if one.refusal is not None:
            raise InvalidRequest(one.refusal, param=one.refused_at, code="unsupported_content")
    if not others:
        return ask
    words = {one.mark: f"[{one.lack}]" for one in others}
    return _worded(ask, words, [one.name for one in others], left=tuple(left))


def _media(ask: GenerationParams) -> Iterator[MediaParam]:
    return (one for one in ask.attached if not isinstance(one, DocumentParam))


def _worded(
    ask: GenerationParams, words: dict[str, str], named: Sequence[str], left: tuple[Attached, ...] = ()
) -> GenerationParams:
    assert isinstance(ask.prompt, ConversationParam), "other prompts show nothing"
    messages = [_in_words(message, words) for message in ask.prompt.messages]
    prompt = msgspec.structs.replace(ask.prompt, messages=messages)
    names = Ignored((*ask.ignored.names, *named))
    return msgspec.structs.replace(ask, prompt=prompt, attached=left, ignored=names)


def _about(conversation: ConversationParam, mark: str, other: str) -> ConversationParam:
    messages = [_in_words(message, {mark: other}) for message in conversation.messages]
    return msgspec.structs.replace(conversation, messages=messages)


def _in_words(message: MessageParam, words: dict[str, str]) -> MessageParam:
    content = message.fields.get("content")
    if isinstance(content, list):
        told: object = [{**part, "text": _replaced(part["text"], words)} for part in content]
    else:
        told = _replaced(content, words)
    return msgspec.structs.replace(message, fields={**message.fields, "content": told})


def _replaced(text: object, words: dict[str, str]) -> object:
    """Replace in one pass, so that inserted text is not searched for marks."""
    if not isinstance(text, str):
        return text

    def told(found: re.Match[str]) -> str:
        if (said := words.get(found[0])) is None:
            return found[0]
        before = text[max(found.start() - 1, 0) : found.start()]
        behind = text[found.end() : found.end() + 1]
        return f"{'' if before in _BREAKS else _BREAK}{said}{'' if behind in _BREAKS else _BREAK}"

    return MARK.sub(told, text)


_BREAK = "\n"
_BREAKS = ("", _BREAK)


def _of_data_uri(source: str) -> bytes:
    head, comma, body = source.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidRequest("a data URI must be in base64: 'data:image/png;base64,...'")
    if "%" in body:
        body = urllib.parse.unquote(body)
    found, rest = bytearray(), ""
    try:
        for start in range(0, len(body), _CHARS_AT_ONCE):
            piece = rest + body[start : start + _CHARS_AT_ONCE].translate(_AS_STANDARD)
            num_whole = len(piece) // 4 * 4
            found += base64.b64decode(piece[:num_whole], validate=True)
            rest = piece[num_whole:]
        found += base64.b64decode(rest + "=" * (-len(rest) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("this is no base64") from None
    return bytes(found)


_CHARS_AT_ONCE = 2**20
"""Decoding holds the interpreter's lock, and other threads wait for it."""
_AS_STANDARD = str.maketrans("-_", "+/", " \t\r\n=")
"""Translation of the URL-safe alphabet, without line ends and padding."""


def _of_file(source: str, folder: Path | None, most_bytes: int) -> bytes:
    if folder is None:
        raise InvalidRequest("files of the server are not shown: it was started without --media-dir")
    url = urllib.parse.urlsplit(source)
    host = "" if url.netloc == "localhost" else url.netloc
    path = urllib.parse.unquote(host + url.path)
    # llama-server's clients name files from the folder on, with `file://` before them, others by whole paths.
    places = [Path(path)] if path.startswith("/") else []
    for place in (*places, folder / path.lstrip("/")):
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            real = place.resolve(strict=True)
            if real.is_relative_to(folder.resolve()) and real.is_file():
                with real.open("rb") as file:
                    return file.read(most_bytes + 1)
    raise InvalidRequest("there is no such file below --media-dir")
