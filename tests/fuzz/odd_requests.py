"""Requests that are wrong outside a JSON body: paths, query strings, headers, uploads."""

from __future__ import annotations

from random import Random
from typing import Any
from urllib.parse import quote_from_bytes

import httpx

from tests.access_table import ENDLESS
from tests.fuzz.sounds import FILES

WORDS = [
    *b"0 -1 1 5 1e9 NaN None asc batch %00 % ../../etc/passwd a/b//c/. {{7*7}} batch_1 chatcmpl-1/0".split(),
    *(b"", b"\x00", b"\xff\xfe", b"\xc3\x28", "é\u2028😀".encode(), b"' OR 1=1 --"),
    *(b"9" * 400, b"file-" + b"x" * 24, b"x" * 5000),
]
LATIN = [word for word in WORDS if not set(word) & set(b"\x00\r\n") and word.strip() == word]
HEADERS = b"""x-priority x-request-id authorization x-api-key origin content-type accept accept-encoding
traceparent tracestate range if-none-match expect cookie x-forwarded-for""".split()
RECORDINGS = ("/v1/audio/transcriptions", "/v1/audio/translations")
RECORDING_FIELDS = b"""model language prompt stream temperature seed include[] logit_bias[0] a[b [] stop[]
file[x] response_format timestamp_granularities[] chunking_strategy[type] keywords metadata[a] max_tokens
timeout priority grammar""".split()
BODY = b'{"model":"m","prompt":"a","max_tokens":1}'
ROW = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":' + BODY + b"}"


class OddRequests:
    """Random requests to the operations of `/openapi.json`."""

    def __init__(self, url: str, document: dict[str, Any], random: Random) -> None:
        self._url = url
        self._random = random
        self._operations = [
            (method.upper(), path, [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"])
            for path, item in document["paths"].items()
            if path != ENDLESS
            for method, operation in item.items()
            if method in ("get", "delete") or path.endswith("/cancel")
        ]

    def without_body(self) -> httpx.Request:
        random = self._random
        method, path, names = random.choice(self._operations)
        while "{" in path:
            before, _, rest = path.partition("{")
            path = before + quote_from_bytes(random.choice(WORDS), safe="/%'") + rest.partition("}")[2]
        if random.random() < 0.1:
            method = random.choice(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"])
        query = "&".join(self._pair(names) for _ in range(random.choice((0, 0, 1, 1, 2, 30))))
        url = self._url + path + ("?" + query if query else "")
        return httpx.Request(method, url, headers=self._headers())

    def upload(self) -> httpx.Request:
        random = self._random
        boundary = random.choice([b"b", b"x" * 70, b"-", b"'()+_,-.:"])
        is_recording = random.random() < 1 / 3
        whole = self._recording() if is_recording else self._parts()
        parts = [part for part in whole if random.random() < 0.95]
        if random.random() < 0.2:
            odd = self._part(random.choice(WORDS), random.choice(WORDS))
            parts.insert(random.randrange(len(parts) + 1), odd)
        body = b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts)
        body += b"--" + boundary + random.choice([b"--\r\n", b"--\r\n", b"--\r\n", b"", b"--", b"\r\n"])
        if random.random() < 0.3:
            at = random.randrange(len(body))
            body = random.choice([body[:at], body[:at] + random.randbytes(9) + body[at:], body[at:], b""])
        kind = b"multipart/form-data; boundary=" + random.choice([*[boundary] * 9, b'"b', b"", b"z"])
        headers = [(b"content-type", kind)] if random.random() < 0.95 else []
        path = random.choice(RECORDINGS) if is_recording else "/v1/files"
        return httpx.Request("POST", self._url + path, content=body, headers=headers)

    def _pair(self, names: list[str]) -> str:
        random = self._random
        name = random.choice(names).encode() if names and random.random() < 0.8 else random.choice(WORDS)
        sign, value = random.choice(["=", "=", "=", "", "=="]), random.choice(WORDS)
        return quote_from_bytes(name) + sign + quote_from_bytes(value)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        random = self._random
        names = [random.choice(HEADERS) for _ in range(random.choice((0, 1, 1, 2, 40)))]
        return [(name, random.choice(LATIN)) for name in names]

    def _parts(self) -> list[bytes]:
        random = self._random
        rows = random.choice([ROW, ROW, ROW + b"\n" + ROW, b"", b"\n\n", b"{}", b"\xff" * 99, b"x" * 100_000])
        name = random.choice([b"rows.jsonl", b"rows.jsonl", *WORDS]).replace(b'"', b"")
        file = b'content-disposition: form-data; name="file"; filename="' + name + b'"\r\n\r\n' + rows
        parts = [file, self._part(b"purpose", random.choice([*WORDS, *[b"batch"] * 2 * len(WORDS)]))]
        if random.random() < 0.2:
            parts.append(self._part(b"expires_after[anchor]", random.choice([b"created_at", *WORDS])))
            parts.append(self._part(b"expires_after[seconds]", random.choice([b"3600", b"3599", *WORDS])))
        return parts

    def _recording(self) -> list[bytes]:
        random = self._random
        sound = random.choice([FILES["flac"], b"", random.randbytes(99)])
        file = b'content-disposition: form-data; name="file"; filename="a"\r\n\r\n' + sound
        names = random.choices(RECORDING_FIELDS, k=random.choice((0, 1, 2, 9)))
        return [file, *(self._part(name, random.choice(WORDS)) for name in names)]

    def _part(self, name: bytes, value: bytes) -> bytes:
        return b'content-disposition: form-data; name="' + name.replace(b'"', b"") + b'"\r\n\r\n' + value
