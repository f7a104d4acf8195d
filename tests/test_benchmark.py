"""`scripts/benchmark.py`: what it counts and how it judges; one small workload against the real server."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import jsonschema
import msgspec
import pytest
from bench import schemas
from bench.asking import Ask, ScoredToken, Trace, Usage
from bench.greedy import Verdict, compare, margin_shifts
from bench.load import Clients, LoadFailed, fixed_arrivals, poisson_arrivals
from bench.prompts import about, random_tokens, random_words
from bench.report import markdown
from bench.results import Circumstances, Direction, Figure, Goal, Report, WorkloadResult
from bench.servers import Variant, missing_options, ours
from bench.stats import Rounds, percentile, ratio
from bench.workloads import WORKLOADS, chat, json_output, mixed, pool_pressure, prefix
from bench.workloads.pure_scheduler import PureScheduler

from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.structured import schema_to_gbnf
from tests.tiny_model import SCRIPTS, tiny_model_path

pytestmark = pytest.mark.thorough

CONSTRAINED = Ask(prompt=(300,), max_tokens=9, schema=schemas.REVIEW)
ASK = Ask(prompt=(300, 301, 302), max_tokens=2)


def test_percentiles_lie_between_the_nearest_ranks() -> None:
    assert percentile([3.0], 95) == 3.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile(range(101), 95) == 95
    with pytest.raises(ValueError):
        percentile([], 50)
    with pytest.raises(ValueError):
        percentile([1.0], 101)


def test_rounds_come_to_a_median_and_a_spread() -> None:
    rounds = Rounds((8.0, 10.0, 13.0))
    assert (rounds.median, rounds.spread) == (10.0, 0.5)
    assert ratio(rounds, Rounds((5.0,))) == 2.0
    assert ratio(rounds, Rounds((0.0,))) == math.inf


def test_fixed_arrivals_come_by_the_clock() -> None:
    assert fixed_arrivals(1.5, 4.5) == [0.0, 1.5, 3.0]
    assert fixed_arrivals(1.5, 4.6) == [0.0, 1.5, 3.0, 4.5]


def test_poisson_arrivals_repeat_and_keep_their_rate() -> None:
    offsets = poisson_arrivals(2.0, 1000.0, seed=1)
    assert offsets == poisson_arrivals(2.0, 1000.0, seed=1) != poisson_arrivals(2.0, 1000.0, seed=2)
    assert offsets == sorted(offsets)
    assert offsets[0] > 0
    assert offsets[-1] < 1000.0
    assert 1800 < len(offsets) < 2200


def test_prompts_repeat_by_seed_and_share_nothing() -> None:
    prompts = [random_tokens(50, "a", i) for i in range(20)]
    assert prompts == [random_tokens(50, "a", i) for i in range(20)]
    assert len({prompt[:2] for prompt in prompts}) == 20
    assert all(90 <= about(100, i) <= 110 for i in range(50))


def test_requests_of_a_round_share_just_what_they_should() -> None:
    first, second = prefix.asks(prefix.FULL, 0), prefix.asks(prefix.FULL, 1)
    assert len(first) == 48
    assert len({ask.prompt[:1080] for ask in first}) == 1
    assert len({ask.prompt[1080:] for ask in first}) == 48
    assert first[0].prompt[:64] != second[0].prompt[:64]
    assert {len(ask.prompt) for ask in first} == {1125}
    assert len({ask.prompt for ask in chat.asks(chat.FULL, 0)}) == 32


def test_texts_repeat_by_seed_and_are_of_so_many_words() -> None:
    text = random_words(50, "a", 1)
    assert text == random_words(50, "a", 1) != random_words(50, "a", 2)
    assert len(text.split()) == 50


def test_free_requests_have_the_prompts_and_lengths_of_the_constrained_ones() -> None:
    constrained = json_output.constrained_asks(json_output.FULL, 0)
    lengths = list(range(50, 66))
    free = json_output.free_asks(json_output.FULL, 0, lengths)
    assert [ask.prompt for ask in free] == [ask.prompt for ask in constrained]
    assert [(ask.schema, ask.max_tokens) for ask in free] == [(None, length) for length in lengths]
    assert len({str(ask.schema) for ask in constrained}) == 4


def test_schemas_are_such_as_the_server_can_enforce() -> None:
    for schema in schemas.ALL:
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema_to_gbnf(schema)


@pytest.mark.parametrize(
    ("text", "finish_reason", "valid"),
    [
        ('{"rating":5,"pros":["a"],"cons":["b"],"summary":"c"}', "stop", True),
        ('{"rating":6,"pros":["a"],"cons":["b"],"summary":"c"}', "stop", False),
        ('{"rating":5,"pros":["a"],"cons":["b"],"summary":"c"}', "length", False),
        ('{"rating":5,"pros":["a"],"cons":["b"],"summ', "stop", False),
        ("", None, False),
    ],
)
def test_an_answer_is_valid_if_it_is_whole_and_fits(text: str, finish_reason: str, valid: bool) -> None:
    answer = Trace(CONSTRAINED, 0.0)
    answer.text, answer.finish_reason = text, finish_reason
    assert json_output.is_valid(answer) is valid


def test_pool_pressure_begins_with_batch_work() -> None:
    prompts = [random_tokens(300, i) for i in range(pool_pressure.FULL.requests)]
    asks, offsets = (
        pool_pressure.asks(pool_pressure.FULL, prompts),
        pool_pressure.arrivals(pool_pressure.FULL),
    )
    assert {ask.max_tokens for ask in asks} == {200}
    assert {ask.max_tokens for ask in pool_pressure.beginnings(asks)} == {32}
    at_once = [ask for ask, offset in zip(asks, offsets, strict=True) if offset == 0]
    assert len(at_once) == 16
    assert {ask.priority for ask in at_once} == {pool_pressure.Priority.BATCH}
    assert {ask.priority for ask in asks[16:]} == {pool_pressure.Priority.INTERACTIVE}
    assert offsets[16:19] == [2.0, 4.0, 6.0]


def trace(arrival: float, chunk_times: list[float], *, completion_tokens: int | None = None) -> Trace:
    made = Trace(ASK, arrival)
    made.chunk_times = chunk_times
    if completion_tokens is not None:
        made.usage = Usage(prompt_tokens=3, completion_tokens=completion_tokens)
    return made


def test_the_first_token_is_timed_from_the_intended_arrival() -> None:
    assert trace(10.0, [12.5, 13.0]).ttft_s == 2.5
    assert trace(10.0, []).ttft_s is None
    assert trace(10.0, [12.5, 13.0, 15.0]).gaps_s == [0.5, 2.0]


def test_tokens_count_in_the_window_in_which_they_come() -> None:
    cut_off = trace(0.0, [1.0, 2.0, 3.0])
    assert cut_off.computed_tokens(0.0, 10.0) == 3 + 3
    assert cut_off.computed_tokens(0.0, 1.0) == 0
    assert cut_off.computed_tokens(2.0, 3.0) == 1, "its prompt was computed before"
    complete = trace(0.0, [1.0, 2.0], completion_tokens=6)
    assert complete.computed_tokens(2.0, 3.0) == 3
    assert trace(0.0, []).computed_tokens(0.0, 10.0) == 0


def test_throughput_is_of_both_classes() -> None:
    window = mixed.Window(0.0, 4.0, batch=[trace(0.0, [1.0, 2.0])], interactive=[trace(0.0, [3.0, 4.0])])
    assert window.computed_per_s == (5 + 4) / 4


def token(text: str, logprob: float, **others: float) -> ScoredToken:
    return ScoredToken(text, logprob, {text: logprob, **others})


def test_greedy_outputs_are_the_same_nearly_tied_or_different() -> None:
    a = [token("x", -1.0), token("a", -1.0, b=-1.1), token("p", -1.0)]
    tied = [token("x", -1.0), token("b", -1.0, a=-1.3), token("q", -1.0)]
    far = [token("x", -1.0), token("b", -1.0, a=-1.9)]
    unknown = [token("x", -1.0), token("c", -1.0)]
    assert compare(a, a, near_tie=0.0).verdict is Verdict.SAME
    found = compare(a, tied, near_tie=0.5)
    assert (found.verdict, found.position) == (Verdict.NEAR_TIE, 1)
    assert found.gap == pytest.approx(0.3), "the larger gap of the two runs"
    assert compare(a, tied, near_tie=0.2).verdict is Verdict.DIFFERENT
    for other in (far, unknown, a[:2]):
        assert compare(a, other, near_tie=0.5).verdict is Verdict.DIFFERENT


def test_rounding_is_how_far_the_margin_between_two_candidates_moves() -> None:
    one = [token("x", -1.0, y=-3.0), token("a", -1.0, b=-1.1), token("p", -1.0, q=-2.0)]
    other = [token("x", -1.2, y=-3.0), token("b", -1.0, a=-1.3), token("r", -1.0, q=-2.0)]
    assert list(margin_shifts(one, one)) == [0.0, 0.0, 0.0]
    assert list(margin_shifts(one, other)) == pytest.approx([0.2, 0.4]), "what follows continues other texts"
    unknown = [token("x", -1.0, z=-3.0), token("a", -1.0, b=-1.1)]
    assert list(margin_shifts(one, unknown)) == [0.0], "only the same two candidates compare"
    assert list(margin_shifts([token("x", -1.0)], one)) == []


def test_an_option_that_the_server_has_not_is_named() -> None:
    spec = ours(Variant.SEQUENTIAL, Path("m.gguf"), "--ctx-size", "256")
    known = frozenset({"--model", "--port", "--ctx-size", "--max-seqs"})
    assert missing_options(spec, known) == ["--no-prefix-sharing"]
    assert missing_options(spec, known | {"--no-prefix-sharing"}) == []
    assert "8123" in spec.on(8123)


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[Clients]:
    """Clients of a server that sends these bytes, piece by piece, to everyone."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield Clients(server.sockets[0].getsockname()[1])


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
        b': queued\n\ndata: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        b'data: {"choices":[{"delta":{"cont',
        b'ent":"a"}}]}\n\ndata: {"choices":[{"text":"b"}]}\n\n',
        b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\n' + USAGE + b"data: [DONE]\n\n",
    )
    for sent in (CHUNKED + chunked(*events), HEAD + b"\r\n" + b"".join(events)):
        async with answering(sent) as clients:
            seen = await clients.send(ASK)
        clients.check()
        assert (seen.text, len(seen.chunk_times), seen.is_complete) == ("ab", 2, True)
        assert seen.usage is not None
        assert (seen.output_tokens, seen.usage.cached_tokens, seen.timings.preemptions) == (2, 1, 4)


@pytest.mark.anyio
async def test_an_answer_that_follows_a_schema_has_the_length_that_it_has() -> None:
    ending = b'data: {"choices":[{"text":"{}","finish_reason":"stop"}]}\n\n' + USAGE + b"data: [DONE]\n\n"
    async with answering(CHUNKED + chunked(ending)) as clients:
        seen = await clients.send(CONSTRAINED)
    clients.check()
    assert (seen.finish_reason, seen.timings.forced_tokens, seen.output_tokens) == ("stop", 1, 2)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nwhat",
        CHUNKED + chunked(b'event: error\ndata: {"error":{"message":"what"}}\n\n'),
        CHUNKED + b"ffff\r\nwhat",
        CHUNKED + chunked(b'data: {"choices":[{"text":"b"}]}\n\n'),
        b"",
    ],
    ids=["status", "error event", "cut off", "no DONE", "nothing"],
)
async def test_what_goes_wrong_is_an_error_not_a_fast_answer(sent: bytes) -> None:
    async with answering(sent) as clients:
        await clients.closed_loop([ASK, ASK], num_clients=1)
    assert len(clients.traces) == 1, "a client that failed asks no more"
    assert clients.traces[0].error
    assert not clients.traces[0].is_complete
    with pytest.raises(LoadFailed):
        clients.check()


@pytest.mark.anyio
async def test_a_closed_loop_asks_everything_once() -> None:
    asks = [msgspec.structs.replace(ASK, seed=i) for i in range(9)]
    async with answering(CHUNKED + chunked(USAGE, b"data: [DONE]\n\n")) as clients:
        await clients.closed_loop(asks, num_clients=4)
    clients.check()
    assert sorted(trace.ask.seed for trace in clients.traces) == list(range(9))


def test_the_pure_scheduler_runs_and_ends_requests() -> None:
    scheduler = PureScheduler(num_slots=4)
    for i in range(6):
        tokens = random_tokens(20, i)
        scheduler.submit(GenerationRequest(id=str(i), tokens=tokens, max_tokens=3, sampling=Sampling(seed=i)))
    finished, most = 0, 0
    for _ in range(40):
        step = scheduler.schedule()
        scheduler.count(step)
        most = max(most, scheduler.num_running)
        finished += scheduler.finish_complete(scheduler.apply(step, scheduler.fake_result(step)))
    assert (finished, most) == (6, 4)


def test_the_report_tells_pass_from_miss() -> None:
    goals = tuple(
        Goal(what=f"speed {limit}", measured=1.5, direction=Direction.AT_LEAST, limit=limit, unit="x")
        for limit in (1.3, 1.6)
    )
    figure = Figure(what="output", rounds=Rounds((1.0, 150.0, 200.25)), unit="tok/s")
    report = Report(
        circumstances=Circumstances(
            started="now",
            model="m.gguf",
            commit="",
            cpu="c",
            num_cpus=2,
            memory_bytes=2**30,
            rounds=3,
            is_quick=True,
        ),
        load_before=(0.0, 0.0, 0.0),
        load_after=(1.0, 1.0, 1.0),
        results=(
            WorkloadResult(name="one", sizes="small", goals=goals, figures=(figure,)),
            WorkloadResult(name="two", sizes="", failure="no such option"),
        ),
    )
    text = markdown(report)
    assert "| one | speed 1.3 | 1.50 x | at least 1.3 x | pass |" in text
    assert "| one | speed 1.6 | 1.50 x | at least 1.6 x | miss |" in text
    assert "| output | 150 tok/s | 133 % | 1 150 200 |" in text
    assert "| two | no such option |  |  | not measured |" in text


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "benchmark.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_wrong_arguments_are_refused_by_name() -> None:
    for arguments in (("--workloads", "tea"), ("--rounds", "0"), ("--model", "no.gguf")):
        done = benchmark(*arguments)
        assert done.returncode == 2
        assert arguments[0] in done.stderr
    assert all(name in benchmark("--help").stdout for name in WORKLOADS)


@pytest.mark.native
def test_constrained_and_free_answers_are_measured(tmp_path: Path) -> None:
    model = str(tiny_model_path())
    done = benchmark("--quick", "--workloads", "json", "--model", model, "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report)
    (result,) = report.results
    figures = {figure.what: figure.rounds.values[0] for figure in result.figures}
    assert figures["constrained: valid answers"] == 100
    assert 0 < figures["forced tokens, of the output"] < 100
    assert [label for label, _ in result.uses] == ["ours", "ours"]


@pytest.mark.native
def test_a_workload_is_measured_and_written_down(tmp_path: Path) -> None:
    model = str(tiny_model_path())
    done = benchmark("--quick", "--workloads", "memory", "--model", model, "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes(), type=Report)
    (result,) = report.results
    assert result.failure is None
    cells = {figure.what: figure.rounds.values for figure in result.figures}
    assert 0 < cells["pool, cells held at peak"][0] < cells["cells without sharing"][0]
    ((label, use),) = result.uses
    assert label == "ours"
    assert use.peak_rss_bytes > 10**7
    assert use.cpu_s > 0
    assert "pool, cells held at peak" in (tmp_path / "report.md").read_text()
