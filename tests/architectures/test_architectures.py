"""Each architecture of llama.cpp that generates text has what any model has here: its beginnings are given
back, it is interrupted, killed, restarted and drafted for, and answers as plain llama.cpp does.

Models are those of llama.cpp's own generator of test models, with a vocabulary and weights that make many
tokens likely. An engine process serves each. `pytest -m slow tests/architectures -n 2` takes some minutes.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import random
import shlex
import signal
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import pytest
from bench.peers import VERSION, llama_cpp_in, run, unpacked_sources
from random_model.gguf_file import add_tokenizer, weights_for
from random_model.vocabulary import borrowed_vocabulary

from openai_cpu_server.config.folders import user_cache_dir
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import EngineOptions, Experiment, Finish, Scheduling
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.child import HangLimits
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.errors import StartupError
from tests.architectures.plain import PlainLlama
from tests.llama.driver import asked
from tests.llama.odd_models import copy_metadata, written
from tests.waiting import elapse_async, eventually

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.anyio, pytest.mark.timeout(600)]

GENERATING = Path(__file__).with_name("generating.txt").read_text().split()
DIFFUSION = ["dream-dense", "llada-dense", "llada-moe-moe", "rnd1-moe"]
NOT_INTERRUPTED = {"deepseek4-moe"}
"""Its memory can only be copied whole: to keep a way back would cost more than a step that is thrown away."""
NOT_COMPARED = {"cogvlm-dense"}
"""llama.cpp itself gives the logits of a step's first rows: its graph does not pick those that are wanted."""
DRAFTING_FOR_THEMSELVES = {"qwen3tts-dense"}
"""No other model has their vocabulary."""

TIE_NATS = 0.25
"""Steps of other sizes round differently: of two tokens that are so near each other either may come."""
ENGINE = (
    *(sys.executable, "-m", "openai_cpu_server.kernels.front"),
    *("openai_cpu_server.engine.process", "console"),
)
LENGTH, LONGEST = 24, 60
TOKENS = range(4, 128)
"""All are in every vocabulary; those before them are control tokens."""

_numbers = itertools.count()
_random = random.Random(1)


def text(length: int) -> list[int]:
    return _random.choices(TOKENS, k=length)


STORY = text(96)
LONGER = STORY + text(40)
NEXT_QUESTION = text(20)
NEIGHBOURS = [text(60), text(130)]
LONG_PROMPTS = [text(190) for _ in range(6)]
PERSON = text(30)
DOOMED = [text(50), text(70), text(20)]


class Got(NamedTuple):
    tokens: list[int]
    finish: Finish


async def ask(
    engine: EngineClient,
    prompt: Sequence[int],
    length: int = LENGTH,
    priority: Priority = Priority.INTERACTIVE,
    begun: asyncio.Event | None = None,
) -> Got:
    """`begun` is set with the first token."""
    request = asked(f"{next(_numbers)}/0", prompt, length, priority=priority, top_logprobs=0)
    tokens: list[int] = []
    async with engine.generate([request]) as answer:
        async for event in answer:
            tokens += event.tokens
            if begun is not None:
                begun.set()
    assert event.finish.is_good, event.finish
    return Got(tokens, event.finish)


def engine_of(model: Path, *, hang_limits: HangLimits = HangLimits(), **more: object) -> EngineClient:  # noqa: B008 (frozen)
    options = EngineOptions(
        **{
            "model_path": str(model),
            "kv_tokens": 4096,
            "threads": 1,
            "prefill_tokens": 1024,
            "cache_bytes": 2**28,
            "calibrate": "never",
            "scheduling": Scheduling(preempt_threshold_ms=0.0),
            "log_level": "warning",
            **more,
        }
    )
    return EngineClient(Supervisor(ENGINE, options, hang_limits=hang_limits), max_queue=1000)


@asynccontextmanager
async def running(engine: EngineClient) -> AsyncIterator[EngineClient]:
    """Raises what it ends with if it does not start."""
    task = asyncio.create_task(engine.run())
    try:
        await eventually(lambda: task.done() or engine.state is EngineState.READY)
        if task.done():
            task.result()
        yield engine
    finally:
        await engine.close()
        await asyncio.gather(task, return_exceptions=True)


class Comparison:
    """What one model answered, beside what plain llama.cpp answers."""

    def __init__(self, plain: PlainLlama) -> None:
        self._answer = functools.cache(plain.answer)
        self.differences: list[str] = []
        self.missing: list[str] = []
        """What of the promises for all memories was not kept."""

    def expect(self, kept: object, promise: str) -> None:
        if not kept:
            self.missing.append(promise)

    def same(self, story: str, prompt: Sequence[int], got: Got) -> None:
        expected = self._answer(tuple(prompt), len(got.tokens))
        places = zip(got.tokens, expected.tokens, expected.logprobs, strict=True)
        for i, (token, wanted, logprobs) in enumerate(places):
            if token != wanted:
                distance = logprobs[wanted] - logprobs[token]
                if distance > TIE_NATS:
                    self.differences.append(f"{story}: parts at token {i}, by {distance:.2f} nats")
                return


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of what the generator writes: 900 MB, made in half a minute, kept in the user's cache."""
    folder = user_cache_dir() / "architectures" / VERSION
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="partial-") as partial:
            made = Path(partial) / "models"
            made.mkdir()
            _generate(llama_cpp_in(unpacked_sources(Path(partial), print)), made)
            # Processes that race each make all of it; whoever comes late has made it for nothing.
            if not folder.is_dir():
                made.rename(folder)
    return folder


def test_the_generator_makes_just_these_models(models: Path) -> None:
    assert sorted(path.stem for path in models.iterdir()) == sorted([*GENERATING, *DIFFUSION])


@pytest.mark.parametrize("name", DIFFUSION)
async def test_a_diffusion_model_is_refused_in_a_sentence(name: str, models: Path, tmp_path: Path) -> None:
    model = readable(models / f"{name}.gguf", tmp_path / "model.gguf")
    with pytest.raises(StartupError, match=r"diffusion.*\.$"):
        await engine_of(model).run()


@pytest.mark.parametrize("name", GENERATING)
async def test_an_architecture(name: str, models: Path, tmp_path: Path) -> None:
    model = readable(models / f"{name}.gguf", tmp_path / "model.gguf")
    drafting = model
    if name not in DRAFTING_FOR_THEMSELVES:
        drafting = readable(models / "llama-dense.gguf", tmp_path / "draft.gguf")
    options = {"cache_file": str(tmp_path / "cache"), "max_seqs": 8}
    drafts = {"draft_model_path": str(drafting), "experiment": Experiment(always_drafts=True)}
    with PlainLlama(model) as plain:
        seen = Comparison(plain)
        async with running(engine_of(model, **options)) as engine:
            await reuses(engine, seen)
            if name not in NOT_INTERRUPTED:
                await is_interrupted(engine, seen)
            await outlives_its_engine(engine, seen)
            await ask(engine, LONGER)
        async with running(engine_of(model, **options, **drafts)) as engine:
            await is_drafted_for_after_a_restart(engine, seen)
    if name in NOT_COMPARED:
        seen.differences.clear()
    assert (seen.differences, seen.missing) == ([], [])


async def reuses(engine: EngineClient, seen: Comparison) -> None:
    alone = await ask(engine, STORY)
    seen.same("alone", STORY, alone)
    again = await ask(engine, STORY)
    seen.same("again", STORY, again)
    seen.expect(again.finish.cached_tokens, "cached tokens of a prompt that comes again")
    longer = await ask(engine, LONGER)
    seen.same("longer", LONGER, longer)
    seen.expect(longer.finish.cached_tokens, "cached tokens of a beginning")
    turn = STORY + alone.tokens + NEXT_QUESTION
    next_turn = await ask(engine, turn)
    seen.same("next turn", turn, next_turn)
    seen.expect(next_turn.finish.cached_tokens >= len(STORY), "cached tokens of the turn before")
    prompts = [STORY, *NEIGHBOURS, LONGER]
    together = await asyncio.gather(*(ask(engine, prompt) for prompt in prompts))
    for prompt, got in zip(prompts, together, strict=True):
        seen.same("beside others", prompt, got)


async def is_interrupted(engine: EngineClient, seen: Comparison) -> None:
    """A person comes while a step computes long prompts, which is tried until it happens."""
    for _ in range(40):
        engine.clear_cache()
        rows = [asyncio.create_task(ask(engine, one, priority=Priority.BATCH)) for one in LONG_PROMPTS]
        await elapse_async(_random.uniform(0.002, 0.02))
        seen.same("a newcomer", PERSON, await ask(engine, PERSON))
        answers = await asyncio.gather(*rows)
        if any(got.finish.interruptions for got in answers):
            for prompt, got in zip(LONG_PROMPTS, answers, strict=True):
                seen.same("interrupted", prompt, got)
            return
    seen.expect(False, "interruption")


async def outlives_its_engine(engine: EngineClient, seen: Comparison) -> None:
    begun = asyncio.Event()
    tasks = [asyncio.create_task(ask(engine, prompt, LONGEST, begun=begun)) for prompt in DOOMED]
    await begun.wait()
    os.kill(engine.engine_pid, signal.SIGKILL)
    for prompt, got in zip(DOOMED, await asyncio.gather(*tasks), strict=True):
        seen.same("killed", prompt, got)
    assert engine.status().restarts == 1


async def is_drafted_for_after_a_restart(engine: EngineClient, seen: Comparison) -> None:
    longer = await ask(engine, LONGER)
    seen.same("after a restart", LONGER, longer)
    seen.expect(longer.finish.cached_tokens, "cached tokens after a restart")
    prompts = [STORY, *NEIGHBOURS]
    drafted = await asyncio.gather(*(ask(engine, prompt, LONGEST) for prompt in prompts))
    for prompt, got in zip(prompts, drafted, strict=True):
        seen.same("drafted for", prompt, got)
    if engine.info.max_draft != 0:
        seen.expect(all(got.finish.drafted_tokens for got in drafted), "drafts")


_DEMO = Path(__file__).parents[2] / "model_assets" / "demo.gguf"
_LIBRARIES = Path(sysconfig.get_path("platlib")) / "llama_cpp" / "lib"
_COMMON = ("common", "json", "log")
"""Parts of llama.cpp's own programs that the generator uses; the wheel does not have them."""
_SEED = "1"


def _generate(llama_cpp: Path, target: Path) -> None:
    generator = target.parent / "generator"
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    includes = [f"-I{llama_cpp / part}" for part in ("include", "common", "ggml/include", "src", "vendor")]
    libraries = [f"-L{_LIBRARIES}", f"-Wl,-rpath,{_LIBRARIES}"]
    libraries += ["-lllama", "-lggml", "-lggml-base", "-Wl,--gc-sections"]  # the rest needs more
    sources = [str(llama_cpp / "tests" / "test-llama-archs.cpp")]
    sources += [str(llama_cpp / "common" / f"{name}.cpp") for name in _COMMON]
    options = ["-std=c++17", "-O1", "-w", "-ffunction-sections"]
    run([*compiler, *options, *sources, *includes, "-o", str(generator), *libraries])
    run([str(generator), "-s", _SEED, "-o", str(target)])


def readable(source: Path, target: Path) -> Path:
    """The model with a vocabulary, which the generator writes for none, and other weights: its own leave all
    tokens about equally likely, so that every answer would be a tie."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    shapes = {tensor.name: tuple(map(int, reversed(tensor.shape))) for tensor in reader.tensors}
    vocabulary = borrowed_vocabulary(_DEMO, reader.fields[f"{architecture}.vocab_size"].contents())
    writer = gguf.GGUFWriter(target, architecture)
    labels = f"{architecture}.classifier.output_labels"  # an empty list, which cannot be copied
    copy_metadata(reader, writer, skip={labels, *(n for n in reader.fields if n.startswith("tokenizer."))})
    add_tokenizer(writer, vocabulary)
    for tensor in weights_for(shapes, vocabulary.quiet, embedding_std=0.5, query_key_norm=1.6):
        writer.add_tensor(tensor.name, tensor.data(0).view(np.float32).reshape(tensor.shape))
    return written(writer, target)
