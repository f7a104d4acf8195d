"""Sounds on the real server with a tiny audio model: all APIs, all formats, and hostile files."""

from __future__ import annotations

import base64
import random
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import openai
import pytest
from openai.types.audio import TranscriptionTextDeltaEvent, TranscriptionTextDoneEvent

from tests.e2e.serving import attack
from tests.fuzz.sounds import FILES, RATE, mp3_frames, spoilt, tone, wav
from tests.reader.test_sounds import encoded
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path, tiny_projector_path

Json = dict[str, Any]
HOSTILE = 16
MAX_SECONDS = 100


def question(data: bytes, text: str = "What is it?", kind: str = "wav") -> list[Json]:
    sound = {"data": base64.b64encode(data).decode(), "format": kind}
    parts = [{"type": "input_audio", "input_audio": sound}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("hearing")
    shutil.copyfile(tiny_model_path(sees=True), folder / "model.gguf")
    shutil.copyfile(tiny_projector_path("ultravox", rows_width=256), folder / "mmproj-f16.gguf")
    (folder / "media").mkdir()
    (folder / "media" / "tone.wav").write_bytes(wav(tone(3)))
    options = ("--media-dir", str(folder / "media"), "--max-sound-seconds", str(MAX_SECONDS))
    with ServerProcess("--model", str(folder / "model.gguf"), *options) as server:
        yield server


def send_chat(server: ServerProcess, messages: list[Json], **more: object) -> httpx.Response:
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, **more}
    return server.post("/v1/chat/completions", json=body)


def answer(server: ServerProcess, messages: list[Json]) -> str:
    response = send_chat(server, messages)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


def test_an_audio_model_reports_its_modality_and_counts_audio_tokens(client: openai.OpenAI) -> None:
    (card,) = client.models.list().data
    assert card.architecture["input_modalities"] == ["text", "audio"]  # type: ignore[attr-defined]
    params: Any = {"model": "model", "messages": question(wav(tone(2))), "max_tokens": 8, "temperature": 0}
    first, second = (client.chat.completions.create(**params) for _ in range(2))
    details = second.usage.prompt_tokens_details
    assert details.audio_tokens
    assert details.audio_seconds == 2
    assert details.cached_tokens == second.usage.prompt_tokens - 1
    assert first.choices[0].message.content == second.choices[0].message.content


def test_samples_decide_the_answer_and_not_their_encoding(server: ServerProcess) -> None:
    """Base64 may have line ends and escapes, and lack its padding."""
    sound = wav(tone(3))
    low = answer(server, question(sound))
    noise = np.random.default_rng(0).normal(0, 0.2, 3 * RATE)
    assert answer(server, question(wav(noise))) != low
    data = base64.b64encode(sound).decode()
    text = {"type": "text", "text": "What is it?"}
    for part in (
        *(
            {"type": "audio_url", "audio_url": {"url": url}}
            for url in (f"data:audio/wav;base64,{data}", "file:tone.wav")
        ),
        *(
            {"type": "input_audio", "input_audio": {"data": encoding, "format": "wav"}}
            for encoding in (
                f"data:audio/x-wav;base64,{data}",
                base64.encodebytes(sound).decode(),
                base64.urlsafe_b64encode(sound).decode().rstrip("="),
                f"data:audio/wav;base64,{quote(base64.encodebytes(sound))}",
            )
        ),
    ):
        assert answer(server, [{"role": "user", "content": [part, text]}]) == low, part


def test_an_audio_model_refuses_pictures_and_ignores_earlier_ones(server: ServerProcess) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eHg="}}
    refused = send_chat(server, [{"role": "user", "content": [picture]}])
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "unsupported_content"
    earlier = [{"role": "user", "content": [picture]}, {"role": "assistant", "content": "Nice."}]
    response = send_chat(server, [*earlier, *question(wav(tone(1)))])
    assert response.status_code == 200
    assert response.headers["x-ignored-parameters"] == "messages[0].content[0] (image_url)"
    assert response.json()["usage"]["prompt_tokens_details"]["audio_tokens"] > 0


def send_sound(server: ServerProcess, number: int, data: bytes) -> httpx.Response:
    """Send every third sound to be transcribed."""
    if number % 3:
        return send_chat(server, question(data))
    form = {"file": ("a.wav", data), "max_completion_tokens": (None, "8")}
    return server.post("/v1/audio/transcriptions", files=form)


SHORT = {"max_completion_tokens": 6, "ignore_eos": True}
TWO_PIECES = wav(np.concatenate([tone(20), np.zeros(RATE), tone(12, 660)]))


def test_a_recording_is_transcribed_whole_and_as_a_stream(client: openai.OpenAI) -> None:
    """The model writes the same nonsense each time. All formats: tests/api/test_transcriptions.py."""
    transcribe = partial(client.audio.transcriptions.create, model="model", file=("a.wav", TWO_PIECES))
    whole = transcribe(response_format="verbose_json", timestamp_granularities=["segment"], extra_body=SHORT)
    assert (whole.duration, whole.usage.seconds) == (33, 33)  # type: ignore[union-attr]
    first, second = whole.segments or ()
    assert 20 < first.end == second.start < 21
    assert second.end == 33
    assert first.avg_logprob < 0
    events = list(transcribe(extra_body=SHORT, include=["logprobs"], stream=True))
    done = events[-1]
    assert isinstance(done, TranscriptionTextDoneEvent)
    deltas = [event.delta for event in events if isinstance(event, TranscriptionTextDeltaEvent)]
    assert len(deltas) == len(events) - 1 > 2
    assert "".join(deltas) == done.text == whole.text
    assert len(done.logprobs or ()) == 12
    assert done.usage.input_token_details.audio_tokens == 2 * 187  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [HOSTILE, pytest.param(1200, marks=pytest.mark.slow)])
def test_hostile_sounds_affect_only_their_requests(server: ServerProcess, number: int) -> None:
    rng = random.Random(number)
    float_samples = wav(tone(0.3), kind="<f4", rate=44_100, channels=2)
    good = [wav(tone(0.3)), float_samples, mp3_frames(12), *FILES.values()]
    sounds = [spoilt(rng.choice(good), rng) for _ in range(number)]
    probe = question(wav(tone(1)), "Say something calm.")
    answers = attack(
        lambda index: send_sound(server, index, sounds[index]), number, lambda: answer(server, probe)
    )
    codes = {
        (response.status_code, response.json()["error"]["code"] if response.status_code != 200 else "")
        for response in answers
    }
    assert codes <= {(200, ""), (400, "invalid_audio"), (400, "audio_too_large")}
    assert len(codes) >= 2


def test_the_sandbox_decodes_recordings_of_browsers(server: ServerProcess) -> None:
    """Props and Ollama's routes report that the model takes sounds."""
    data = encoded("webm", "libopus", 48_000)
    form = {"language": "pt_BR.UTF-8", "temperature": "", "stream": "False"}
    form |= {"response_format": "verbose_json"}
    response = server.post("/v1/audio/transcriptions", data=form, files={"file": ("a.webm", data)})
    assert response.status_code == 200, response.text
    assert response.json()["duration"] == pytest.approx(1, abs=0.1)
    assert response.json()["language"] == "pt-BR"
    assert server.get("/props").json()["modalities"] == {"vision": False, "audio": True, "video": False}
    assert "audio" in server.post("/api/show", json={"model": "model"}).json()["capabilities"]
    for sound in (wav(tone(1)), data, encoded("ipod", "aac", 44_100)):
        message = {"role": "user", "content": "What?", "images": [base64.b64encode(sound).decode()]}
        body = {"model": "model", "messages": [message], "stream": False, "options": {"num_predict": 2}}
        assert server.post("/api/chat", json=body).status_code == 200
    broken = question(b"no sound")
    error = send_chat(server, broken).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_audio", "messages[0].content[0]")
    turns = [*broken, {"role": "assistant", "content": "No."}, {"role": "user", "content": "And now?"}]
    response = send_chat(server, turns)
    assert response.status_code == 200
    assert response.headers["x-ignored-parameters"] == "messages[0].content[0] (input_audio)"
