"""`scripts/benchmark.py`: counts and verdicts. Tests of workloads against the real server are slow."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from bench.bench import Bench
from bench.clients import Clients, LoadFailed
from bench.report import markdown
from bench.results import (
    Circumstances,
    Direction,
    Goal,
    Line,
    Report,
    Rounds,
    WorkloadResult,
    percentile,
    ratios,
)
from bench.servers import Variant, environment, ours
from bench.traffic import OURS, BenchRequest, Trace, Usage
from bench.vllm_model import FORMS, can_serve, cell_bytes, model_folder
from bench.workloads import WORKLOADS

from openai_cpu_server.llama.gguf.header import GgufHeader
from tests.tiny_model import SCRIPTS, tiny_model_path

pytestmark = pytest.mark.thorough

ASK = BenchRequest(prompt=(300, 301, 302), max_tokens=2)
CIRCUMSTANCES = Circumstances(
    started="now", model="m.gguf", commit="", cpu="c", num_cpus=2, memory_bytes=2**30, rounds=3, is_quick=True
)


def test_rounds_have_a_median_and_are_compared_in_pairs() -> None:
    """Compare in pairs, because a machine that is slow in one round is slow for both servers."""
    assert [percentile([4.0, 1.0, 3.0, 2.0], 50), percentile(range(101), 95)] == [2.5, 95]
    rounds = Rounds((8.0, 10.0, 13.0))
    assert (rounds.median, rounds.spread) == (10.0, 0.5)
    assert ratios(Rounds((8.0, 2.0, 13.0)), Rounds((4.0, 1.0, 5.0))) == Rounds((2.0, 2.0, 2.6))
    assert ratios(rounds, Rounds((5.0,))) == Rounds((2.0,)), "without pairs the medians are compared"
    assert ratios(Rounds((1.0,)), Rounds((0.0,))) == Rounds((math.inf,))


def trace(arrival: float, chunk_times: list[float], *, completion_tokens: int | None = None) -> Trace:
    made = Trace(ASK, arrival)
    made.chunk_times = chunk_times
    if completion_tokens is not None:
        made.usage = Usage(prompt_tokens=3, completion_tokens=completion_tokens)
    return made


def test_times_begin_at_the_intended_arrival_and_tokens_count_in_their_window() -> None:
    answer = trace(10.0, [12.5, 13.0, 15.0])
    assert (answer.ttft_s, answer.gaps_s) == (2.5, [0.5, 2.0])
    assert trace(10.0, []).ttft_s is None
    cut_off = trace(0.0, [1.0, 2.0, 3.0])
    assert cut_off.computed_tokens(0.0, 10.0) == 3 + 3
    assert cut_off.computed_tokens(2.0, 3.0) == 1, "the prompt was computed before"
    assert trace(0.0, [1.0, 2.0], completion_tokens=6).computed_tokens(2.0, 3.0) == 3


def test_no_option_comes_from_the_users_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCS_MAX_SEQS", "3")
    monkeypatch.setenv("LLAMA_ARG_THREADS", "1")
    monkeypatch.setenv("OTHER", "value")
    assert {"OCS_MAX_SEQS", "LLAMA_ARG_THREADS"}.isdisjoint(environment())
    assert environment()["OTHER"] == "value"
    assert "--profile off" in " ".join(ours(Variant.WHOLE, Path("m.gguf")).command)


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[Clients]:
    """Yield clients of a server that sends these bytes, piece by piece, to each connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield Clients(server.sockets[0].getsockname()[1], OURS)


def chunked(*bodies: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(body), body) for body in (*bodies, b""))


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":'
    b'{"cached_tokens":1}},"timings":{"preemptions":4,"queue_ms":1.5,"forced_tokens":1}}\n\n'
)


@pytest.mark.anyio
async def test_only_chunks_with_content_are_tokens() -> None:
    events = (
        b': queued\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        b'data: {"choices":[{"delta":{"cont',
        b'ent":"a"}}]}\n\ndata: {"choices":[{"text":"b"}]}\n\n',
        b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n' + USAGE + b"data: [DONE]\n\n",
    )
    for response in (CHUNKED + chunked(*events), HEAD + b"\r\n" + b"".join(events)):
        async with answering(response) as clients:
            result = await clients.send(ASK)
        clients.check()
        assert (result.text, len(result.chunk_times), result.is_complete) == ("ab", 2, True)
        assert (result.output_tokens, result.usage.cached_tokens, result.timings.preemptions) == (2, 1, 4)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nwhat",
        CHUNKED + chunked(b'event: error\ndata: {"error":{"message":"what"}}\n\n'),
        CHUNKED + b"ffff\r\nwhat",
        CHUNKED + chunked(b'data: {"choices":[{"text":"b"}]}\n\n'),
        b"",
    ],
    ids=["status", "error event", "cut off", "no DONE", "empty"],
)
async def test_a_failure_is_an_error_not_a_fast_answer(response: bytes) -> None:
    async with answering(response) as clients:
        await clients.closed_loop([ASK, ASK], num_clients=1)
    (only,) = clients.traces  # a client ends after its first failure
    assert only.error
    assert not only.is_complete
    with pytest.raises(LoadFailed):
        clients.check()


def test_the_report_shows_passes_and_misses() -> None:
    rounds, at_least = Rounds((1.5, 1.7, 1.2)), Direction.AT_LEAST
    goals = tuple(
        Goal(what=f"speed {limit}", rounds=rounds, direction=at_least, limit=limit, unit="x")
        for limit in (1.3, 1.6)
    )
    servers = {"ours": Rounds((2.0,)), "theirs": Rounds((3.0, 4.0, 5.0))}
    line = Line(what="TTFT", unit="s", better=Direction.AT_MOST, servers=servers)
    results = (
        WorkloadResult(name="one", sizes="", goals=goals, lines=(line,)),
        WorkloadResult(name="two", sizes="", failure="no such option"),
    )
    report = Report(circumstances=CIRCUMSTANCES, load_before=(0, 0, 0), load_after=(1, 1, 1), results=results)
    rows = markdown(report).splitlines()
    for row in (
        "| one | speed 1.3 | 1.50 x (1.20 to 1.70) | at least 1.3 x | pass |",
        "| one | speed 1.6 | 1.50 x (1.20 to 1.70) | at least 1.6 x | miss |",
        "| TTFT | s | 2 | 4 (50 %) |",
        "| two | no such option |  |  | not measured |",
    ):
        assert row in rows


@pytest.mark.slow
@pytest.mark.native
def test_a_small_run_writes_a_report(tmp_path: Path) -> None:
    options = ["--workloads", "chat,memory,json", "--servers", "ours,static", "--output", str(tmp_path)]
    command = [sys.executable, str(SCRIPTS / "benchmark.py"), "--quick", "--model", str(tiny_model_path())]
    subprocess.run([*command, *options], check=True)
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report)
    chat, memory, constrained = report.results
    assert [result.failure for result in report.results] == [None] * 3
    assert set(chat.lines[0].servers) == {"ours", "static batching"}
    cells = {figure.what: figure.rounds.values for figure in memory.figures}
    assert 0 < cells["pool, cells held at peak"][0] < cells["cells without sharing"][0]
    values = {line.what: line.servers["ours"].median for line in constrained.lines}
    assert values["constrained: valid answers"] == 100
    assert "| output | tok/s |" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize(
    "name", sorted(WORKLOADS.keys() - {"chat", "memory", "json", "mixed", "pictures-large"})
)
def test_a_workload_has_figures_for_each_server(name: str) -> None:
    keys = frozenset({"ours"})
    bench = Bench(model=tiny_model_path(), keys=keys, rounds=1, is_quick=True, say=lambda line: None)
    result = WORKLOADS[name](bench)
    assert result.failures == {}
    figures = [(server, rounds.median) for line in result.lines for server, rounds in line.servers.items()]
    assert {server for server, figure in figures if figure > 0} == dict(figures).keys()


def test_the_model_for_vllm_has_the_shape_of_the_dense_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = tiny_model_path()
    assert can_serve(model)
    folders = {form: model_folder(model, form) for form in FORMS}
    configs = {form: json.loads((folder / "config.json").read_text()) for form, folder in folders.items()}
    header = GgufHeader(model)
    shape = configs["bf16"]
    assert shape["architectures"] == ["LlamaForCausalLM"]
    assert shape["num_hidden_layers"] == header.arch_int("block_count")
    assert shape["hidden_size"] == shape["num_attention_heads"] * shape["head_dim"]
    assert (
        cell_bytes(model) == 4 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]
    )
    assert "quantization_config" not in shape
    assert configs["int4"]["quantization_config"]["bits"] == 4
    tokenizer = json.loads((folders["int8"] / "tokenizer.json").read_text())
    assert len(tokenizer["model"]["vocab"]) == shape["vocab_size"]
