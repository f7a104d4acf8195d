"""Pictures on the real server with a tiny vision model: all APIs, all formats, and hostile files."""

from __future__ import annotations

import base64
import collections
import contextlib
import json
import random
import shutil
import struct
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from PIL import Image

from tests.documents import scanned
from tests.e2e.serving import attack, num_live
from tests.fuzz.pictures import bomb, encoded, good_pictures, oddities, spoilt
from tests.gates import suspended
from tests.lazy import Lazy
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path, tiny_projector_path
from tests.waiting import wait_until
from tests.wire import connect

anthropic = Lazy("anthropic")

RED, GREEN = (220, 10, 10), (10, 220, 10)
CHAT = "/v1/chat/completions"
HOSTILE = 60
MAX_PIXELS = 1_000_000


def uri(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def plain(colour: tuple[int, int, int] = RED, size: tuple[int, int] = (100, 60)) -> bytes:
    return encoded(Image.new("RGB", size, colour))


def part(url: str, **more: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def question(url: str, text: str = "What is it?", **more: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": [{"type": "text", "text": text}, part(url, **more)]}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a model and its projector, and with pictures of the server's own."""
    folder = tmp_path_factory.mktemp("seeing")
    shutil.copyfile(tiny_model_path(sees=True), folder / "model.gguf")
    shutil.copyfile(tiny_projector_path("gemma3", rows_width=256), folder / "mmproj-f16.gguf")
    shutil.copyfile(tiny_projector_path("gemma3", rows_width=64), folder / "mmproj-of-another.gguf")
    (folder / "media").mkdir()
    (folder / "media" / "red.png").write_bytes(plain())
    (folder / "secret.png").write_bytes(plain())
    (folder / "media" / "out.png").symlink_to(folder / "secret.png")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    options = ("--media-dir", str(folder / "media"), "--allowed-media-domain", "*")
    bounds = ("--max-picture-pixels", str(MAX_PIXELS), "--hang-seconds", "0")
    with ServerProcess("--model", str(folder / "model.gguf"), *options, *bounds) as server:
        yield server


def answer(client: openai.OpenAI, url: str) -> str:
    params: Any = {"model": "model", "messages": question(url), "max_tokens": 12, "temperature": 0}
    completion = client.chat.completions.create(**params)
    return completion.choices[0].message.content or ""


def refusal(server: ServerProcess, url: str, **more: object) -> dict[str, str]:
    response = server.post(CHAT, json={"messages": question(url, **more)})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "messages[0].content[1]"
    return response.json()["error"]


def test_a_vision_model_reports_its_modality_and_counts_image_tokens(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert card.architecture["input_modalities"] == ["text", "image"]  # type: ignore[attr-defined]
    params: Any = {"model": "model", "messages": question(uri(plain())), "max_tokens": 4, "temperature": 0}
    first, second = (client.chat.completions.create(**params) for _ in range(2))
    details = second.usage.prompt_tokens_details
    assert details.image_tokens == 16
    assert details.cached_tokens == second.usage.prompt_tokens - 1
    assert first.choices[0].message.content == second.choices[0].message.content


def test_pixels_decide_the_answer_and_not_their_encoding(client: openai.OpenAI) -> None:
    """Files of cameras may have EXIF data of wrong types, and several photos in one file."""
    image, other = (Image.new("RGB", (100, 60), colour) for colour in (RED, GREEN))
    on_its_side = image.rotate(90, expand=True)
    turned = Image.Exif()
    turned[0x112] = 6
    several: Any = {"save_all": True, "append_images": [other]}
    assert answer(client, uri(plain())) != answer(client, uri(plain(GREEN)))
    assert answer(client, urllib.parse.quote(uri(plain()), safe=":;,")) == answer(client, uri(plain()))
    for same in (
        (
            plain(),
            encoded(image, "BMP"),
            encoded(image, "WEBP", lossless=True),
            encoded(image.convert("P", palette=Image.Palette.ADAPTIVE), "GIF"),
            encoded(image, "GIF", **several),
            encoded(on_its_side, "PNG", exif=turned),
            encoded(Image.new("RGBA", (100, 60), (*RED, 255))),
        ),
        (
            encoded(image, "JPEG"),
            encoded(image, "MPO", **several),
            encoded(on_its_side, "JPEG", exif=_exif(tag=0x100, kind=2)),
            encoded(on_its_side, "JPEG", exif=_exif(tag=0x10E, kind=5)),
        ),
        (
            plain((255, 255, 255)),
            encoded(Image.new("RGBA", (100, 60), (*RED, 0))),
            encoded(Image.new("I;16", (100, 60), 65535)),
            encoded(Image.new("CMYK", (100, 60)), "JPEG"),
        ),
    ):
        assert len({answer(client, uri(data)) for data in same}) == 1


def test_low_detail_shrinks_a_picture(server: ServerProcess, client: openai.OpenAI) -> None:
    """The result equals the picture that a client has shrunk itself."""
    large = Image.effect_noise((1024, 700), 90).convert("RGB")
    small = large.copy()
    small.thumbnail((512, 512))

    def num_computed(image: Image.Image, **more: object) -> int:
        messages = question(uri(encoded(image)), "Look at it. " * 20, **more)
        completion = client.chat.completions.create(model="model", messages=messages, max_tokens=1)  # type: ignore[arg-type]
        return completion.usage.prompt_tokens - (completion.usage.prompt_tokens_details.cached_tokens or 0)

    assert num_computed(large, detail="low") > 16
    assert num_computed(small, detail="high") == 1
    assert num_computed(large) > 16
    assert "low, auto, high, original" in refusal(server, uri(plain()), detail="tiny")["message"]


def _exif(*, tag: int, kind: int) -> bytes:
    """Return EXIF data with a value of this type, and an orientation that turns the picture by 90 degrees."""
    fields = struct.pack(">HHII", tag, kind, 1, 38) + struct.pack(">HHIHH", 0x112, 3, 1, 6, 0)
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 2) + fields + bytes(12)


def test_responses_store_pictures_and_uploads_are_named_by_id(client: openai.OpenAI) -> None:
    file = client.files.create(file=("red.png", plain()), purpose="vision")
    ask: Any = partial(client.responses.create, model="model", max_output_tokens=6)
    text = {"type": "input_text", "text": "What is it? " * 20}
    for source in ({"image_url": uri(plain())}, {"file_id": file.id}):
        part = {"type": "input_image", "detail": "low", **source}
        first = ask(input=[{"role": "user", "content": [text, part]}])
        assert first.usage.input_tokens_details.image_tokens == 16
        later = ask(previous_response_id=first.id, input="And now?").usage
        assert later.input_tokens_details.image_tokens == 16
        assert later.input_tokens_details.cached_tokens >= first.usage.input_tokens - 8
        items: Any = client.responses.input_items.list(first.id).data
        assert items[0].content[1].type == "input_image"
    client.files.delete(file.id)
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(input=[{"role": "user", "content": [text, part]}])
    assert refusal.value.code == "file_not_found"


def test_messages_tool_results_and_ollamas_clients_take_pictures(server: ServerProcess) -> None:
    data = base64.b64encode(plain()).decode()
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    use = {"type": "tool_use", "id": "t1", "name": "screenshot", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [block]}
    params: Any = {
        "model": "model",
        "messages": [
            {"role": "user", "content": [block, {"type": "text", "text": "Look."}]},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
        "tools": [{"name": "screenshot", "input_schema": {"type": "object"}}],
    }
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        counted = client.messages.count_tokens(**params).input_tokens
        usage = client.messages.create(**params, max_tokens=4).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0) > 2 * 16
    details = server.post("/api/show", json={"model": "model"}).json()
    assert "vision" in details["capabilities"]
    message = {"role": "user", "content": "What?", "images": [data]}
    chat = {"model": "model", "messages": [message], "stream": False, "options": {"num_predict": 5}}
    assert server.post("/api/chat", json=chat).json()["prompt_eval_count"] > 16


def test_only_files_below_the_folder_are_read(
    server: ServerProcess, client: openai.OpenAI, folder: Path
) -> None:
    red = answer(client, uri(plain()))
    assert answer(client, "file:red.png") == red
    assert answer(client, (folder / "media" / "red.png").as_uri()) == red
    for url in ("file://red.png", "file:////red.png", "file://./red.png"):
        assert answer(client, url) == red
    outside = ("../secret.png", "//../secret.png", "///secret.png", "//out.png", "out.png", "/etc/passwd")
    for path in (*outside, "", "none.png", "a%00b", "."):
        assert "the file does not exist" in refusal(server, f"file:{path}")["message"], path


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1/x.png", "private"),  # more cases: tests/http/test_fetching.py
        ("http://localhost/x.png", "private"),
        ("nonsense", "data URI"),
        ("ftp://example.org/x.png", "data URI"),
        ("http://user:pass@example.org/x.png", "not a URL"),
        ("http://[/x.png", "not a URL"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,%%%", "base64"),
        ("data:image/png;base64," + "%41" * 5_000, "base64"),
        ("data:image/png;base64,", "not a picture"),
        (uri(b"<svg></svg>", "svg+xml"), "not a picture"),
        (uri(plain()[:70]), "damaged"),
        (uri(encoded(Image.new("RGB", (3, 900)))), "narrow"),
    ],
)
def test_the_error_names_the_fault_of_a_picture(server: ServerProcess, url: str, reason: str) -> None:
    assert reason in refusal(server, url)["message"]


def test_pictures_of_a_conversation_are_bounded_and_the_error_names_the_wrong_one(
    server: ServerProcess,
) -> None:
    """A large picture has some kilobytes and is accepted alone."""
    many: Any = _large(range(5))["messages"]
    parts: Any = question(uri(plain()))[0]["content"]
    for content, place, code in (
        (many[0]["content"], 3, "image_too_large"),
        ([*parts, *question(uri(encoded(Image.new("RGB", (3, 900)))))[0]["content"]], 3, "invalid_image"),
        ([*parts, *question(uri(plain()[:70]))[0]["content"]], 3, "invalid_image"),
    ):
        body = {"messages": [{"role": "user", "content": content}]}
        response = server.post(CHAT, json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, code), error
        assert error["param"] == f"messages[0].content[{place}]", error
    response = server.post(CHAT, json=_large(range(3)))
    assert response.status_code == 200, response.text


def test_pictures_of_all_requests_are_bounded_until_they_are_answered(server: ServerProcess) -> None:
    """The engine is suspended, so that no request is answered. It has already reported the pictures' size."""

    def status(*levels: int) -> int:
        return server.post(CHAT, json=_large(levels)).status_code

    assert status(100) == 200
    with suspended(server.engine.pid), contextlib.ExitStack() as held:
        for number in range(4):
            body = json.dumps(_large(range(10 + 3 * number, 13 + 3 * number))).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
            held.enter_context(connect(server)).sendall(head.encode() + body)
            wait_until(lambda number=number: num_live(server) == number + 1)  # type: ignore[misc]
        refused = server.post(CHAT, json=_large([101]))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5"), refused.text
    text = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert server.post(CHAT, json=text).status_code == 200
    wait_until(lambda: status(100) == 200)


def _large(levels: Iterable[int]) -> dict[str, object]:
    """Return a conversation with pictures of the maximum size."""
    pictures = [encoded(Image.new("L", (1000, MAX_PIXELS // 1000), level)) for level in levels]
    parts = [part(uri(data)) for data in pictures]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}


def test_odd_pictures_are_refused(server: ServerProcess) -> None:
    cases = list(oddities())
    answers = attack(
        lambda number: server.post(CHAT, json=_body(cases[number][1])), len(cases), make_probe(server)
    )
    for (name, _), response in zip(cases, answers, strict=True):
        assert response.status_code == (200 if "can be taken" in name else 400), (name, response.text)
        if response.status_code == 400:
            assert response.json()["error"]["param"] == "messages[0].content[1]", name


@pytest.mark.parametrize("number", [HOSTILE, pytest.param(2_400, marks=pytest.mark.slow)])
def test_hostile_pictures_affect_only_their_requests(server: ServerProcess, number: int) -> None:
    rng, good, restarts = random.Random(number), good_pictures(), server.status()["restarts"]
    bodies = [_body(spoilt(rng, rng.choice(good))) for _ in range(number)]
    answers = attack(lambda index: server.post(CHAT, json=bodies[index]), number, make_probe(server))
    statuses = collections.Counter(response.status_code for response in answers)
    assert statuses.keys() == {200, 400}
    assert min(statuses.values()) > number // 10, "almost all pictures have the same status"
    assert server.status()["restarts"] == restarts


def _body(data: bytes) -> dict[str, object]:
    return {"messages": question(uri(data)), "max_tokens": 1, "temperature": 0}


def make_probe(server: ServerProcess) -> Callable[[], list[str]]:
    """Return a function that sends a text and a good picture, and returns both answers."""
    text = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    bodies = [{**body, "max_tokens": 4} for body in (text, _body(plain()))]
    return lambda: [
        server.post(CHAT, json=body).json()["choices"][0]["message"]["content"] for body in bodies
    ]


def earlier(*parts: dict[str, object]) -> list[dict[str, object]]:
    turns = [{"role": "user", "content": [{"type": "text", "text": "Look."}, *parts]}]
    return [*turns, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And now?"}]


@pytest.mark.parametrize(
    ("parts", "num_ignored", "num_shown"),
    [
        ([part(uri(plain()[:70]))], 1, 0),
        ([part(uri(b"no picture")), part(uri(plain()))], 1, 1),
        ([part("file:gone.png")], 1, 0),
        ([part("http://127.0.0.1:1/expired.png")], 1, 0),
        ([part(uri(encoded(Image.new("RGB", (3, 900)))))], 1, 0),
        ([part(uri(bomb(side=20_000)))], 1, 0),
        ([part(uri(encoded(Image.new("L", (20, 20 + n))))) for n in range(33)], 8, 25),
        ([part(uri(encoded(Image.new("L", (1000, 1000), level)))) for level in range(4)], 4, 0),
    ],
    ids=["damaged", "none", "gone", "expired", "narrow", "bomb", "too many", "too many pixels"],
)
def test_pictures_of_earlier_turns_never_stop_a_conversation(
    server: ServerProcess, parts: list[dict[str, object]], num_ignored: int, num_shown: int
) -> None:
    response = server.post(CHAT, json={"messages": earlier(*parts), "max_tokens": 1})
    assert response.status_code == 200, response.text
    assert len(response.headers["x-ignored-parameters"].split(",")) == num_ignored
    assert response.json()["usage"]["prompt_tokens_details"].get("image_tokens", 0) == 16 * num_shown
    body = {"messages": earlier(*parts)[:1], "max_tokens": 1}
    assert server.post(CHAT, json=body).status_code == 400


def test_scanned_pages_are_shown_in_their_places(server: ServerProcess) -> None:
    file = {"file_data": uri(scanned(None, "Typed", None), "pdf"), "filename": "letter.pdf"}
    messages = [{"role": "user", "content": [{"type": "file", "file": file}]}]
    response = server.post(CHAT, json={"messages": messages, "max_tokens": 1})
    assert response.json()["usage"]["prompt_tokens_details"]["image_tokens"] == 32
    prompt = server.post("/apply-template", json={"messages": messages}).json()["prompt"]
    places = [prompt.index(text) for text in ("[Page 1]\n", "<__media__>", "[Page 2]\nTyped", "[Page 3]\n")]
    assert places == sorted(places)
    assert prompt.count("<__media__>") == 2


def test_placeholders_of_a_picture_have_no_token_ids(server: ServerProcess) -> None:
    body = {"messages": question(uri(plain()))}
    tokenized = server.post("/tokenize", json=body).json()
    assert tokenized["tokens"].count(None) == 16
    assert max(token for token in tokenized["tokens"] if token is not None) < 2**31
    assert tokenized["count"] == len(tokenized["tokens"])
    pieces = server.post("/tokenize", json={**body, "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == tokenized["tokens"]
    text = server.post("/detokenize", json={"tokens": tokenized["tokens"]}).json()["prompt"]
    assert "What is it?" in text


def test_a_document_block_shows_the_pictures_within_it(server: ServerProcess) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(plain()).decode()}
    content = [{"type": "text", "text": "It shows:"}, {"type": "image", "source": source}]
    block = {"type": "document", "title": "D", "source": {"type": "content", "content": content}}
    body = {"model": "model", "messages": [{"role": "user", "content": [block]}], "max_tokens": 1}
    response = server.post("/v1/messages", json=body)
    assert response.status_code == 200
    assert "x-ignored-parameters" not in response.headers
    counted = server.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    source["data"] = base64.b64encode(plain(GREEN)).decode()
    again = server.post("/v1/messages", json=body).json()["usage"]
    assert 16 < again["input_tokens"] < counted, "the green picture is not cached"
