"""Clients share readers in turn, and no piece of work takes more than its share of computing."""

from __future__ import annotations

import base64
import contextvars
import json
import os
import signal
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import msgspec
import numpy as np
import pytest
from PIL import Image

from openai_cpu_server.contract.caller import CALLER
from openai_cpu_server.contract.grammar import GrammarOrder, GrammarSource, MadeGrammar
from openai_cpu_server.contract.media import Picture, PictureSize
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.reader.child import ReaderChild
from openai_cpu_server.reader.messages import ModelSource, ReadDocument, ReaderStart, WorkRefused, WorkReply
from openai_cpu_server.reader.model import ReadModel
from openai_cpu_server.reader.pool import ReaderPool
from tests.fuzz.pictures import encoded
from tests.fuzz.sounds import RATE, wav
from tests.gates import suspended
from tests.pdfs import pdf
from tests.tiny_model import tiny_model_path
from tests.waiting import wait_until

ANN, BOB, EVE = ("key:ann",), ("key:bob",), ("key:eve",)
SHARE_S = 0.5
LYING = zlib.decompress(
    base64.b64decode(
        "eNpjYGBQSCupLEgsy0xjAAIQnZuZZpibmZjm62joBBR6nZtaksgAAYoZKTlFUDZDQWZyCQMa4CvILMkFsxiBWC4zJz8ZxHEB"
        "8RkhoozCDAxsa4BsjczMvDS4WikgJ5UJykssMzB0zs/JB9uVlVlQVACkvTMLkvOBtEhmcUEq1D4HKBYoyKzIBAkwc3BwACme"
        "xDJD50Z5HpCQcHJ+TlFeck4F0GReBrYGoJB4ZkEuzE9Ah7EwMjWzAF21JTclsUSIgYtb/nve/d21i5ikeDmMZvEKuBxvb0tl"
        "4lCY5whUn3r+XOBazW/5j9oP/nTv1N72d+60DoZusbu/K0Of/WtyFHwZzGSiV82w7KZcz2aFTa1iKVPUDj/Q+5B0LC5xD6vm"
        "35gD3Uy7Q6rV7kV/7J3csHph3Gb2g8UcnMtU3pzPWDZtj0b/m57bxRczLqWfPxdRzvQla+qFqQ396hohYeUvyjemckyrLf1w"
        "Mib+btNdmePVBg932uWoPXc7EHEv543yzSU9rZ+kz1w8VrKkvDk33eqwyOQrP029l9149VRNrTxi8cS+Gdycqw/8/zPH32J6"
        "nvQVEYXdCVtE9gxmi5ZxXHwpcf/9TPWvvzSzd66+1yX09lZv/ttpn9Y4v3lZ1HDs/pTY/xdrLu1vz7laG+3b7nerVb1XqmA0"
        "6EbjaDSOhkwciSoMP4voE0WyAAUEsfs="
    )
)
"""AVIF file of 12,000 x 12,000 pixels whose header names 64 x 64."""
SLOW = pdf("Hello hello\n" * 150_000)
"""PDF with more operators than any machine reads within the shares of these tests."""


@pytest.fixture
def pool() -> Iterator[ReaderPool]:
    with ReaderPool(share_s=SHARE_S) as pool:
        yield pool


@pytest.fixture
def model(pool: ReaderPool) -> ReadModel:
    return ReadModel(pool, source())


def source() -> ModelSource:
    return ModelSource(path=str(tiny_model_path()), generates=True)


def schema_order(num_properties: int) -> GrammarOrder:
    properties = {f"p{n}": {"type": "integer"} for n in range(num_properties)}
    return GrammarOrder(source=GrammarSource.SCHEMA, text=json.dumps({"properties": properties}))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def begun(threads: ThreadPoolExecutor, caller: tuple[str, ...], work: Callable[[], object]) -> Future[object]:
    """Start work on behalf of this client."""
    context = contextvars.copy_context()
    context.run(CALLER.set, caller)
    return threads.submit(context.run, work)


def test_the_refusal_of_work_beyond_its_share_is_remembered(pool: ReaderPool, model: ReadModel) -> None:
    with pytest.raises(InvalidRequest, match=r"takes more than 0\.5 seconds of computing"):
        model.document(SLOW, 10_000_000, "")
    assert pool.deaths == 0
    wait_until(lambda: len(pool.pids) == 2)
    with suspended(*pool.pids), pytest.raises(InvalidRequest):
        model.document(SLOW, 10_000_000, "")
    assert pool.deaths == 0, "no process has computed it again"
    assert model.document(b"a short text", 100, "") == ("a short text",)


def test_a_sound_that_is_refused_after_its_first_pieces_is_not_decoded_again() -> None:
    """Five minutes are several pieces of work, and only the last one finds that the sound is too long."""
    data = wav(np.zeros(300 * 100), rate=100)
    with ReaderPool(opens_media=True) as pool:
        model = ReadModel(pool, source())
        pieces = model.sound(data, RATE, 290 * RATE, 30 * RATE)
        assert next(pieces)
        with pytest.raises(InvalidRequest, match="longer than 290 seconds"):
            next(pieces)
        with suspended(*pool.pids), pytest.raises(InvalidRequest, match="longer than 290 seconds"):
            next(model.sound(data, RATE, 290 * RATE, 30 * RATE))


def test_a_sound_continues_in_the_process_that_has_opened_it(threads: ThreadPoolExecutor) -> None:
    data = wav(np.zeros(300 * 100), rate=100)
    with ReaderPool(opens_media=True) as pool:
        model = ReadModel(pool, source())
        before = set(pool.pids)
        assert next(model.sound(data, RATE, 400 * RATE, 30 * RATE))
        (first,) = set(pool.pids) - before
        of_bob = model.sound(data, RATE, 500 * RATE, 30 * RATE)
        with suspended(first):
            of_ann = begun(threads, ANN, lambda: next(model.sound(data, RATE, 600 * RATE, 30 * RATE)))
            wait_until(lambda: pool.load()["media"].running == 1)
            assert begun(threads, BOB, lambda: next(of_bob)).result()
        assert of_ann.result()
        with suspended(first):
            assert begun(threads, BOB, lambda: next(of_bob)).result()


def test_a_sound_continues_after_its_process_has_died() -> None:
    data = wav(np.zeros(300 * 100), rate=100)
    with ReaderPool(opens_media=True) as pool:
        model = ReadModel(pool, source())
        before = set(pool.pids)
        pieces = model.sound(data, RATE, 400 * RATE, 30 * RATE)
        first = next(pieces)
        (opened,) = set(pool.pids) - before
        os.kill(opened, signal.SIGKILL)
        second = next(pieces)
        assert pool.deaths == 1
    samples = sum(piece.size.num_samples for piece in (*first, *second))
    assert samples == 300 * RATE


def test_a_picture_gets_memory_for_the_allowed_pixels_only() -> None:
    with ReaderPool(opens_media=True) as pool:
        model = ReadModel(pool, source())
        assert model.picture(LYING, 40_000_000, 0).size == PictureSize(64, 64)
        with pytest.raises(InvalidRequest, match="damaged"):
            model.picture(LYING, 1_000_000, 0)
        assert pool.deaths == 0


def test_a_process_that_computes_is_not_ended_as_silent() -> None:
    """The process computes for longer than the patience with an idle one."""
    child = ReaderChild(patience_s=1.0)
    try:
        child.send(msgspec.msgpack.encode(ReaderStart(None, opens_media=True, share_s=2.0)))
        child.send(msgspec.msgpack.encode(ReadDocument(b"", 10_000_000)), SLOW)
        reply = msgspec.msgpack.decode(child.receive(), type=WorkReply)
    finally:
        child.kill()
        child.close()
    assert isinstance(reply.result, WorkRefused)
    assert "takes more than 2 seconds" in reply.result.message


def test_a_file_is_sent_without_a_copy(model: ReadModel) -> None:
    """A copy would hold the interpreter's lock, and so block the event loop."""
    data = b"no sound" * 2**20
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            next(model.sound(data, RATE, RATE, 0))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < len(data) / 2


def test_work_of_one_kind_waits_for_no_other_kind(
    pool: ReaderPool, model: ReadModel, threads: ThreadPoolExecutor
) -> None:
    before = set(pool.pids)
    assert model.document(b"starts the process", 100, "")
    with suspended(*(set(pool.pids) - before)):
        document = begun(threads, ANN, lambda: model.document(b"another", 100, ""))
        wait_until(lambda: pool.load()["document"].running == 1)
        assert isinstance(model.make_grammar(schema_order(30)), MadeGrammar)
        assert model.tokenizer.encode("Hello", add_special=False, parse_special=False)
    assert document.result() == ("another",)


def test_a_picture_waits_for_no_document(
    pool: ReaderPool, model: ReadModel, threads: ThreadPoolExecutor
) -> None:
    """Documents of two other clients take all processes for documents."""
    before = set(pool.pids)
    assert model.document(b"starts the process", 100, "")
    with suspended(*(set(pool.pids) - before)):
        first = begun(threads, ANN, lambda: model.document(b"first", 100, ""))
        wait_until(lambda: pool.load()["document"].running == 1)
        second = begun(threads, EVE, lambda: model.document(SLOW, 10_000_000, ""))
        wait_until(lambda: pool.load()["document"].running == 2 or second.done())
        picture = begun(threads, BOB, lambda: model.picture(encoded(Image.new("RGB", (9, 9))), 10_000, 0))
        assert isinstance(picture.result(), Picture)
    assert first.result() == ("first",)
    with pytest.raises(InvalidRequest):
        second.result()


@pytest.mark.parametrize(
    ("kind", "num_started"),
    [("program", 0), ("program", 2), ("document", 1)],
    ids=["program in the first process", "program in its own process", "document"],
)
def test_one_client_never_keeps_the_work_of_another_waiting(
    pool: ReaderPool, model: ReadModel, threads: ThreadPoolExecutor, kind: str, num_started: int
) -> None:
    """`num_started`: processes that the first work starts, one of them a spare."""

    def done(number: int) -> bool:
        if kind == "document":
            return model.document(b"text %d" % number, 100, "") == (f"text {number}",)
        return isinstance(model.make_grammar(schema_order(number)), MadeGrammar)

    before = set(pool.pids)
    if num_started == 2:
        pool.start_program_reader()
    assert done(1)
    wait_until(lambda: len(set(pool.pids) - before) == num_started)
    first = next(pid for pid in pool.pids if (pid in before) is (num_started == 0))
    with suspended(first):
        of_ann = [begun(threads, ANN, partial(done, n)) for n in (2, 3, 4)]
        wait_until(lambda: pool.load()[kind] == (2, 1))
        of_bob = begun(threads, BOB, lambda: done(5))
        assert of_bob.result()
        assert pool.load()[kind].running == 1
    assert all(future.result() for future in of_ann)


def test_texts_do_not_wait_for_a_program_in_the_first_process(
    pool: ReaderPool, model: ReadModel, threads: ThreadPoolExecutor
) -> None:
    with suspended(*pool.pids):
        program = begun(threads, ANN, lambda: model.make_grammar(schema_order(1)))
        wait_until(lambda: pool.load()["program"].running == 1)
        assert model.tokenizer.encode("Hello, you", add_special=False, parse_special=False)
        assert not program.done()
    assert isinstance(program.result(), MadeGrammar)
