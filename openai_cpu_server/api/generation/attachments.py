from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import re
import urllib.parse
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, TypeVar, Union, cast
from weakref import WeakValueDictionary

import msgspec

from openai_cpu_server.api.generation.params import (
    CHARS_AT_ONCE,
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
from openai_cpu_server.contract.media import DEAF, MOST_SOUND_S, MediaItem, Picture, Sound
from openai_cpu_server.errors import DeadlyInput, EngineUnavailable, InvalidRequest, JobObjectNotFound, wrong
from openai_cpu_server.http.body import ThreadKind, in_thread, off_loop
from openai_cpu_server.http.fetching import Fetched, fetch_url
from openai_cpu_server.http.options import MediaOptions
from openai_cpu_server.http.parse import Ignored
from openai_cpu_server.models.grammars import LruCache
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
"""Longest side in pixels by detail. Some encoders make fewer tokens of small images."""
_AS_THEY_ARE = ("auto", "high", "original")
_MOST_CACHED_CHARS = 8 * 1024 * 1024
_CONVERSATIONS = 4
"""Conversations with the most media in memory at a time."""
_AGAIN_S = 5

_T = TypeVar("_T")
_Item = TypeVar("_Item", Picture, Sound)
_LEFT_OUT = "[A {} was here. It is left out, because the conversation has too many.]"
_UNSEEN_PAGES = "and its pages are pictures, which this model cannot see"

ReadUpload = Callable[[str, str, int], Awaitable[bytes]]
"""Read an owner's upload by id, up to one byte above the limit. Raises JobObjectNotFound."""


class _BudgetUsed(InvalidRequest):
    """Limit for a conversation's attachments together."""


class _Page(AttachmentSource, frozen=True, kw_only=True):
    data: bytes
    digest: bytes
    number: int


class _Document(NamedTuple):
    parts: tuple[str | int, ...]
    """Texts, and numbers of pages that are pictures."""
    data: bytes
    digest: bytes

    def written(self, attachment: Attachment, *, sees: bool) -> tuple[str, list[Attachment]]:
        blocks, pages = list[str](), list[Attachment]()
        for part in self.parts:
            if isinstance(part, str):
                blocks.append(part)
            elif sees:
                url, data, digest = f"page {part} of {self.digest.hex()}", self.data, self.digest
                page = _Page(AttachmentKind.PICTURE, url, data=data, digest=digest, number=part)
                pages.append(Attachment(page, attachment.at, f"{attachment.name} page {part}"))
                blocks.append(f"[Page {part}]\n{page.mark}")
            else:
                blocks.append(f"[Page {part} is a picture, which this model cannot see.]")
        title = [attachment.source.label] if attachment.source.label else []
        return "\n".join([*title, "\n\n".join(blocks)]), pages


def _num_chars(parts: tuple[str | int, ...]) -> int:
    return sum(len(part) for part in parts if isinstance(part, str))


class AttachmentFinder:
    """Owned by one event loop."""

    def __init__(self, options: MediaOptions, upload: ReadUpload | None) -> None:
        self._options = options
        self._upload = upload
        # Clients resend the whole conversation in each turn.
        self._decoded = LruCache[MediaItem](_PIXEL_BYTES * options.max_pixels)
        self._texts = LruCache[tuple[Union[str, int], ...]](_MOST_CACHED_CHARS)
        self._held: WeakValueDictionary[str, MediaItem] = WeakValueDictionary()
        """Items of `_decoded` and open requests."""

    async def resolve(self, params: GenerationParams, model: ServedModel, owner: str) -> GenerationParams:
        """Resolve attachments, and replace unsupported ones by text. Raises InvalidRequest,
        EngineUnavailable."""
        if params.recording is not None:
            return await self._cut(params, params.recording, model)
        if not params.attached:
            return params
        info = model.engine.info
        sees, hears = (info.sees, info.hears) if info is not None else (False, False)
        params = await self._with_documents(params, model, owner, sees=sees)
        replacing = partial(without_unsupported, params, sees=sees, hears=hears)
        params = await in_thread(replacing, is_slow=params.is_slow)
        attached = [*{one.mark: one for one in _media(params)}.values()]
        num_pixels, sound_s = 0, 0.0

        async def take(one: Attachment) -> TakenMedia:
            nonlocal num_pixels, sound_s
            item = await self._item(one.source, model, owner)
            # Small files may have many pixels or be long.
            most_pixels, most_s = self._options.max_pixels_together, self._options.max_sound_s
            if isinstance(item, Picture):
                num_pixels += item.size.width * item.size.height
                if num_pixels > most_pixels:
                    message = f"the pictures of a conversation may have {most_pixels} pixels together"
                    raise _BudgetUsed(message, code="image_too_large")
            else:
                sound_s += item.size.num_samples / _sound_rate(model)
                if sound_s > most_s:
                    message = f"the sounds of a conversation may last {most_s:g} seconds together"
                    raise _BudgetUsed(message, code="audio_too_large")
            (shape,) = await model.engine.shapes([item.size])
            return TakenMedia(one.mark, item, shape)

        media_by_mark, texts = await self._each(attached, take, "pictures and sounds")
        if texts:
            names = [one.name for one in attached if one.mark in texts]
            inserting = partial(_with_texts, params, texts, names)
            params = await in_thread(inserting, is_slow=params.is_slow)
        media = tuple(media_by_mark[one.mark] for one in attached if one.mark in media_by_mark)
        return msgspec.structs.replace(params, attached=(), media=media)

    async def _each(
        self,
        attached: Sequence[Attachment],
        take: Callable[[Attachment], Awaitable[_T]],
        noun: str,
    ) -> tuple[dict[str, _T], dict[str, str]]:
        """Return what `take` makes, and texts for earlier ones that are missing or too many, by mark. Pages
        go first. Raises InvalidRequest."""
        most = self._options.max_items
        latest = [one for one in attached if one.is_latest]
        of_documents = [one for one in attached if isinstance(one.source, _Page)]
        earlier = [one for one in attached if not (one.is_latest or isinstance(one.source, _Page))]
        self._require_few(latest, noun)
        items, texts = dict[str, _T](), dict[str, str]()

        async def fits(one: Attachment) -> bool:
            try:
                with _blaming(one):
                    items[one.mark] = await take(one)
            except _BudgetUsed:
                return False
            except InvalidRequest as error:
                why = str(error).removeprefix(f"'{one.at}': ").rstrip(".")
                texts[one.mark] = f"[A {_ERRORS[one.source.kind].noun} is missing here: {why}.]"
            return True

        for one in latest:
            with _blaming(one):
                items[one.mark] = await take(one)
        left_out = of_documents[most - len(latest) :]
        num_left_out = self._num_left_out(len(attached) - len(left_out) - most, len(earlier))
        for number, one in enumerate(of_documents[: most - len(latest)]):
            if not await fits(one):
                left_out, num_left_out = of_documents[number:], len(earlier)
                break
        for index, one in reversed([*enumerate(earlier)]):
            if index >= num_left_out and not await fits(one):
                num_left_out = self._num_left_out(index + 1, len(earlier))
        for one in (*left_out, *earlier[:num_left_out]):
            items.pop(one.mark, None)
            texts[one.mark] = _LEFT_OUT.format(_ERRORS[one.source.kind].noun)
        return items, texts

    def _require_few(self, latest: Sequence[Attachment], noun: str) -> None:
        most = self._options.max_items
        if len(latest) > most:
            message = f"A conversation may have {most} {noun}, and this message has {len(latest)}."
            raise wrong(message, latest[0].at)

    def _num_left_out(self, excess: int, num_earlier: int) -> int:
        """Leave out several at once, so that the next turns share a prefix."""
        step = max(1, self._options.max_items // 4)
        return min(num_earlier, -(-max(0, excess) // step) * step)

    async def _cut(
        self, params: GenerationParams, recording: RecordingParam, model: ServedModel
    ) -> GenerationParams:
        assert isinstance(params.prompt, ConversationParam), "the recording has one"
        attachment = Attachment(AttachmentSource(AttachmentKind.SOUND, ""), recording.at, recording.at)
        with _blaming(attachment):
            _check_size(AttachmentKind.SOUND, recording.data, self._options)
            pieces = await self._sounds(recording.data, model, recording.piece_s)
            shapes = await model.engine.shapes([piece.size for piece in pieces])
        marks = [mark_of(AttachmentKind.SOUND, piece.digest) for piece in pieces]
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
        self, params: GenerationParams, model: ServedModel, owner: str, *, sees: bool
    ) -> GenerationParams:
        files = [one for one in params.attached if one.source.kind is AttachmentKind.DOCUMENT]
        if not files:
            return params
        attached, copies = {one.mark: one for one in files}, Counter(one.mark for one in files)
        left = self._options.max_document_chars

        async def take(one: Attachment) -> _Document:
            nonlocal left
            document = await self._document(one, model, owner, sees=sees)
            left -= _num_chars(document.parts) * copies[one.mark]
            if left < 0:
                limit = self._options.max_document_chars
                message = f"the files of a conversation may have {limit} characters of text together"
                raise _BudgetUsed(message, code="file_too_large")
            return document

        documents, texts = await self._each([*attached.values()], take, "files")
        names = [one.name for mark, one in attached.items() if mark in texts]
        pages = list[Attachment]()
        for mark, document in documents.items():
            texts[mark], shown = document.written(attached[mark], sees=sees)
            pages += shown
        inserting = partial(_with_texts, params, texts, names, attached=(*pages, *_media(params)))
        return await in_thread(inserting, is_slow=params.is_slow)

    async def _document(
        self, attachment: Attachment, model: ServedModel, owner: str, *, sees: bool
    ) -> _Document:
        source = attachment.source
        data = await self._bytes(source, owner)
        charset = match[1].lower() if (match := _CHARSET.match(source.url)) else ""
        digest = await in_thread(partial(_digest, data), is_slow=True)
        key = digest + charset.encode(errors="replace")
        parts = self._texts.get(key)
        if parts is None:
            reading = partial(model.read_document, data, self._options.max_document_chars, charset)
            parts = await in_thread(reading, kind=ThreadKind.DOCUMENT)
            self._texts.put(key, parts, _num_chars(parts))
        document = _Document(parts, data, digest)
        if not sees and not any(isinstance(part, str) for part in parts):
            raise InvalidRequest(f"the PDF has no text, {_UNSEEN_PAGES}", code="invalid_file")
        return document

    async def _item(self, source: AttachmentSource, model: ServedModel, owner: str) -> MediaItem:
        if source.kind is AttachmentKind.SOUND:
            (sound,) = await self._sounds(await self._bytes(source, owner), model)
            return sound
        most_pixels = self._options.max_pixels
        if isinstance(source, _Page):
            rendering = partial(model.render_page, source.data, source.number, most_pixels)
            return await self._picture(
                source.digest + b"page%d" % source.number, rendering, ThreadKind.DOCUMENT
            )
        most_side = _MOST_SIDES.get(source.label, 0)
        if most_side == 0 and source.label not in _AS_THEY_ARE:
            raise InvalidRequest(f"its detail may be {', '.join((*_MOST_SIDES, *_AS_THEY_ARE))}")
        data = await self._bytes(source, owner)
        digest = await in_thread(partial(_digest, data), is_slow=True) + most_side.to_bytes(4, "little")
        opening = partial(model.open_picture, data, most_pixels, most_side)
        return await self._picture(digest, opening, ThreadKind.SLOW)

    async def _picture(self, digest: bytes, opening: Callable[[], Picture], kind: ThreadKind) -> Picture:
        if isinstance(cached := self._decoded.get(digest), Picture):
            return cached
        opened = self._shared(await self._opened(opening, kind))
        self._decoded.put(digest, opened, len(opened.content))
        return opened

    async def _opened(self, opening: Callable[[], _T], kind: ThreadKind) -> _T:
        self._require_memory()
        opened = await in_thread(opening, kind=kind)
        self._require_memory()  # others were opened while it waited
        return opened

    async def _bytes(self, source: AttachmentSource, owner: str) -> bytes:
        data = await self._fetched(source, owner)
        _check_size(source.kind, data, self._options)
        return data

    async def _fetched(self, source: AttachmentSource, owner: str) -> bytes:
        url, options, most_bytes = source.url, self._options, _most_bytes(source.kind, self._options)
        if source.is_base64:
            return await off_loop(len(url), partial(_of_base64, url))
        if url.startswith(UPLOAD):
            if self._upload is None:
                raise InvalidRequest(
                    "this server stores no files because it has no jobs database (--jobs-db)"
                )
            try:
                return await self._upload(owner, url.removeprefix(UPLOAD), most_bytes)
            except JobObjectNotFound as error:
                raise InvalidRequest(str(error), code="file_not_found") from None
        match url[:16].partition(":")[0].lower():
            case "data":
                return await off_loop(len(url), partial(_of_data_uri, url))
            case "http" | "https":
                too_large = _ERRORS[source.kind].too_large
                timeout_s = options.fetch_timeout_s
                return await fetch_url(
                    Fetched(url, options.domains, most_bytes, too_large, timeout_s, options.hosts)
                )
            case "file":
                return await asyncio.to_thread(_of_file, url, options.folder, most_bytes)
        raise InvalidRequest("expected a data URI in base64, or a URL")

    async def _sounds(
        self, data: bytes, model: ServedModel, piece_s: float | None = None
    ) -> tuple[Sound, ...]:
        rate = _sound_rate(model)
        digest = await in_thread(partial(_digest, data), is_slow=True) + b"sound%d" % rate
        if piece_s is None and isinstance(cached := self._decoded.get(digest), Sound):
            return (cached,)
        most_s = self._options.max_sound_s if piece_s else min(self._options.max_sound_s, MOST_SOUND_S)
        bounds = int(most_s * rate), int((piece_s or 0) * rate)
        batches, pieces = model.open_sound(data, rate, *bounds), list[Sound]()
        # Each batch is a turn of its own, so that sounds of others go between, and counts once it is held.
        while (opened := await self._opened(partial(next, batches, None), ThreadKind.SLOW)) is not None:
            pieces += map(self._shared, opened)
        if piece_s is None:
            self._decoded.put(digest, pieces[0], len(pieces[0].content))
        return tuple(pieces)

    def _shared(self, item: _Item) -> _Item:
        """Share an equal item of other requests."""
        return cast("_Item", self._held.setdefault(item.digest, item))

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
        kind = _BudgetUsed if isinstance(error, _BudgetUsed) else InvalidRequest
        raise kind(message, param=at, code=error.code or errors.invalid) from None


def without_unsupported(
    params: GenerationParams, *, sees: bool = False, hears: bool = False
) -> GenerationParams:
    """Reject unsupported media in the latest message; replace earlier ones by text. Raises InvalidRequest."""
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
    """`names`: attachments to report as ignored."""
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
    at = source.find(",")
    if at < 0 or not source[:at].lower().replace(" ", "").endswith(";base64"):
        raise InvalidRequest("a data URI must be in base64: 'data:image/png;base64,...'")
    return _of_base64(source, at + 1)


def _of_base64(source: str, first: int = 0) -> bytes:
    if "%" in source:
        source, first = source[first:], 0
        for escape, char in _ESCAPES.items():
            source = source.replace(escape, char).replace(escape.lower(), char)
    data, rest = BytesIO(), ""
    try:
        for start in range(first, len(source), CHARS_AT_ONCE):
            piece = rest + source[start : start + CHARS_AT_ONCE].translate(_AS_STANDARD)
            num_whole = len(piece) // 4 * 4
            data.write(base64.b64decode(piece[:num_whole], validate=True))
            rest = piece[num_whole:]
        data.write(base64.b64decode(rest + "=" * (-len(rest) % 4), validate=True))
    except (binascii.Error, ValueError):
        raise InvalidRequest("it is not valid base64") from None
    return data.getvalue()  # without a copy, as CPython has it


_CHARSET = re.compile(r"data:[^,]{0,200}?;\s*charset\s*=\s*\"?([^;,\"\s]{1,40})", re.IGNORECASE)
_ESCAPES = {"%2B": "+", "%2F": "/", "%3D": "=", "%0D": "", "%0A": "", "%20": ""}
"""Escapes in base64. `unquote` takes 1.1 GB for 15 MB of them."""
_AS_STANDARD = str.maketrans("-_", "+/", " \t\r\n=")
"""URL-safe alphabet, without line ends and padding."""


def _of_file(source: str, folder: Path | None, most_bytes: int) -> bytes:
    if folder is None:
        raise InvalidRequest("'file:' URLs need a server with --media-dir")
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
    raise InvalidRequest("the file does not exist below --media-dir")
