"""Tiny models that see, of every kind of projector and memory: what they answer is what llama.cpp's own
helpers make of the same files, however the steps are cut."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from openai_cpu_server.contract.media import (
    MediaItem,
    MediaRows,
    MediaSize,
    Picture,
    PictureSize,
    Sound,
    placed,
)
from openai_cpu_server.contract.messages import CancelRequest, EngineOptions, Finish, StepDone, Submit
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.scheduling import Scheduling
from openai_cpu_server.engine.generating import EngineCore, build_core
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.errors import InvalidRequest, StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from tests.architectures.plain import PlainLlama
from tests.architectures.test_architectures import ENGINE, running
from tests.llama.driver import pressing, small
from tests.tiny_model import tiny_model_path, tiny_projector_path

pytestmark = pytest.mark.native

LENGTH = 8
BEFORE, BEHIND = (1, *range(300, 400)), tuple(range(400, 480))


class Kind(NamedTuple):
    model: str
    projector: str
    width: int = 64
    """Of the model's rows."""


KINDS = {
    "slices": Kind("tiny", "idefics3", 256),
    "whole": Kind("tiny", "gemma3", 256),
    "whole, windows": Kind("tiny-gemma3", "gemma3"),
    "one place": Kind("tiny-qwen2vl", "qwen2vl_merger"),
    "one place, newer": Kind("tiny-qwen2vl", "qwen3vl_merger"),
    "hybrid": Kind("tiny-lfm2", "lfm2"),
    "hybrid, one place": Kind("tiny-qwen35", "qwen3vl_merger"),
}


def picture(width: int, height: int, seed: int = 0) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Picture.of(PictureSize(width, height), pixels.tobytes())


@functools.cache
def files(kind: Kind) -> tuple[Path, Path]:
    return (
        tiny_model_path(shape=kind.model, sees=True),
        tiny_projector_path(kind.projector, rows_width=kind.width),
    )


def options(kind: Kind, **more: object) -> EngineOptions:
    model, projector = files(kind)
    more = {"kv_tokens": 2048, "cache_bytes": 2**24, "prefill_tokens": 64, "threads": 1, **more}
    return small(model, projector_path=str(projector), **more)


class Sensing:
    """An engine's core that takes media, and what it says."""

    def __init__(self, asked: EngineOptions) -> None:
        self.options = asked
        self.backend = LlamaBackend.load(asked, lambda fraction: None)
        self.core: EngineCore = build_core(asked, self.backend, None)
        self.tokens: dict[str, list[int]] = {}
        self.finishes: dict[str, Finish] = {}
        self.prompts: dict[str, tuple[int, ...]] = {}

    def ask(self, name: str, *parts: Sequence[int] | MediaItem, **more: object) -> GenerationRequest:
        """Texts and media items by turns, beginning and ending with a text."""
        items = [part for part in parts if isinstance(part, (Picture, Sound))]
        shapes = [self.backend.measure(one.size).shape for one in items]
        tokens, media = placed(items, shapes, [p for p in parts if not isinstance(p, (Picture, Sound))])
        request = GenerationRequest(
            id=name,
            tokens=tokens,
            media_items=tuple(items),
            media=media,
            max_tokens=LENGTH,
            sampling=Sampling(seed=0, temperature=0, ignore_eos=True),
            **more,
        )
        self.prompts[name] = tokens
        self.core.handle(Submit(request))
        return request

    def step(self) -> None:
        for news in self.core.step():
            for event in news.events if isinstance(news, StepDone) else ():
                self.tokens.setdefault(event.id, []).extend(event.tokens)
                if event.finish is not None:
                    self.finishes[event.id] = event.finish
        self.core._scheduler.check()

    def run(self) -> None:
        while self.core.has_work:
            self.step()

    def answer(self, name: str, *parts: Sequence[int] | MediaItem, **more: object) -> list[int]:
        self.ask(name, *parts, **more)
        self.run()
        assert self.finishes[name].is_good, self.finishes[name]
        return self.tokens[name]

    def is_as_plain(self, stories: dict[str, Sequence[Sequence[int] | MediaItem]]) -> None:
        """Answers are those of llama.cpp's own helpers, and the second time nothing is encoded."""
        with PlainLlama(Path(self.options.model_path), Path(self.options.projector_path or "")) as plain:
            expected = {
                name: plain.answer([x for p in parts for x in (p if isinstance(p, tuple) else [p])], LENGTH)
                for name, parts in stories.items()
            }
        for name, parts in stories.items():
            assert self.answer(name, *parts) == expected[name].tokens, name
        self.known_rows.clear()
        for name, parts in stories.items():
            again = f"{name}, again"
            assert self.answer(again, *parts) == expected[name].tokens
            assert self.finishes[again].cached_tokens == len(self.prompts[again]) - 1
        assert not self.known_rows

    def shares_cells(self, stories: dict[str, Sequence[Sequence[int] | MediaItem]]) -> None:
        """Answers stay the same when all come at once, beside texts, in a pool that is too small for them."""
        alone = {name: self.answer(f"alone {name}", *parts) for name, parts in stories.items()}
        for round_ in range(2):
            self.known_rows.clear()
            for name, parts in stories.items():
                priority = Priority.BATCH if name in "bc" else Priority.INTERACTIVE
                self.ask(f"{name} {round_}", *parts, priority=priority)
                self.ask(f"text {name} {round_}", (1, *range(360, 380)), priority=priority)
            self.run()
            for name, tokens in alone.items():
                assert self.tokens[f"{name} {round_}"] == tokens, name

    @property
    def known_rows(self) -> dict[object, object]:
        """What is encoded. Where it is cleared, what is computed from then on must come from cells."""
        store = self.backend._loaded.row_store
        assert store is not None
        return store._known


@contextmanager
def sensing(asked: EngineOptions) -> Iterator[Sensing]:
    found = Sensing(asked)
    try:
        yield found
    finally:
        found.backend.close()


async def goes_on_when_killed(kind: Kind, item: MediaItem, unfit: MediaSize, why: str, code: str) -> None:
    """The real process, in its sandbox. It refuses a medium of size `unfit`."""
    async with running(EngineClient(Supervisor(ENGINE, options(kind)), max_queue=9)) as engine:
        (shape,) = await engine.shapes([item.size])
        tokens, media = placed([item], [shape], [BEFORE, BEHIND])
        answers = []
        for name, is_killed in (("a", False), ("b", True)):
            request = GenerationRequest(
                id=f"{name}/0",
                tokens=tokens,
                media_items=(item,),
                media=media,
                max_tokens=40,
                sampling=Sampling(seed=0, temperature=0, ignore_eos=True),
                cache_namespace=name,
            )
            output = list[int]()
            async with engine.generate([request]) as generation:
                async for event in generation:
                    output += event.tokens
                    if is_killed and len(output) >= 3:
                        is_killed = False
                        os.kill(engine.engine_pid, signal.SIGKILL)
            answers.append(output)
        assert answers[0] == answers[1]
        with pytest.raises(InvalidRequest, match=why) as refused:
            await engine.shapes([unfit])
        assert refused.value.code == code


SELDOM = ("whole", "one place, newer", "hybrid")
"""As another of the kinds is in what memory and places are, but for its projector."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) if name in SELDOM else name for name in KINDS],
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def seeing(kind: Kind) -> Iterator[Sensing]:
    with sensing(options(kind)) as seeing:
        yield seeing


def test_answers_are_llama_cpps_and_the_second_time_nothing_is_encoded(seeing: Sensing) -> None:
    small_one, large, other = picture(100, 50), picture(300, 200, 1), picture(100, 50, 2)
    seeing.is_as_plain(
        {
            "one": (BEFORE, small_one, BEHIND),
            "two": (BEFORE, large, (400,), small_one, BEHIND),
            "same size": (BEFORE, other, BEHIND),
        }
    )


def test_conversations_that_share_pictures_share_their_cells(seeing: Sensing) -> None:
    first, second = picture(64, 64, 5), picture(300, 200, 6)
    seeing.shares_cells(
        {
            "a": (BEFORE, first, BEHIND),
            "b": (BEFORE, first, BEHIND, second, (320, 321)),
            "c": (BEFORE, second, BEHIND),
            "d": ((1, 350), first, (400, 401)),
        }
    )


def test_interrupted_steps_leave_no_trace(kind: Kind) -> None:
    hurried = Scheduling(preempt_threshold_ms=0.0, batch_stall_ms=2000.0)
    with sensing(options(kind, scheduling=hurried, cache_bytes=0)) as seeing:
        parts = (BEFORE, picture(300, 200, 1), tuple(range(360, 400)), picture(64, 64, 5), BEHIND)
        expected = seeing.answer("alone", *parts)
        seeing.ask("batch", *parts, priority=Priority.BATCH)
        for number in range(40):
            with pressing(seeing.backend.interrupt, seeing.backend._loaded.context, 1 + 20 * (number % 3)):
                seeing.step()
            if number % 5 == 0:
                seeing.ask(f"i{number}", (1, 350, 351 + number))
        seeing.run()
        assert seeing.tokens["batch"] == expected
        assert seeing.finishes["batch"].interruptions > 0


def test_a_cache_file_knows_pictures_and_what_made_their_rows(kind: Kind, tmp_path: Path) -> None:
    path, parts = tmp_path / "cache", (BEFORE, picture(300, 200, 1), BEHIND)
    asked = options(kind, cache_file=str(path))
    with sensing(asked) as first:
        expected = first.answer("a", *parts)
        first.core.save_cache(str(path))
    with sensing(asked) as again:
        assert again.answer("b", *parts) == expected
        assert again.finishes["b"].cached_tokens == len(again.prompts["b"]) - 1
        assert not again.known_rows
    other = tmp_path / "other.gguf"
    shutil.copyfile(files(kind)[1], other)
    with sensing(msgspec.structs.replace(asked, projector_path=str(other))) as unfit:
        unfit.answer("c", *parts)
        assert unfit.finishes["c"].cached_tokens == 0, "another projector may make other rows"


@pytest.mark.anyio
@pytest.mark.parametrize("name", [pytest.param("slices", marks=pytest.mark.slow), "hybrid, one place"])
async def test_a_killed_engine_goes_on_with_pictures(name: str) -> None:
    shown = picture(300, 200, 1)
    await goes_on_when_killed(KINDS[name], shown, PictureSize(1, 5000), "narrow", "invalid_image")


def test_what_is_encoded_for_nobody_is_given_up() -> None:
    """An encoder of a real size, which takes seconds: it is left within one of its operations."""
    model, _ = files(KINDS["whole"])
    projector = tiny_projector_path("gemma3", rows_width=256, shape="siglip-base")
    asked = small(model, projector_path=str(projector), scheduling=Scheduling(preempt_threshold_ms=10.0))
    with sensing(asked) as seeing:
        seeing.ask("first", BEFORE, picture(600, 600), BEHIND)
        for _ in range(3):
            assert not seeing.known_rows, "it is encoded in slices"
            seeing.step()
        seeing.core.handle(CancelRequest("first"))
        assert seeing.answer("text", BEFORE)
        assert not seeing.known_rows


def test_pictures_of_any_size_have_rows_and_the_encoder_makes_as_many(seeing: Sensing) -> None:
    for width, height in ((1, 1), (7, 700), (700, 7), (17, 31), (1024, 1024)):
        shape = seeing.backend.measure(PictureSize(width, height))
        assert not shape.why_not, shape
        assert sum(part.num_rows for part in shape.shape if isinstance(part, MediaRows)) > 0
        assert len(seeing.answer(f"{width}x{height}", (1, 350), picture(width, height), BEHIND)) == LENGTH
    assert "narrow" in seeing.backend.measure(PictureSize(1, 700)).why_not


@pytest.mark.parametrize(
    ("projector", "cause"),
    [
        (("gemma3", 128), "mismatch"),
        (("idefics3", 256), "vocabulary"),
        (b"GGUF nonsense", "projector"),
        (None, "no projector"),
    ],
)
def test_a_projector_that_does_not_go_with_the_model_is_a_line_at_start(
    projector: tuple[str, int] | bytes | None, cause: str, tmp_path: Path
) -> None:
    path = tmp_path / "mmproj.gguf"
    if isinstance(projector, bytes):
        path.write_bytes(projector)
    elif projector is not None:
        path = tiny_projector_path(projector[0], rows_width=projector[1])
    with pytest.raises(StartupError, match=cause):
        LlamaBackend.load(small(tiny_model_path(), projector_path=str(path)), lambda fraction: None)
