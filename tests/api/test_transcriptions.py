"""Transcriptions of recordings: the form, the request to the model, and each format of the answer."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from inline_snapshot import external_file
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.generation.call import Prompt
from openai_cpu_server.api.transcriptions.render import JoinedText, TranscriptRenderer
from openai_cpu_server.api.transcriptions.schema import RecordingBody
from openai_cpu_server.contract.media import Sound
from openai_cpu_server.contract.messages import FinishReason, PromptProgress
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import GenerationFailed
from openai_cpu_server.http.keys import KeyRing
from openai_cpu_server.http.options import ApiOptions, MediaOptions
from openai_cpu_server.http.parse import parse_form
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from openai_cpu_server.reader.sounds import sound_pieces
from tests.api.calls import FIGURES, PIECES, call, end, scored, text
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, TEMPLATE, api, client, named
from tests.api.talking import error_of, events
from tests.fakes import FAKE_INFO
from tests.fuzz.sounds import FILES, RATE, tone, wav
from tests.reading import model_read_here
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
HEARING = msgspec.structs.replace(FAKE_INFO, sound_rate=RATE)
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
QUIET = np.zeros(RATE)
LONG = wav(np.concatenate([tone(25), QUIET, tone(20)]))
"""46 seconds: two pieces, of which the first ends within the quiet second."""


def hearing(
    engine: FakeEngine,
    options: ApiOptions = OPTIONS,
    keys: KeyRing | None = None,
    pieces: tuple[Sound, ...] = (),
) -> Starlette:
    """Application with a deaf model and a hearing one. `pieces` replace those of any recording."""

    def open_sound(data: bytes, rate: int, most: int, at_once: int) -> Any:
        if pieces:
            return ((piece,) for piece in pieces)
        return iter([tuple(sound_pieces(data, rate=rate, most_samples=most, most_at_once=at_once))])

    model = model_read_here(
        names=("ears",),
        engine=engine,
        template=TEMPLATE,
        tool_format=TOOL_FORMATS["generic"],
        open_sound=open_sound,
    )
    return create_api(ModelRegistry([named(FakeEngine(), "deaf"), model]), options, keys=keys).app


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(HEARING, text=" Hello there. ")


@pytest.fixture
def app(engine: FakeEngine) -> Starlette:
    return hearing(engine)


Form = list[tuple[str, str]]


async def send(
    http: httpx.AsyncClient, path: str = TRANSCRIPTIONS, data: bytes = LONG, /, *fields: tuple[str, str]
) -> httpx.Response:
    parts: list[Any] = [(name, (None, value.encode())) for name, value in fields]
    return await http.post(path, files=[*parts, ("file", ("a.wav", data))])


async def test_json_has_the_text_and_the_usage_of_all_pieces(http: httpx.AsyncClient) -> None:
    transcript = (await send(http)).json()
    assert transcript["text"] == "Hello there. Hello there."
    usage = transcript["usage"]
    assert usage["type"] == "tokens"
    assert usage["input_token_details"]["audio_tokens"] == 8
    assert usage["input_tokens"] == 8 + usage["input_token_details"]["text_tokens"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_token_details"]["audio_seconds"] == 46
    metrics = (await http.get("/metrics")).text
    assert 'ocs_audio_seconds_total{priority="interactive"} 46.0' in metrics
    assert 'ocs_key_audio_seconds_total{key="",model="ears"} 46.0' in metrics


async def test_segments_are_the_pieces_with_their_times(http: httpx.AsyncClient) -> None:
    fields = (("response_format", "verbose_json"), ("timestamp_granularities[]", "segment"))
    transcript = (await send(http, TRANSCRIPTIONS, LONG, *fields, ("language", "de"))).json()
    first, second = transcript["segments"]
    assert (transcript["task"], transcript["language"], transcript["duration"]) == ("transcribe", "de", 46.0)
    assert transcript["usage"] == {"type": "duration", "seconds": 46.0}
    assert (first["start"], second["end"], first["seek"]) == (0.0, 46.0, 0)
    assert 25 < first["end"] == second["start"] < 26
    assert second["seek"] == round(100 * second["start"])
    assert (first["text"], first["avg_logprob"], first["no_speech_prob"]) == ("Hello there.", -1.0, None)
    assert bytes(token - 2 for token in first["tokens"]) == b" Hello there. "
    assert 0 < first["compression_ratio"] < 1
    assert first["temperature"] == 0.0


async def test_texts_and_subtitles(http: httpx.AsyncClient) -> None:
    async def transcript(form: str) -> tuple[str, str]:
        answer = await send(http, TRANSCRIPTIONS, LONG, ("response_format", form))
        return answer.text, answer.headers["content-type"]

    plain, srt, vtt = [await transcript(form) for form in ("text", "srt", "vtt")]
    assert plain == ("Hello there. Hello there.\n", "text/plain; charset=utf-8")
    lines = srt[0].split("\n")
    assert (lines[0], lines[2], lines[3], lines[4]) == ("1", "Hello there.", "", "2")
    assert lines[1].startswith("00:00:00,000 --> 00:00:25,")
    assert lines[5].endswith(" --> 00:00:46,000")
    assert vtt[0].startswith("WEBVTT\n\n00:00:00.000 --> 00:00:25.")
    assert vtt[1] == "text/vtt; charset=utf-8"


async def test_a_stream_has_the_text_in_pieces_and_then_as_a_whole(http: httpx.AsyncClient) -> None:
    answer = await send(http, TRANSCRIPTIONS, LONG, ("stream", "true"), ("include[]", "logprobs"))
    assert answer.text.endswith("data: [DONE]\n\n")
    *deltas, done = events(answer)
    assert {delta["type"] for delta in deltas} == {"transcript.text.delta"}
    assert "".join(str(delta["delta"]) for delta in deltas) == "Hello there. Hello there."
    assert len(deltas) > 10
    assert (done["type"], done["text"]) == ("transcript.text.done", "Hello there. Hello there.")
    scores: Any = done["logprobs"]
    assert len(scores) == 2 * len(" Hello there. ")
    assert scores[1] == {"token": "H", "bytes": [72], "logprob": -1.0}
    usage: Any = done["usage"]
    assert usage["input_token_details"]["audio_tokens"] == 8


async def test_translations_are_the_same_in_english(http: httpx.AsyncClient) -> None:
    body = (await send(http, TRANSLATIONS, FILES["flac"], ("response_format", "verbose_json"))).json()
    assert (body["task"], body["language"], body["text"]) == ("translate", "english", "Hello there.")
    assert body["duration"] == 0.4


def last_prompt(engine: FakeEngine) -> str:
    return bytes(token - 2 for token in engine.submitted[-1].tokens if 2 <= token < 258).decode()


async def test_fields_of_the_form_are_in_the_request() -> None:
    engine = FakeEngine(HEARING, text="Yes.")
    fields = [
        ("prompt", "Ada and Grace"),
        ("keywords[]", "GGUF"),
        ("language", "en"),
        ("temperature", "0.5"),
        ("seed", "7"),
        ("priority", "batch"),
        ("max_completion_tokens", "3"),
    ]
    async with client(hearing(engine)) as http:
        answer = await send(http, "/audio/transcriptions", FILES["ogg"], ("model", "ears"), *fields)
    assert answer.json()["text"] == "Yes"
    (request,) = engine.submitted
    assert (request.sampling.temperature, request.sampling.seed, request.max_tokens) == (0.5, 7, 3)
    assert request.priority is Priority.BATCH
    for words in ("word for word", "Ada and Grace", "may occur: GGUF", "Language: en"):
        assert words in last_prompt(engine)
    assert request.media_items[0].size.num_samples == 6400


async def test_a_model_trained_with_other_instructions_gets_them() -> None:
    engine = FakeEngine(msgspec.structs.replace(HEARING, architecture="lfm2"), text="Yes.")
    async with client(hearing(engine)) as http:
        await send(http, TRANSCRIPTIONS, FILES["ogg"], ("language", "en"))
        assert "Perform ASR." in last_prompt(engine)
        assert "Language: en" in last_prompt(engine)
        assert "word for word" not in last_prompt(engine)
        await send(http, TRANSLATIONS, FILES["ogg"])
        assert "into English" in last_prompt(engine)


async def test_forms_are_taken_or_refused_as_recorded(http: httpx.AsyncClient) -> None:
    """The line after one with fields in `forms.txt` is its answer."""
    record = ""
    for line in Path(__file__).with_name("forms.txt").read_text("utf-8").splitlines():
        record += f"{line}\n" if line.startswith(("[", "#")) else ""
        if line.startswith("["):
            answer = await send(http, TRANSCRIPTIONS, FILES["flac"], *json.loads(line))
            record += f"{answer.status_code} {json.dumps(answer.json())}\n"
    assert record == external_file("forms.txt")


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"", "invalid_audio"), (b"Hello", "invalid_audio"), (LONG, "audio_too_large")],
    ids=["empty", "text", "long"],
)
async def test_a_file_without_sound_or_too_long_is_refused(
    engine: FakeEngine, data: bytes, code: str
) -> None:
    options = ApiOptions(media=MediaOptions(max_sound_s=40))
    async with client(hearing(engine, options)) as http:
        answer = await send(http, TRANSCRIPTIONS, data)
    assert (answer.status_code, error_of(answer)["param"], error_of(answer)["code"]) == (400, "file", code)


async def test_a_form_without_a_file_is_refused(http: httpx.AsyncClient) -> None:
    as_json = await http.post(TRANSCRIPTIONS, json={"file": "a"})
    as_text = await http.post(TRANSCRIPTIONS, files=[("file", (None, b"text"))])
    misnamed = await http.post(TRANSCRIPTIONS, files=[("sound", ("a.wav", LONG))])
    assert [answer.status_code for answer in (as_json, as_text, misnamed)] == [400] * 3
    assert [error_of(answer)["param"] for answer in (as_json, as_text, misnamed)] == [None, "file", "sound"]


@pytest.mark.parametrize("charset", ["utf-7", "unicode_escape", "undefined", "punycode", "zlib", '"UTF-16"'])
async def test_a_form_is_utf_8(http: httpx.AsyncClient, charset: str) -> None:
    kind = f"multipart/form-data; boundary=x; charset={charset}"
    content = b'--x\r\nContent-Disposition: form-data; name="\\ud800+2AA-"\r\n\r\na\r\n--x--\r\n'
    answer = await http.post(TRANSCRIPTIONS, content=content, headers={"content-type": kind})
    assert (answer.status_code, "UTF-8" in answer.text) == (400, True)


async def test_a_server_without_a_hearing_model_refuses_recordings() -> None:
    async with client(api(FakeEngine())) as http:
        answer = await send(http)
    assert (answer.status_code, error_of(answer)["param"]) == (400, "model")
    assert error_of(answer)["message"] == "The model 'fake' cannot hear. No model of this server can."


async def test_leaving_and_timeouts_end_all_pieces(engine: FakeEngine, http: httpx.AsyncClient) -> None:
    engine.goes_on.clear()
    task = asyncio.create_task(send(http))
    await eventually(lambda: len(engine.requests()) == 2)
    task.cancel()
    await eventually(lambda: not engine.requests())
    late = await send(http, TRANSCRIPTIONS, LONG, ("timeout", "0.05"))
    assert (late.status_code, error_of(late)["code"]) == (408, "request_timeout")
    await eventually(lambda: not engine.requests())


async def test_limits_of_keys_count_recordings(engine: FakeEngine, tmp_path: Path) -> None:
    keys = key_ring(tmp_path, ada="tokens_per_minute = 600", bob="tokens_per_minute = 100")
    async with client(hearing(engine, keys=keys)) as http:
        post = partial(http.post, TRANSCRIPTIONS, files=[("file", ("a.wav", LONG))])
        fine, refused = await post(headers=of("ada")), await post(headers=of("bob"))
    assert (fine.status_code, refused.status_code) == (200, 429)
    used = 600 - int(fine.headers["x-ratelimit-remaining-tokens"])
    assert used >= fine.json()["usage"]["input_tokens"]


RENDERER = TranscriptRenderer("json", "transcribe", None, 0.0, shows_logprobs=False)


def prompts_with_sounds(*seconds: float) -> list[Prompt]:
    return [Prompt((0,), sound_s=sound_s) for sound_s in seconds]


async def test_progress_is_that_of_the_next_piece() -> None:
    request = call(*prompts_with_sounds(29, 28))
    stream = RENDERER.stream(request, PIECES)
    half, figures = PromptProgress(total=200, cached=0, processed=100, left_ms=500.0), FIGURES
    (chunk,) = stream.prompt("c-0", half, figures)
    event = msgspec.json.decode(chunk.json)
    assert (event["type"], event["delta"]) == ("transcript.text.delta", "")
    assert event["prompt_progress"]["processed"] == 100
    assert stream.prompt("c-1", half, figures) == ()
    stream.event(end(0))
    assert len(stream.prompt("c-1", half, figures)) == 1


async def test_text_of_a_later_piece_waits_for_the_earlier_ones() -> None:
    request = call(*prompts_with_sounds(29, 28, 3))
    stream = RENDERER.stream(request, PIECES)

    def deltas(*steps: Any) -> list[str]:
        chunks = [chunk for step in steps for chunk in stream.event(step)]
        return [msgspec.json.decode(chunk.json)["delta"] for chunk in chunks]

    assert deltas(text(1, " two"), end(1)) == []
    assert deltas(text(0, " one ")) == ["one"]
    assert deltas(text(0, "and a half"), text(2, "三")) == [" and a half"]
    assert deltas(end(0)) == [" two", "三"]
    assert deltas(text(2, "\n"), text(2, "四 "), end(2)) == ["\n四"]


async def test_a_piece_that_failed_fails_the_call() -> None:
    request = call(*prompts_with_sounds(29, 28))
    stream = RENDERER.stream(request, PIECES)
    with pytest.raises(GenerationFailed, match="broken"):
        stream.event(end(1, FinishReason.ERROR, error="broken"))


async def test_scores_come_with_their_text() -> None:
    request = call(*prompts_with_sounds(29, 3), logprobs=0)
    stream = replace(RENDERER, shows_logprobs=True).stream(request, PIECES)
    steps = [text(1, "b", scored("b", -2)), end(1), text(0, " ", scored(" ", -1)), text(0, "a"), end(0)]
    chunks = [msgspec.json.decode(chunk.json) for step in steps for chunk in stream.event(step)]
    assert [(delta["delta"], [score["token"] for score in delta["logprobs"]]) for delta in chunks] == [
        ("a", [" "]),
        (" b", ["b"]),
    ]


@pytest.mark.parametrize(
    ("content_type", "message"),
    [
        ("multipart/form-data", "The form cannot be read: Missing boundary in multipart."),
        ("multipart/form-data; boundary=b", "The form cannot be read: Invalid multipart data."),
    ],
)
async def test_a_broken_form_is_one_sentence(
    http: httpx.AsyncClient, content_type: str, message: str
) -> None:
    answer = await http.post(TRANSCRIPTIONS, content=b"--a\r\n", headers={"content-type": content_type})
    assert (answer.status_code, error_of(answer)["message"]) == (400, message)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["여러분", "오늘은"], "여러분 오늘은"),
        (["Hello 🎉", "and"], "Hello 🎉 and"),
        (["今日は。", "はい"], "今日は。はい"),
        (["你好", "世界"], "你好世界"),
        (["ｶﾅ", "カナ"], "ｶﾅカナ"),
        (["สวัสดี", "ครับ"], "สวัสดี ครับ"),
        (["So", " it is"], "So it is"),
    ],
)
def test_pieces_are_joined_as_their_script_requires(pieces: list[str], text: str) -> None:
    joined = JoinedText()
    for piece in pieces:
        joined.begin_piece()
        joined.add(piece)
    assert joined.text == text


@pytest.mark.parametrize(
    ("fields", "languages"),
    [
        ([("language", "auto")], (None, None)),
        ([("language", "en_US")], ("en-US", None)),
        ([("language", "zh_Hans_CN.UTF-8")], ("zh-Hans-CN", None)),
        ([("language", "es-419")], ("es-419", None)),
        ([("language", "Português")], ("Português", None)),
        ([("language", "undefined"), ("languages", '["de", "fr_CA"]')], (None, ["de", "fr-CA"])),
    ],
)
def test_languages_are_named_as_clients_name_them(fields: Form, languages: object) -> None:
    body, _ = parse_form(RecordingBody, [("file", "a"), *fields], lenient=False)
    assert (body.language, body.languages) == languages


HOUR = tuple(Sound.of(np.full(160, number / 200, "<f4").tobytes()) for number in range(121))


async def test_an_hour_of_recording_is_one_request_with_progress(engine: FakeEngine) -> None:
    """The pieces are short here because only their number matters."""
    async with client(hearing(engine, pieces=HOUR)) as http:
        whole = await send(http, TRANSCRIPTIONS, LONG, ("response_format", "verbose_json"))
        assert whole.status_code == 200, whole.text
        assert len(whole.json()["segments"]) == 121
        answer = await send(http, TRANSCRIPTIONS, LONG, ("stream", "true"), ("return_progress", "true"))
        assert events(answer)[-1]["text"] == " ".join(["Hello there."] * 121)
        progress = [event["recording_progress"] for event in events(answer) if "recording_progress" in event]
        assert [round(event["processed_s"], 2) for event in progress[:3]] == [0.01, 0.02, 0.03]
        assert progress[-1] == {"total_s": 1.21, "processed_s": 1.21}
        silent = await send(http, TRANSCRIPTIONS, LONG, ("stream", "true"))
        assert not any("recording_progress" in event for event in events(silent))


async def test_a_client_that_leaves_in_the_middle_of_an_hour_frees_all_pieces(
    engine: FakeEngine, tmp_path: Path
) -> None:
    engine.goes_on.clear()
    keys = key_ring(tmp_path, ada="requests_per_minute = 3")
    async with client(hearing(engine, pieces=HOUR, keys=keys)) as http:
        post = partial(http.post, TRANSCRIPTIONS, files=[("file", ("a.wav", LONG))], headers=of("ada"))
        for fields in ({"stream": "true"}, {}):
            task = asyncio.create_task(post(data=fields))
            await eventually(lambda: len(engine.requests()) == 121)
            task.cancel()
            await eventually(lambda: not engine.requests())
        engine.goes_on.set()
        assert (await post()).status_code == 200, "the third of three requests"


@pytest.mark.parametrize(("levels", "status"), [((1, 1, 1), 200), ((1, 2, 3), 503)])
async def test_each_decoded_piece_counts_at_once_and_equal_pieces_count_once(
    engine: FakeEngine, levels: tuple[int, ...], status: int
) -> None:
    """Other requests see the memory of a piece at once. The limit lies between one piece and two."""
    pieces = tuple(Sound.of(np.full(RATE, level / 10, "<f4").tobytes()) for level in levels)
    app = hearing(engine, ApiOptions(media=MediaOptions(max_pixels=2_000)), pieces=pieces)
    async with client(app) as http:
        answer = await send(http)
    assert answer.status_code == status, answer.text


async def test_a_sound_in_a_chat_has_the_maximum_length_of_models(http: httpx.AsyncClient) -> None:
    data = base64.b64encode(wav(np.zeros(1_801 * 100), rate=100)).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    body = {"model": "ears", "messages": [{"role": "user", "content": [part]}]}
    error = error_of(await http.post("/v1/chat/completions", json=body))
    assert (error["code"], error["param"]) == ("audio_too_large", "messages[0].content[0]")
    assert "longer than 1800 seconds" in error["message"]
