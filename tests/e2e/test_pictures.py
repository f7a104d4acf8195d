"""Pictures through the real server, with a tiny model that sees: by all APIs, of all kinds, and hostile."""

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
MOST_PIXELS = 1_000_000


def uri(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def plain(colour: tuple[int, int, int] = RED, size: tuple[int, int] = (100, 60)) -> bytes:
    return encoded(Image.new("RGB", size, colour))


def shown(url: str, said: str = "What is it?", **more: object) -> list[dict[str, object]]:
    parts = [{"type": "text", "text": said}, {"type": "image_url", "image_url": {"url": url, **more}}]
    return [{"role": "user", "content": parts}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, with what it sees with beside it, and pictures of the server's own."""
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
    bounds = ("--max-picture-pixels", str(MOST_PIXELS), "--hang-seconds", "0")
    with ServerProcess("--model", str(folder / "model.gguf"), *options, *bounds) as server:
        yield server


def answer(client: openai.OpenAI, url: str) -> str:
    asked: Any = {"model": "model", "messages": shown(url), "max_tokens": 12, "temperature": 0}
    made = client.chat.completions.create(**asked)
    return made.choices[0].message.content or ""


def refusal(server: ServerProcess, url: str, **more: object) -> dict[str, str]:
    got = server.post(CHAT, json={"messages": shown(url, **more)})
    assert got.status_code == 400, got.text
    assert got.json()["error"]["param"] == "messages[0].content[1]"
    return got.json()["error"]


def test_a_model_that_sees_says_so_and_counts_what_it_sees(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert card.architecture["input_modalities"] == ["text", "image"]  # type: ignore[attr-defined]
    asked: Any = {"model": "model", "messages": shown(uri(plain())), "max_tokens": 4, "temperature": 0}
    first, again = (client.chat.completions.create(**asked) for _ in range(2))
    details = again.usage.prompt_tokens_details
    assert details.image_tokens == 16
    assert details.cached_tokens == again.usage.prompt_tokens - 1
    assert first.choices[0].message.content == again.choices[0].message.content


def test_what_is_seen_decides_the_answer_and_not_how_it_is_encoded(client: openai.OpenAI) -> None:
    """Nor what cameras write around it: EXIF data of wrong kinds, and several photos in one file."""
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


def test_of_low_detail_it_is_shown_smaller(server: ServerProcess, client: openai.OpenAI) -> None:
    """It is the very picture that somebody shows who has made it so small."""
    large = Image.effect_noise((1024, 700), 90).convert("RGB")
    small = large.copy()
    small.thumbnail((512, 512))

    def cached(image: Image.Image, **more: object) -> int:
        asked = shown(uri(encoded(image)), "Look at it. " * 20, **more)
        made = client.chat.completions.create(model="model", messages=asked, max_tokens=1)  # type: ignore[arg-type]
        return made.usage.prompt_tokens - (made.usage.prompt_tokens_details.cached_tokens or 0)

    assert cached(large, detail="low") > 16
    assert cached(small, detail="high") == 1
    assert cached(large) > 16
    assert "low, auto, high, original" in refusal(server, uri(plain()), detail="tiny")["message"]


def _exif(*, tag: int, kind: int) -> bytes:
    """A field with a value of this kind, and one that says that the picture lies on its side."""
    fields = struct.pack(">HHII", tag, kind, 1, 38) + struct.pack(">HHIHH", 0x112, 3, 1, 6, 0)
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 2) + fields + bytes(12)


def test_responses_keep_pictures_and_uploads_are_shown_by_their_ids(client: openai.OpenAI) -> None:
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


def test_messages_and_their_results_and_ollamas_clients_show_pictures(server: ServerProcess) -> None:
    data = base64.b64encode(plain()).decode()
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    use = {"type": "tool_use", "id": "t1", "name": "screenshot", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [block]}
    asked: Any = {
        "model": "model",
        "messages": [
            {"role": "user", "content": [block, {"type": "text", "text": "Look."}]},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
        "tools": [{"name": "screenshot", "input_schema": {"type": "object"}}],
    }
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        counted = client.messages.count_tokens(**asked).input_tokens
        usage = client.messages.create(**asked, max_tokens=4).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0) > 2 * 16
    details = server.post("/api/show", json={"model": "model"}).json()
    assert "vision" in details["capabilities"]
    message = {"role": "user", "content": "What?", "images": [data]}
    chat = {"model": "model", "messages": [message], "stream": False, "options": {"num_predict": 5}}
    assert server.post("/api/chat", json=chat).json()["prompt_eval_count"] > 16


def test_files_are_those_below_the_folder(server: ServerProcess, client: openai.OpenAI, folder: Path) -> None:
    red = answer(client, uri(plain()))
    assert answer(client, "file:red.png") == red
    assert answer(client, (folder / "media" / "red.png").as_uri()) == red
    for url in ("file://red.png", "file:////red.png", "file://./red.png"):
        assert answer(client, url) == red
    outside = ("../secret.png", "//../secret.png", "///secret.png", "//out.png", "out.png", "/etc/passwd")
    for path in (*outside, "", "none.png", "a%00b", "."):
        assert "the file does not exist" in refusal(server, f"file:{path}")["message"], path


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1/x.png", "private"),  # more of them: tests/http/test_fetching.py
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
def test_wrong_pictures_are_told_what_is_wrong(server: ServerProcess, url: str, said: str) -> None:
    assert said in refusal(server, url)["message"]


def test_pictures_of_a_conversation_are_bounded_together_and_the_wrong_one_is_blamed(
    server: ServerProcess,
) -> None:
    """Each of them is a file of some kilobytes and may be shown."""
    many: Any = _large(range(5))["messages"]
    parts: Any = shown(uri(plain()))[0]["content"]
    for content, place, code in (
        (many[0]["content"], 3, "image_too_large"),
        ([*parts, *shown(uri(encoded(Image.new("RGB", (3, 900)))))[0]["content"]], 3, "invalid_image"),
        ([*parts, *shown(uri(plain()[:70]))[0]["content"]], 3, "invalid_image"),
    ):
        body = {"messages": [{"role": "user", "content": content}]}
        got = server.post(CHAT, json=body)
        error = got.json()["error"]
        assert (got.status_code, error["code"]) == (400, code), error
        assert error["param"] == f"messages[0].content[{place}]", error
    got = server.post(CHAT, json=_large(range(3)))
    assert got.status_code == 200, got.text


def test_pictures_of_all_requests_are_bounded_until_they_are_answered(server: ServerProcess) -> None:
    """The engine is stopped meanwhile, so that none is answered; it knows their size already."""

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
    """A conversation with pictures that are as large as they may be."""
    pictures = [encoded(Image.new("L", (1000, MOST_PIXELS // 1000), level)) for level in levels]
    parts = [{"type": "image_url", "image_url": {"url": uri(data)}} for data in pictures]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}


def test_what_nobody_finds_by_chance_is_refused(server: ServerProcess) -> None:
    found = list(oddities())
    answers = attack(
        lambda number: server.post(CHAT, json=_asked(found[number][1])), len(found), others(server)
    )
    for (name, _), got in zip(found, answers, strict=True):
        assert got.status_code == (200 if "can be taken" in name else 400), (name, got.text)
        if got.status_code == 400:
            assert got.json()["error"]["param"] == "messages[0].content[1]", name


@pytest.mark.parametrize("number", [HOSTILE, pytest.param(2_400, marks=pytest.mark.slow)])
def test_hostile_pictures_lose_nothing_but_their_requests(server: ServerProcess, number: int) -> None:
    rng, good, restarts = random.Random(number), good_pictures(), server.status()["restarts"]
    sent = [_asked(spoilt(rng, rng.choice(good))) for _ in range(number)]
    answers = attack(lambda index: server.post(CHAT, json=sent[index]), number, others(server))
    statuses = collections.Counter(got.status_code for got in answers)
    assert statuses.keys() == {200, 400}
    assert min(statuses.values()) > number // 10, "all alike: nothing was tried"
    assert server.status()["restarts"] == restarts


def _asked(data: bytes) -> dict[str, object]:
    return {"messages": shown(uri(data)), "max_tokens": 1, "temperature": 0}


def others(server: ServerProcess) -> Callable[[], list[str]]:
    """Ask about a text, and about a sound picture."""
    text = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    bodies = [{**body, "max_tokens": 4} for body in (text, _asked(plain()))]
    return lambda: [
        server.post(CHAT, json=body).json()["choices"][0]["message"]["content"] for body in bodies
    ]


def earlier(*parts: dict[str, object]) -> list[dict[str, object]]:
    turns = [{"role": "user", "content": [{"type": "text", "text": "Look."}, *parts]}]
    return [*turns, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And now?"}]


def part(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


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
    got = server.post(CHAT, json={"messages": earlier(*parts), "max_tokens": 1})
    assert got.status_code == 200, got.text
    assert len(got.headers["x-ignored-parameters"].split(",")) == num_ignored
    assert got.json()["usage"]["prompt_tokens_details"].get("image_tokens", 0) == 16 * num_shown
    question = {"messages": earlier(*parts)[:1], "max_tokens": 1}
    assert server.post(CHAT, json=question).status_code == 400


def test_pages_that_are_pictures_are_shown_where_they_stand(server: ServerProcess) -> None:
    file = {"file_data": uri(scanned(None, "Typed", None), "pdf"), "filename": "letter.pdf"}
    asked = [{"role": "user", "content": [{"type": "file", "file": file}]}]
    got = server.post(CHAT, json={"messages": asked, "max_tokens": 1})
    assert got.json()["usage"]["prompt_tokens_details"]["image_tokens"] == 32
    prompt = server.post("/apply-template", json={"messages": asked}).json()["prompt"]
    places = [prompt.index(text) for text in ("[Page 1]\n", "<__media__>", "[Page 2]\nTyped", "[Page 3]\n")]
    assert places == sorted(places)
    assert prompt.count("<__media__>") == 2


def test_rows_of_a_picture_are_no_tokens(server: ServerProcess) -> None:
    asked = {"messages": shown(uri(plain()))}
    made = server.post("/tokenize", json=asked).json()
    assert made["tokens"].count(None) == 16
    assert max(token for token in made["tokens"] if token is not None) < 2**31
    assert made["count"] == len(made["tokens"])
    pieces = server.post("/tokenize", json={**asked, "with_pieces": True}).json()["tokens"]
    assert [piece["id"] for piece in pieces] == made["tokens"]
    text = server.post("/detokenize", json={"tokens": made["tokens"]}).json()["prompt"]
    assert "What is it?" in text


def test_a_document_block_shows_the_pictures_within_it(server: ServerProcess) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(plain()).decode()}
    content = [{"type": "text", "text": "It shows:"}, {"type": "image", "source": source}]
    block = {"type": "document", "title": "D", "source": {"type": "content", "content": content}}
    body = {"model": "model", "messages": [{"role": "user", "content": [block]}], "max_tokens": 1}
    got = server.post("/v1/messages", json=body)
    assert got.status_code == 200
    assert "x-ignored-parameters" not in got.headers
    counted = server.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    source["data"] = base64.b64encode(plain(GREEN)).decode()
    again = server.post("/v1/messages", json=body).json()["usage"]
    assert 16 < again["input_tokens"] < counted, "the green one is another picture"
