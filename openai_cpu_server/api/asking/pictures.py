"""Pictures that a client shows: fetched, decoded by a reader, and measured, before a prompt is made."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import urllib.parse
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec

from openai_cpu_server.api.asking.ask import Ask, AskedConversation, AskedMessage, AskedPicture, SeenPicture
from openai_cpu_server.api.asking.body import UPLOAD
from openai_cpu_server.contract.media import MediaShape, Picture
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

_INVALID = "invalid_image"
_PIXEL_BYTES = 3
_CONVERSATIONS = 4
"""The pictures of so many conversations that show as much as they may are in memory at a time."""
_AGAIN_S = 5

ReadUpload = Callable[[str, str, int], Awaitable[bytes]]
"""What an owner has uploaded under this id; of a larger file so many bytes, and one more. Raises
JobObjectNotFound."""


class PictureFinder:
    """Its methods belong to one event loop's thread."""

    def __init__(self, options: MediaOptions, upload: ReadUpload | None) -> None:
        """`upload`: None, nothing can be uploaded here."""
        self._options = options
        self._upload = upload
        self._decoded: OrderedDict[bytes, Picture] = OrderedDict()
        """By a digest of the bytes: clients send all pictures of a conversation again in each turn."""
        self._kept_bytes = 0
        self._most_kept_bytes = _PIXEL_BYTES * options.max_pixels
        self._held: WeakValueDictionary[str, Picture] = WeakValueDictionary()
        """By digest: those above, and those of requests that are not answered yet."""

    async def seen(self, ask: Ask, model: ServedModel, owner: str) -> Ask:
        """The ask with its pictures as the model takes them; told in words where it takes none. `owner`: of
        uploads. Raises InvalidRequest, EngineUnavailable."""
        if not ask.pictures:
            return ask
        info = model.engine.info
        if info is None or not info.sees:
            return unseen(ask)
        told = {one.mark: one for one in ask.pictures}
        if len(told) > self._options.max_pictures:
            most = self._options.max_pictures
            message = f"A conversation may show {most} pictures, and this one shows {len(told)}."
            raise wrong(message, ask.pictures[0].at)
        pictures = await self._pictures(list(told.values()), model, owner)
        shapes = await asyncio.gather(
            *(self._shape(one, picture, model) for one, picture in zip(told.values(), pictures, strict=True))
        )
        seen = tuple(map(SeenPicture, told, pictures, shapes))
        return msgspec.structs.replace(ask, pictures=(), seen=seen)

    async def _pictures(self, asked: Sequence[AskedPicture], model: ServedModel, owner: str) -> list[Picture]:
        """Small files may have many pixels: they are counted as they come."""
        most = left = self._options.max_pixels_together
        pictures = list[Picture]()
        for one in asked:
            pictures.append(await self._picture(one, model, owner))
            left -= pictures[-1].size.width * pictures[-1].size.height
            if left < 0:
                message = f"The pictures of a conversation may have {most} pixels together."
                raise InvalidRequest(message, param=one.at, code="image_too_large")
        return pictures

    async def _shape(self, asked: AskedPicture, picture: Picture, model: ServedModel) -> MediaShape:
        try:
            (shape,) = await model.engine.shapes([picture.size])
        except InvalidRequest as error:
            raise _at(asked, str(error), error.code) from None
        return shape

    async def _picture(self, asked: AskedPicture, model: ServedModel, owner: str) -> Picture:
        try:
            data = await self._bytes(asked, owner)
            if len(data) > self._options.max_bytes:
                what = f"a picture may have {self._options.max_bytes} bytes, and this one has {len(data)}"
                raise InvalidRequest(what, code="image_too_large")
            return await self._opened(data, model)
        except DeadlyInput:
            raise _at(asked, "the picture is damaged") from None
        except InvalidRequest as error:
            raise _at(asked, str(error), error.code) from None

    async def _bytes(self, asked: AskedPicture, owner: str) -> bytes:
        source, options = asked.source, self._options
        if source.startswith(UPLOAD):
            if self._upload is None:
                raise InvalidRequest("this server keeps no files, for it has no jobs database (--jobs-db)")
            try:
                return await self._upload(owner, source.removeprefix(UPLOAD), options.max_bytes)
            except JobObjectNotFound as error:
                raise InvalidRequest(str(error), code="file_not_found") from None
        scheme = source[:16].partition(":")[0].lower()
        if scheme == "data":
            return await in_thread(partial(_of_data_uri, source), is_slow=True)
        if scheme in ("http", "https"):
            return await fetch(Fetched(source, options.domains, options.max_bytes, options.fetch_timeout_s))
        if scheme == "file":
            return await asyncio.to_thread(_of_file, source, options.folder, options.max_bytes)
        raise InvalidRequest("expected a data URI in base64, or a URL", code=_INVALID)

    async def _opened(self, data: bytes, model: ServedModel) -> Picture:
        digest = hashlib.blake2b(data, digest_size=32).digest()
        if (known := self._decoded.get(digest)) is not None:
            self._decoded.move_to_end(digest)
            return known
        self._require_memory()
        opening = partial(model.open_picture, data, self._options.max_pixels)
        opened = await in_thread(opening, is_slow=True)
        picture = self._held.setdefault(opened.digest, opened)
        self._keep(digest, picture)
        return picture

    def _require_memory(self) -> None:
        """Raises EngineUnavailable."""
        held_bytes = sum(len(picture.rgb) for picture in self._held.values())
        if held_bytes >= _CONVERSATIONS * _PIXEL_BYTES * self._options.max_pixels_together:
            raise EngineUnavailable("Other requests show too many pictures; try again later.", _AGAIN_S)

    def _keep(self, digest: bytes, picture: Picture) -> None:
        if digest in self._decoded:
            return
        self._decoded[digest] = picture
        self._kept_bytes += len(picture.rgb)
        while self._kept_bytes > self._most_kept_bytes:
            self._kept_bytes -= len(self._decoded.popitem(last=False)[1].rgb)


def _at(asked: AskedPicture, why: str, code: str | None = None) -> InvalidRequest:
    message = f"'{asked.at}': {why.rstrip('.')}."
    return InvalidRequest(message, param=asked.at, code=code or _INVALID)


def unseen(ask: Ask) -> Ask:
    """What is said to a model without eyes. Who asks about a picture is told that it is not seen; one of
    before does not stop a conversation. Raises InvalidRequest."""
    for one in ask.pictures:
        if one.refusal is not None:
            raise InvalidRequest(one.refusal, param=one.refused_at, code="unsupported_content")
    assert isinstance(ask.prompt, AskedConversation), "other prompts show nothing"
    words = {one.mark: f"[{one.lack}]" for one in ask.pictures}
    messages = [_in_words(message, words) for message in ask.prompt.messages]
    names = Ignored((*ask.ignored.names, *(one.name for one in ask.pictures)))
    prompt = msgspec.structs.replace(ask.prompt, messages=messages)
    return msgspec.structs.replace(ask, prompt=prompt, pictures=(), ignored=names)


def _in_words(message: AskedMessage, words: dict[str, str]) -> AskedMessage:
    content = message.fields.get("content")
    if isinstance(content, list):
        told: object = [{**part, "text": _replaced(part["text"], words)} for part in content]
    else:
        told = _replaced(content, words)
    return msgspec.structs.replace(message, fields={**message.fields, "content": told})


def _replaced(text: object, words: dict[str, str]) -> object:
    if not isinstance(text, str):
        return text
    for mark, said in words.items():
        text = text.replace(mark, said)
    return text


def _of_data_uri(source: str) -> bytes:
    head, comma, body = source.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidRequest("a data URI must be in base64: 'data:image/png;base64,...'", code=_INVALID)
    if "%" in body:
        body = urllib.parse.unquote(body)
    body = body.translate(_AS_STANDARD)
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest("this is no base64", code=_INVALID) from None


_AS_STANDARD = str.maketrans("-_", "+/", " \t\r\n=")
"""The alphabet for URLs, too, and lines as MIME has them; padding is added anew."""


def _of_file(source: str, folder: Path | None, most_bytes: int) -> bytes:
    if folder is None:
        raise InvalidRequest("files of the server are not shown: it was started without --media-dir")
    path = Path(urllib.parse.unquote(urllib.parse.urlsplit(source).path))
    try:
        real = (path if path.is_absolute() else folder / path).resolve(strict=True)
        if not real.is_relative_to(folder.resolve()) or not real.is_file():
            raise InvalidRequest("there is no such file below --media-dir")
        with real.open("rb") as file:
            return file.read(most_bytes + 1)
    except (OSError, ValueError, RuntimeError):
        raise InvalidRequest("there is no such file below --media-dir") from None
