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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec

from openai_cpu_server.api.generation.params import (
    MARK,
    UPLOAD,
    Attachment,
    AttachmentKind,
    AttachmentSource,
    ConversationParam,
    ConversationsParam,
    GenerationParams,
    MessageParam,
    RecordingParam,
    TakenMedia,
    mark_of,
)
from openai_cpu_server.contract.media import DEAF, MediaItem, Picture, Sound
from openai_cpu_server.errors import DeadlyInput, EngineUnavailable, InvalidRequest, JobObjectNotFound, wrong
from openai_cpu_server.http.body import ThreadKind, in_thread
from openai_cpu_server.http.fetching import Fetched, fetch_url
from openai_cpu_server.http.options import MediaOptions
from openai_cpu_server.http.parse import Ignored
from openai_cpu_server.models.served import ServedModel


class _Errors(NamedTuple):
    noun: str
    invalid: str
    too_large: str


_ERRORS = {
    AttachmentKind.PICTURE: _Errors("picture", "invalid_image", "image_too_large"),
    AttachmentKind.SOUND: _Errors("sound", "invalid_audio", "audio_too_large"),
    AttachmentKind.DOCUMENT: _Errors("file", "invalid_file", "file_too_large"),
}
_PIXEL_BYTES = 3
_MOST_SIDES = {"low": 512}
"""Longest side in pixels by the client's detail. Some encoders make fewer tokens of small images."""
_AS_THEY_ARE = ("auto", "high", "original")
_MOST_CACHED_CHARS = 8 * 1024 * 1024
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
        self._decoded = _Cache[MediaItem](_PIXEL_BYTES * options.max_pixels, lambda item: len(item.content))
        self._texts = _Cache[str](_MOST_CACHED_CHARS, len)
        self._held: WeakValueDictionary[str, MediaItem] = WeakValueDictionary()
        """Items of `_decoded` and of open requests, by digest."""

    async def resolve(self, params: GenerationParams, model: ServedModel, owner: str) -> GenerationParams:
        """Resolve all attachments, and replace unsupported ones by text. Raises InvalidRequest,
        EngineUnavailable."""
        if params.recording is not None:
            return await self._cut(params, params.recording, model)
        if not params.attached:
            return params
        params = await self._with_documents(params, model, owner)
        info = model.engine.info
        sees, hears = (info.sees, info.hears) if info is not None else (False, False)
        replacing = partial(without_unsupported, params, sees=sees, hears=hears)
        params = await in_thread(replacing, is_slow=params.is_slow)
        by_mark = {one.mark: one for one in _media(params)}
        if len(by_mark) > self._options.max_items:
            limit = f"{self._options.max_items} pictures and sounds, and this one has {len(by_mark)}"
            raise wrong(f"A conversation may have {limit}.", next(iter(by_mark.values())).at)
        items = await self._items(by_mark.values(), model, owner)
        media = await asyncio.gather(
            *(self._measured(one, item, model) for one, item in zip(by_mark.values(), items, strict=True))
        )
        return msgspec.structs.replace(params, attached=(), media=tuple(media))

    async def _measured(self, attachment: Attachment, item: MediaItem, model: ServedModel) -> TakenMedia:
        with _blaming(attachment):
            (shape,) = await model.engine.shapes([item.size])
        return TakenMedia(attachment.mark, item, shape)

    async def _cut(
        self, params: GenerationParams, recording: RecordingParam, model: ServedModel
    ) -> GenerationParams:
        assert isinstance(params.prompt, ConversationParam), "there is one for the recording"
        attachment = Attachment(AttachmentSource(AttachmentKind.SOUND, ""), recording.at, recording.at)
        with _blaming(attachment):
            _check_size(AttachmentKind.SOUND, recording.data, self._options)
            pieces = await self._sounds(recording.data, model, recording.piece_s)
            shapes = await model.engine.shapes([piece.size for piece in pieces])
        marks = [mark_of(piece.digest, AttachmentKind.SOUND) for piece in pieces]
        messages = params.prompt.messages
        if len(messages) == 1:  # else a preset has the say
            messages = recording.trained.get(model.loaded().architecture, messages)
        conversations = tuple(
            msgspec.structs.replace(params.prompt, messages=_replaced(messages, {recording.mark: mark}))
            for mark in marks
        )
        media = dict(zip(marks, map(TakenMedia, marks, pieces, shapes), strict=True))
        prompt = ConversationsParam(conversations, recording.at)
        return msgspec.structs.replace(params, prompt=prompt, recording=None, media=tuple(media.values()))

    async def _with_documents(
        self, params: GenerationParams, model: ServedModel, owner: str
    ) -> GenerationParams:
        """Insert the text of files, or the error of earlier ones. Raises InvalidRequest for files of the
        question."""
        documents = [one for one in params.attached if one.source.kind is AttachmentKind.DOCUMENT]
        if not documents:
            return params
        if len({one.mark for one in documents}) > self._options.max_items:
            raise wrong(f"A conversation may have {self._options.max_items} files.", documents[0].at)
        texts, unread = dict[str, str](), list[str]()
        left = self._options.max_document_chars
        for one in documents:
            if one.mark not in texts:
                try:
                    text = await self._document(one, model, owner)
                except InvalidRequest as error:
                    if one.is_latest:
                        raise
                    text = f"[{error}]"
                    unread.append(one.name)
                texts[one.mark] = f"{one.source.label}\n{text}" if one.source.label else text
            left -= len(texts[one.mark])
            if left < 0:
                limit = self._options.max_document_chars
                message = f"The files of a conversation may have {limit} characters of text."
                raise InvalidRequest(message, param=one.at, code="file_too_large")
        inserting = partial(_with_texts, params, texts, unread, attached=tuple(_media(params)))
        return await in_thread(inserting, is_slow=params.is_slow)

    async def _document(self, attachment: Attachment, model: ServedModel, owner: str) -> str:
        with _blaming(attachment):
            data = await self._bytes(attachment.source, owner)
            digest = await in_thread(partial(_digest, data), is_slow=True)
            if (text := self._texts.find(digest)) is not None:
                return text
            reading = partial(model.read_document, data, self._options.max_document_chars)
            return self._texts.add(digest, await in_thread(reading, kind=ThreadKind.DOCUMENT))

    async def _items(
        self, attachments: Iterable[Attachment], model: ServedModel, owner: str
    ) -> list[MediaItem]:
        """Check sizes one by one, because small files may have many pixels or be long."""
        most_pixels, most_s = self._options.max_pixels_together, self._options.max_sound_s
        pixels, sound_s, items = 0, 0.0, list[MediaItem]()
        for one in attachments:
            with _blaming(one):
                items.append(item := await self._item(one.source, model, owner))
            if isinstance(item, Picture):
                pixels += item.size.width * item.size.height
            else:
                sound_s += item.size.num_samples / _sound_rate(model)
            if pixels > most_pixels or sound_s > most_s:
                pixel_limit = f"pictures of a conversation may have {most_pixels} pixels"
                sound_limit = f"sounds of a conversation may last {most_s:g} seconds"
                message = f"The {pixel_limit if pixels > most_pixels else sound_limit} together."
                raise InvalidRequest(message, param=one.at, code=_ERRORS[one.source.kind].too_large)
        return items

    async def _item(self, source: AttachmentSource, model: ServedModel, owner: str) -> MediaItem:
        if source.kind is AttachmentKind.SOUND:
            (sound,) = await self._sounds(await self._bytes(source, owner), model)
            return sound
        most_side = _MOST_SIDES.get(source.label, 0)
        if most_side == 0 and source.label not in _AS_THEY_ARE:
            raise InvalidRequest(f"its detail may be {', '.join((*_MOST_SIDES, *_AS_THEY_ARE))}")
        return await self._picture(await self._bytes(source, owner), most_side, model)

    async def _bytes(self, source: AttachmentSource, owner: str) -> bytes:
        data = await self._fetched(source, owner)
        _check_size(source.kind, data, self._options)
        return data

    async def _fetched(self, source: AttachmentSource, owner: str) -> bytes:
        url, options, most_bytes = source.url, self._options, _most_bytes(source.kind, self._options)
        if url.startswith(UPLOAD):
            if self._upload is None:
                raise InvalidRequest("this server keeps no files because it has no jobs database (--jobs-db)")
            try:
                return await self._upload(owner, url.removeprefix(UPLOAD), most_bytes)
            except JobObjectNotFound as error:
                raise InvalidRequest(str(error), code="file_not_found") from None
        match url[:16].partition(":")[0].lower():
            case "data":
                return await in_thread(partial(_of_data_uri, url), is_slow=True)
            case "http" | "https":
                too_large = _ERRORS[source.kind].too_large
                return await fetch_url(
                    Fetched(url, options.domains, most_bytes, too_large, options.fetch_timeout_s)
                )
            case "file":
                return await asyncio.to_thread(_of_file, url, options.folder, most_bytes)
        raise InvalidRequest("expected a data URI in base64, or a URL")

    async def _picture(self, data: bytes, most_side: int, model: ServedModel) -> Picture:
        digest = await in_thread(partial(_digest, data), is_slow=True) + most_side.to_bytes(4, "little")
        if isinstance(cached := self._decoded.find(digest), Picture):
            return cached
        self._require_memory()
        opening = partial(model.open_picture, data, self._options.max_pixels, most_side)
        opened = await in_thread(opening, is_slow=True)
        self._decoded.add(digest, self._held.setdefault(opened.digest, opened))
        return opened

    async def _sounds(
        self, data: bytes, model: ServedModel, piece_s: float | None = None
    ) -> tuple[Sound, ...]:
        rate = _sound_rate(model)
        digest = await in_thread(partial(_digest, data), is_slow=True) + b"sound%d" % rate
        if piece_s is None and isinstance(cached := self._decoded.find(digest), Sound):
            return (cached,)
        self._require_memory()
        bounds = int(self._options.max_sound_s * rate), int((piece_s or 0) * rate)
        opened = await in_thread(partial(model.open_sound, data, rate, *bounds), is_slow=True)
        for one in opened:
            self._held.setdefault(one.digest, one)
        if piece_s is None:
            self._decoded.add(digest, opened[0])
        return opened

    def _require_memory(self) -> None:
        held_bytes = sum(len(item.content) for item in self._held.values())
        if held_bytes >= _CONVERSATIONS * _PIXEL_BYTES * self._options.max_pixels_together:
            message = "Other requests have too many pictures and sounds; try again later."
            raise EngineUnavailable(message, _AGAIN_S)


def _sound_rate(model: ServedModel) -> int:
    info = model.engine.info
    if info is None or not info.hears:
        raise InvalidRequest(DEAF)
    return info.sound_rate


def _most_bytes(kind: AttachmentKind, options: MediaOptions) -> int:
    return options.max_sound_bytes if kind is AttachmentKind.SOUND else options.max_bytes


def _check_size(kind: AttachmentKind, data: bytes, options: MediaOptions) -> None:
    most_bytes = _most_bytes(kind, options)
    if len(data) > most_bytes:
        message = f"a {_ERRORS[kind].noun} may have {most_bytes} bytes, and this one has {len(data)}"
        raise InvalidRequest(message, code=_ERRORS[kind].too_large)


_T = TypeVar("_T")


class _Cache(Generic[_T]):
    """LRU cache by digest, because clients resend the whole conversation in each turn."""

    def __init__(self, most: int, size: Callable[[_T], int]) -> None:
        self._values = OrderedDict[bytes, _T]()
        self._left = most
        self._size = size

    def find(self, digest: bytes) -> _T | None:
        if (value := self._values.get(digest)) is not None:
            self._values.move_to_end(digest)
        return value

    def add(self, digest: bytes, value: _T) -> _T:
        if digest not in self._values:
            self._values[digest] = value
            self._left -= self._size(value)
            while self._left < 0:
                self._left += self._size(self._values.popitem(last=False)[1])
        return value


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


@contextlib.contextmanager
def _blaming(attachment: Attachment) -> Iterator[None]:
    errors, at = _ERRORS[attachment.source.kind], attachment.at
    try:
        yield
    except DeadlyInput:
        message = f"'{at}': the {errors.noun} is damaged."
        raise InvalidRequest(message, param=at, code=errors.invalid) from None
    except InvalidRequest as error:
        message = f"'{at}': {str(error).rstrip('.')}."
        raise InvalidRequest(message, param=at, code=error.code or errors.invalid) from None


def without_unsupported(
    params: GenerationParams, *, sees: bool = False, hears: bool = False
) -> GenerationParams:
    """Reject unsupported media in the latest message, and replace earlier ones by text. Raises
    InvalidRequest."""
    is_supported = {AttachmentKind.PICTURE: sees, AttachmentKind.SOUND: hears}
    supported = tuple(one for one in _media(params) if is_supported[one.source.kind])
    others = [one for one in _media(params) if not is_supported[one.source.kind]]
    for one in others:
        if one.refusal is not None:
            raise InvalidRequest(one.refusal, param=one.refused_at, code="unsupported_content")
    if not others:
        return params
    texts = {one.mark: f"[{one.lack}]" for one in others}
    return _with_texts(params, texts, [one.name for one in others], attached=supported)


def _media(params: GenerationParams) -> Iterator[Attachment]:
    return (one for one in params.attached if one.source.kind is not AttachmentKind.DOCUMENT)


def _with_texts(
    params: GenerationParams,
    texts: dict[str, str],
    names: Sequence[str],
    *,
    attached: tuple[Attachment, ...] = (),
) -> GenerationParams:
    """Replace marks by texts. `names`: attachments to report as ignored."""
    assert isinstance(params.prompt, ConversationParam), "other prompts show nothing"
    prompt = msgspec.structs.replace(params.prompt, messages=_replaced(params.prompt.messages, texts))
    ignored = Ignored((*params.ignored.names, *names))
    return msgspec.structs.replace(params, prompt=prompt, attached=attached, ignored=ignored)


_BREAK = "\n"
_BREAKS = ("", _BREAK)


def _replaced(messages: Sequence[MessageParam], texts: dict[str, str]) -> list[MessageParam]:
    """Replace in one pass, so that inserted text is not searched for marks."""

    def text_for(match: re.Match[str]) -> str:
        if (text := texts.get(match[0])) is None:
            return match[0]
        before = match.string[max(match.start() - 1, 0) : match.start()]
        behind = match.string[match.end() : match.end() + 1]
        return f"{'' if before in _BREAKS else _BREAK}{text}{'' if behind in _BREAKS else _BREAK}"

    def replaced(text: object) -> object:
        return MARK.sub(text_for, text) if isinstance(text, str) else text

    result = []
    for message in messages:
        content = message.fields.get("content")
        if isinstance(content, list):
            content = [{**part, "text": replaced(part["text"])} for part in content]
        else:
            content = replaced(content)
        result.append(msgspec.structs.replace(message, fields={**message.fields, "content": content}))
    return result


def _of_data_uri(source: str) -> bytes:
    head, comma, body = source.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidRequest("a data URI must be in base64: 'data:image/png;base64,...'")
    if "%" in body:
        body = urllib.parse.unquote(body)
    data, rest = BytesIO(), ""
    try:
        for start in range(0, len(body), _CHARS_AT_ONCE):
            piece = rest + body[start : start + _CHARS_AT_ONCE].translate(_AS_STANDARD)
            num_whole = len(piece) // 4 * 4
            data.write(base64.b64decode(piece[:num_whole], validate=True))
            rest = piece[num_whole:]
        data.write(base64.b64decode(rest + "=" * (-len(rest) % 4), validate=True))
    except (binascii.Error, ValueError):
        raise InvalidRequest("this is not base64") from None
    return data.getvalue()  # without a copy, as CPython has it


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
