"""`scripts/benchmark.py`: what it counts and how it judges; one small workload against the real server."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from bench import plots, schemas
from bench.asking import Ask, PromptDetails, Trace, Usage
from bench.bench import Bench
from bench.circumstances import shown
from bench.contest import Contest
from bench.contestants import Contestant, Room, Variant, ours
from bench.dialect import OURS, Dialect, SchemaField
from bench.load import Clients, LoadFailed, fixed_arrivals, poisson_arrivals
from bench.options import add_options, settle
from bench.peers import PeerPaths, PeerUnusable, absent, best_flags, peers
from bench.prompts import RandomPrompts, about, random_tokens, random_words
from bench.prose import prompts_for
from bench.report import markdown
from bench.results import (
    Circumstances,
    Curve,
    Direction,
    Distribution,
    Figure,
    Goal,
    Line,
    Report,
    WorkloadResult,
)
from bench.servers import ServerSpec, environment
from bench.stats import Rounds, percentile, ratios
from bench.tables import speed_table, times_table
from bench.time_limit import TimeLimit, TimeUp
from bench.workloads import WORKLOADS, bursts, chat, json_output, prefix, throughput
from bench.workloads.long_prompt import Passage
from bench.workloads.mixed_load import FULL, Window
from bench.workloads.turns import Talk
from benchmark import main
from gguf import GGUFWriter, LlamaFileType

from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.model_source import DemoFiles
from openai_cpu_server.structured.compiler import compile_schema
from tests.tiny_model import SCRIPTS, tiny_model_path

pytestmark = pytest.mark.thorough

CONSTRAINED = Ask(prompt=(300,), max_tokens=9, schema=schemas.REVIEW)
ASK = Ask(prompt=(300, 301, 302), max_tokens=2)
WHERE = Circumstances(
    started="now", model="m.gguf", commit="", cpu="c", num_cpus=2, memory_bytes=2**30, rounds=3, is_quick=True
)


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
    assert Rounds.of("abc", ord) == Rounds((97.0, 98.0, 99.0))


def test_rounds_are_compared_in_pairs() -> None:
    """A machine that is slow in the second round is slow for both."""
    assert ratios(Rounds((8.0, 2.0, 13.0)), Rounds((4.0, 1.0, 5.0))) == Rounds((2.0, 2.0, 2.6))
    assert ratios(Rounds((8.0, 10.0, 13.0)), Rounds((5.0,))) == Rounds((2.0,)), "no pairs: medians"
    assert ratios(Rounds((1.0,)), Rounds((0.0,))) == Rounds((math.inf,))


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
    first, second = prefix.asks(RandomPrompts(), prefix.FULL, 0), prefix.asks(RandomPrompts(), prefix.FULL, 1)
    assert len(first) == 48
    assert len({ask.prompt[:1080] for ask in first}) == 1
    assert len({ask.prompt[1080:] for ask in first}) == 48
    assert first[0].prompt[:64] != second[0].prompt[:64]
    assert {len(ask.prompt) for ask in first} == {1125}
    assert len({ask.prompt for ask in chat.asks(RandomPrompts(), chat.FULL, 0)}) == 24


def test_a_model_that_talks_is_asked_in_prose_of_exact_lengths() -> None:
    prose, again = (prompts_for(DemoFiles().path()) for _ in range(2))
    assert isinstance(prompts_for(tiny_model_path()), RandomPrompts)
    for count in (5, 33, 173, 4000):
        asked = prose.question(count, "chat", 0, 1)
        assert len(asked) == len(prose.text(count, "chat")) == count
        assert asked == again.question(count, "chat", 0, 1) != prose.question(count, "chat", 0, 2)
    with Vocabulary.open(DemoFiles().path()) as vocabulary:
        assert vocabulary.decode(list(prose.question(60, "chat"))).strip().endswith(("?", "."))


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
        assert compile_schema(schema).rules


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
    window = Window(0.0, 4.0, batch=[trace(0.0, [1.0, 2.0])], interactive=[trace(0.0, [3.0, 4.0])])
    assert window.computed_per_s == (5 + 4) / 4
    assert window.output_per_s == (2 + 1) / 4
    assert window.batch_output_per_s == 2 / 4


def test_a_stall_reaches_into_the_long_requests_time() -> None:
    long = trace(10.0, [15.0, 16.0])
    calm, hit, ended = trace(0.0, [8.0, 9.0, 15.5]), trace(0.0, [8.0, 8.5]), trace(0.0, [9.0, 11.0])
    ended.end = 11.0
    passage = Passage(long, [calm, hit, ended], end=16.0)
    assert sorted(passage.gaps_s) == [0.5, 2.0, 6.5, 7.5], "who still waits at the end has waited"
    assert passage.calm_s == 0.75
    assert passage.ttft_s == 5.0


def test_no_option_comes_from_the_users_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCS_MAX_SEQS", "3")
    monkeypatch.setenv("LLAMA_ARG_THREADS", "1")
    monkeypatch.setenv("ELSE", "kept")
    assert {"OCS_MAX_SEQS", "LLAMA_ARG_THREADS"}.isdisjoint(environment())
    assert environment()["ELSE"] == "kept"
    command = " ".join(ours(Variant.WHOLE, Path("m.gguf")).command)
    assert "--profile off" in command
    assert "--jobs-db none" in command


def test_options_can_come_in_a_file(tmp_path: Path) -> None:
    spec = ServerSpec("x", ("server", "{file}"), ready="/", file='{"port": {port}}')
    _, path = spec.on(8123, tmp_path)
    assert Path(path).read_text() == '{"port": 8123}'


def test_all_are_asked_for_the_same_in_their_own_words() -> None:
    plain, bound = OURS.body(ASK), OURS.body(CONSTRAINED)
    assert (plain["prompt"], plain["ignore_eos"]) == (ASK.prompt, True)
    assert "ignore_eos" not in bound
    assert "response_format" in bound
    assert {"top_k": 40, "min_p": 0.0, "repeat_penalty": 1.0}.items() <= plain.items()
    assert {"top_k", "min_p"}.isdisjoint(Dialect(knows_llama_sampling=False).body(ASK))
    other = Dialect(as_text=lambda tokens: "a" * len(tokens), end_tokens=(2, 7))
    body = other.body(ASK)
    assert (body["prompt"], body["logit_bias"]) == ("aaa", {"2": -100.0, "7": -100.0})
    assert "ignore_eos" not in body
    assert Dialect(schema=SchemaField.JSON_SCHEMA).body(CONSTRAINED)["json_schema"] == schemas.REVIEW


@pytest.mark.native
def test_peers_get_the_room_that_the_load_needs() -> None:
    paths = PeerPaths(Path("/x/llama-server"), Path("/x/python"), Path("/x/e.py"), Path("/x/ov/python"))
    model, room = tiny_model_path(), Room(pool_tokens=4096, request_tokens=300)
    specs = [who.spec(model, room) for who in peers(model, paths, "--no-repack -fa on")]
    plain, best, openvino, old, example = (" ".join(spec.command) for spec in specs)
    assert plain.endswith("-np 16 -c 8192")
    assert best.startswith(f"{plain} -t ")
    assert best.endswith(" --no-repack -fa on")
    assert " -tb " in best
    assert openvino.startswith("/x/ov/python ")
    assert openvino.endswith("--cache-tokens 8192")
    assert "--n_ctx 588 " in old, "a text may come to more tokens"
    assert "--interrupt_requests false" in old
    assert example.endswith("--config-file {file}")
    assert specs[4].file is not None
    assert '"n_ctx": 8192' in specs[4].file.replace("{port}", "1")
    assert specs[3].dialect.as_text is not None
    assert 20 <= len(specs[3].dialect.as_text(random_tokens(50, "x")).split()) <= 50
    assert specs[3].dialect.end_tokens
    assert shown(peers(model, paths, "")[0], model).endswith("-np 16 -c {room}")
    assert " --ctx-size {room}" in shown(Variant.WHOLE.contestant, model)
    assert not list(peers(model, PeerPaths(None, None, None), ""))
    assert len({who.label for who in peers(model, paths, "")}) == 5, "a label is one server's"
    here = peers(model, PeerPaths(Path("/x/llama-server"), None, None), "")
    assert absent({"ours", "llama-server", "example-server"}, here) == ["example-server"]


@pytest.mark.parametrize(
    ("architecture", "fact", "file_type", "flags"),
    [
        ("llama", "context_length", LlamaFileType.MOSTLY_Q4_K_M, "--no-repack"),
        ("gemma3", "attention.sliding_window", LlamaFileType.MOSTLY_Q4_K_M, "--no-repack"),
        ("gpt-oss", "attention.sliding_window", LlamaFileType.MOSTLY_MXFP4_MOE, "--no-repack"),
        ("qwen35", "ssm.state_size", LlamaFileType.MOSTLY_Q4_K_M, "--no-repack -ub 64"),
        ("lfm2", "shortconv.l_cache", LlamaFileType.MOSTLY_Q8_0, "--no-repack -ub 64"),
    ],
)
def test_llama_server_gets_the_flags_that_suit_the_models_memory(
    tmp_path: Path, architecture: str, fact: str, file_type: LlamaFileType, flags: str
) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, architecture)
    writer.add_uint32(f"{architecture}.{fact}", 128)
    writer.add_file_type(file_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert best_flags(path) == flags


@asynccontextmanager
async def answering(*pieces: bytes, dialect: Dialect = OURS) -> AsyncIterator[Clients]:
    """Clients of a server that sends these bytes, piece by piece, to everyone."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield Clients(server.sockets[0].getsockname()[1], dialect)


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
    for sent in (CHUNKED + chunked(*events), HEAD + b"\r\n" + b"".join(events)):
        async with answering(sent) as clients:
            seen = await clients.send(ASK)
        clients.check()
        assert (seen.text, len(seen.chunk_times), seen.is_complete) == ("ab", 2, True)
        assert seen.usage is not None
        assert (seen.output_tokens, seen.usage.cached_tokens, seen.timings.preemptions) == (2, 1, 4)


@pytest.mark.anyio
@pytest.mark.parametrize(("reason", "tokens"), [("length", 2), ("stop", 1)])
async def test_who_does_not_count_is_believed_to_have_gone_to_the_end(reason: str, tokens: int) -> None:
    chunk = f'data: {{"choices":[{{"text":"ab","finish_reason":"{reason}"}}]}}\n\n'.encode()
    async with answering(
        CHUNKED + chunked(chunk, b"data: [DONE]\n\n"), dialect=Dialect(tells_usage=False)
    ) as clients:
        seen = await clients.send(ASK)
    assert seen.is_complete
    assert seen.output_tokens == tokens


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


def test_the_report_tells_pass_from_miss() -> None:
    goals = tuple(
        Goal(
            what=f"speed {limit}",
            rounds=Rounds((1.5, 1.7, 1.2)),
            direction=Direction.AT_LEAST,
            limit=limit,
            unit="x",
        )
        for limit in (1.3, 1.6)
    )
    figure = Figure(what="output", rounds=Rounds((1.0, 150.0, 200.25)), unit="tok/s")
    servers = {"ours": Rounds((2.0,)), "theirs": Rounds((3.0, 4.0, 5.0))}
    line = Line(what="TTFT", unit="s", better=Direction.AT_MOST, servers=servers)
    report = Report(
        circumstances=WHERE,
        load_before=(0.0, 0.0, 0.0),
        load_after=(1.0, 1.0, 1.0),
        results=(
            WorkloadResult(name="one", sizes="small", goals=goals, figures=(figure,), lines=(line,)),
            WorkloadResult(name="two", sizes="", failure="no such option"),
        ),
    )
    text = markdown(report, {"one": ["one.png"]})
    assert "| one | speed 1.3 | 1.50 x (1.20 to 1.70) | at least 1.3 x | pass |" in text
    assert "| one | speed 1.6 | 1.50 x (1.20 to 1.70) | at least 1.6 x | miss |" in text
    assert "| output | 150 tok/s | 133 % | 1 150 200 |" in text
    assert "| median (spread) | unit | ours | theirs |" in text
    assert "| TTFT | s | 2 | 4 (50 %) |" in text
    assert "| two | no such option |  |  | not measured |" in text
    assert "![one](one.png)" in text
    assert "What the numbers do not show" in text


def test_goals_are_judged_against_who_was_measured() -> None:
    whole, best = Variant.WHOLE.contestant, Contestant("llama-server-best", "tuned", no_spec)
    contest = Contest({whole: [3.0, 1.0, 2.0], best: [9.0, 4.0, 8.0]})
    slow = contest.line("TTFT", "s", Direction.AT_MOST, float)
    absent, tuned = contest.goals_against_llama_server(slow, "TTFT", plain=40, best=4)
    assert (absent.measured, absent.is_met) == (None, None)
    assert (tuned.measured, tuned.is_met) == (4.0, True)
    assert tuned.rounds == Rounds((3.0, 4.0, 4.0))
    fast = contest.line("output", "tok/s", Direction.AT_LEAST, float)
    assert contest.goal_against("llama-server-best", fast, "output", 1.0).measured == 0.25
    assert contest.own_goal(slow, "TTFT", 2.5) == Goal(
        what="TTFT", rounds=Rounds((3.0, 1.0, 2.0)), direction=Direction.AT_MOST, limit=2.5, unit="s"
    )
    assert Contest({best: [1.0]}).goal_against("llama-server-best", fast, "output", 1.0).is_met is None


def test_who_has_no_figure_is_missing_in_one_line_only() -> None:
    whole, other = Variant.WHOLE.contestant, Contestant("llama-server", "theirs", no_spec)
    contest = Contest({whole: [[]], other: [[2.0]]})
    line = contest.line("TTFT", "s", Direction.AT_MOST, lambda values: percentile(values, 50))
    count = contest.line("answers", "", Direction.AT_LEAST, len)
    assert (set(line.servers), set(count.servers)) == ({"theirs"}, {"ours", "theirs"})
    assert "TTFT: ValueError: no values" in contest.failures["ours"]
    assert contest.goal_against("llama-server", line, "TTFT", 1).is_met is None
    assert contest.of_ours("goals", lambda runs: (percentile(runs[0], 50),)) == ()
    assert contest.of_ours("rounds", lambda runs: (len(runs),)) == (1,)


def test_the_time_is_up_in_a_workload_only() -> None:
    limit = TimeLimit(1)
    signal.pause()
    assert limit.is_over, "nothing was raised out here"
    with pytest.raises(TimeUp), limit.ending():
        raise AssertionError("nothing begins any more")


def no_spec(model: Path, room: Room) -> ServerSpec:
    raise AssertionError("nobody starts this one")


def ending(model: Path, room: Room) -> ServerSpec:
    return ServerSpec("broken", (sys.executable, "-c", "print('I am broken')"), ready="/")


def a_bench(**more: Any) -> Bench:
    options = {
        "model": Path("m.gguf"),
        "rounds": 2,
        "is_quick": True,
        "say": lambda line: None,
    }
    return Bench(**(options | more))


def test_who_fails_is_out_and_the_others_go_on() -> None:
    broken, fine = Contestant("broken", "broken", ending), Contestant("fine", "fine", no_spec)
    odd = Contestant("odd", "odd", no_spec)
    bench, tried = a_bench(), []

    def measure(who: Contestant, number: int) -> int:
        tried.append(who.key)
        if who is broken:
            with bench.start(who, Room(256, 256)):
                pass
        if who is odd:
            return round(percentile([], number))
        return number

    contest = bench.contest([broken, odd, fine], measure)
    assert tried == ["broken", "odd", "fine", "fine"]
    assert "ValueError: no values" in contest.failures["odd"]
    assert contest.runs == {fine: [0, 1]}
    assert "I am broken" in contest.failures["broken"]
    with pytest.raises(LoadFailed, match="I am broken"):
        bench.contest([broken], measure)


def test_only_those_are_measured_who_are_wanted() -> None:
    theirs = Contestant("llama-server", "llama-server", no_spec)
    wanted = frozenset({"ours", "llama-server"})
    everybody = a_bench(peers=[theirs]).contestants(Variant.WHOLE, Variant.FIFO)
    some = a_bench(peers=[theirs], keys=wanted).contestants(Variant.WHOLE, Variant.FIFO)
    assert [who.key for who in everybody] == ["ours", "fifo", "llama-server"]
    assert [who.key for who in some] == ["ours", "llama-server"]


def test_a_burst_comes_within_a_second() -> None:
    offsets = bursts.arrivals(bursts.FULL, 1)
    assert len(offsets) == 100
    assert offsets == sorted(offsets) == bursts.arrivals(bursts.FULL, 1) != bursts.arrivals(bursts.FULL, 2)
    assert 0 <= offsets[0] < offsets[-1] < 1


def test_questions_of_all_points_share_the_text_that_was_read_before() -> None:
    points = (0, *throughput.FULL.clients)
    asked = [list(itertools.islice(throughput.asks(throughput.FULL, 0, k), 2 * k + 1)) for k in points]
    assert len({ask.prompt[:1024] for asks in asked for ask in asks}) == 1
    assert len({ask.prompt for asks in asked for ask in asks}) == sum(map(len, asked))


def test_each_slot_is_told_the_shared_text_before_the_clock_starts() -> None:
    probes = throughput.probes(throughput.FULL, 0, 16)
    (shared,) = {ask.prompt[:1024] for ask in probes}
    assert len({ask.prompt for ask in probes}) == 16
    assert {ask.max_tokens for ask in probes} == {1}
    assert shared == next(throughput.asks(throughput.FULL, 0, 8)).prompt[:1024]


def test_what_is_given_back_is_of_the_prompt_and_the_answer_before() -> None:
    def trace(prompt: int, cached: int) -> Trace:
        one = Trace(ASK, arrival=0.0)
        one.usage = Usage(prompt, 10, PromptDetails(cached))
        return one

    first = [trace(90, 40), trace(190, 100), trace(290, 150), trace(390, 300)]
    second = [trace(90, 0), trace(190, 50), trace(290, 100), trace(390, 0)]
    talk = Talk([first, second])
    assert talk.given_back == (100 + 150 + 50 + 100) / (100 + 200 + 100 + 200)
    assert talk.given_back_after_restart == 300 / (300 + 300)
    assert [len(talk.later_turns), len(talk.restarted_turns)] == [4, 2]


def test_slower_machines_get_as_many_requests_in_a_longer_time() -> None:
    usual, slow, fast = FULL.paced(0.75), FULL.paced(7.5), FULL.paced(0.01)
    assert (usual.every_s, usual.window_s) == (1.5, FULL.window_s)
    assert (slow.every_s, slow.ramp_s, slow.window_s) == (15.0, 10 * FULL.ramp_s, 10 * FULL.window_s)
    assert (fast.every_s, fast.window_s) == (0.3, FULL.window_s)


def test_plots_are_drawn_of_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one = Rounds((1.0, 2.0))
    result = WorkloadResult(
        name="mixed",
        sizes="",
        curves=tuple(Curve(label=label, points=((1, one), (4, one))) for label in ("ours", "x")),
        distributions=(
            Distribution(label="ours", ttft_s=(0.1, 0.2), gaps_s=(0.01,)),
            Distribution(label="x", ttft_s=(0.3,), gaps_s=()),
        ),
    )
    empty = WorkloadResult(name="two", sizes="", failure="no")
    report = Report(circumstances=WHERE, load_before=(0, 0, 0), load_after=(0, 0, 0), results=(result, empty))
    drawn, failures = plots.draw(report, tmp_path)
    assert failures == {}
    assert drawn == {"mixed": ["mixed.png", "mixed-latency.png"], "two": []}
    for name in drawn["mixed"]:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_plot_that_fails_does_not_take_the_others_along(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "bad.png").mkdir()
    curve = Curve(label="ours", points=((1, Rounds((1.0,))),))
    results = tuple(WorkloadResult(name=name, sizes="", curves=(curve,)) for name in ("bad", "good"))
    report = Report(circumstances=WHERE, load_before=(0, 0, 0), load_after=(0, 0, 0), results=results)
    drawn, failures = plots.draw(report, tmp_path)
    assert drawn == {"bad": [], "good": ["good.png"]}
    assert "IsADirectoryError" in failures["bad.png"]


def test_no_two_servers_look_alike_in_plots() -> None:
    labels = ["ours", *(str(n) for n in range(13))]
    one = tuple(Distribution(label=label, ttft_s=(0.1,), gaps_s=()) for label in labels)
    result = WorkloadResult(name="prefix", sizes="", distributions=one)
    strokes = plots.strokes_of(
        Report(circumstances=WHERE, load_before=(0, 0, 0), load_after=(0, 0, 0), results=(result,))
    )
    assert len(set(strokes.values())) == len(labels) == len(strokes)


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "benchmark.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_peer_that_was_named_must_run() -> None:
    with pytest.raises(PeerUnusable, match="--llama-server: "):
        PeerPaths.found(Path("/dev/null"))


def refusal(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int | str | None:
    """The exit code of the script, in this process, with arguments that it does not go on from."""
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_wrong_arguments_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ("--workloads", "tea"),
        ("--servers", "ours,tea"),
        ("--rounds", "0"),
        ("--model", "no.gguf"),
        ("--quant", "q8_0", "--model", "demo"),
        ("--quant", "mxfp4", "--shape", "qwen35"),
        ("--quant", "iq2_xxs"),
        ("--shape", "1b,tea"),
        ("--shape", "1b:tea"),
        ("--llama-server", "nowhere"),
    ):
        assert refusal(arguments, monkeypatch) == 2
        assert arguments[0] in capsys.readouterr().err
    assert refusal(["--help"], monkeypatch) == 0
    told = "".join(capsys.readouterr().out.split())  # it breaks lines at hyphens
    assert all(name in told for name in WORKLOADS)


def shapes(*arguments: str) -> list[str]:
    """What these arguments measure."""
    parser = argparse.ArgumentParser()
    add_options(parser, several=True)
    asked = parser.parse_args(arguments)
    settle(parser, asked)
    return [str(shape) for shape in asked.shape]


def test_several_shapes_have_each_their_type() -> None:
    assert shapes() == ["1b q4_k_m"]
    assert shapes("--quick", "--type", "q8_0") == ["50m q8_0"]
    assert shapes("--shape", "qwen3moe,gpt-oss,qwen3.5,1b:iq4_xs") == [
        "qwen3-moe q4_k_m",
        "gpt-oss mxfp4",
        "qwen3.5 q4_k_m",
        "1b iq4_xs",
    ]
    assert shapes("--shape", "1b:q2_k,lfm2", "--quant", "q3_k_m") == ["1b q2_k", "lfm2 q3_k_m"]


def test_models_are_compared_with_the_better_of_two_flags() -> None:
    def report(*figures: float | None) -> Report:
        labels = ("ours", "llama-server", "llama-server --no-repack", "OpenVINO GenAI")
        servers = {
            label: Rounds((figure, figure)) for label, figure in zip(labels, figures, strict=True) if figure
        }
        lines = (
            Line(what="output, 1 client", unit="tok/s", better=Direction.AT_LEAST, servers=servers),
            Line(what="CPU, 1 client", unit="cores", better=Direction.AT_MOST, servers=servers),
        )
        result = WorkloadResult(name="clients", sizes="", lines=lines)
        return Report(circumstances=WHERE, load_before=(0, 0, 0), load_after=(0, 0, 0), results=(result,))

    reports = {
        "a": report(30.0, 20.0, 15.0, 99.0),
        "b": report(30.0, 10.0, 40.0, None),
        "c": report(1, *3 * [None]),
    }
    table = times_table(reports, "ours", "llama-server")
    assert table.heads == ("times llama-server", "output, 1 client")
    assert table.rows == [("a", "1.50"), ("b", "0.75"), ("c", "")]
    speeds = speed_table(reports)
    assert speeds.heads == ("model", "server", "output, 1 client")
    assert ("b", "llama-server --no-repack", "40") in speeds.rows
    assert len(speeds.rows) == 4 + 3 + 1
    reports["a"] = msgspec.structs.replace(reports["a"], results=())
    assert times_table(reports, "ours", "llama-server").rows[:2] == [("a", ""), ("b", "0.75")]


def measured(folder: Path, *arguments: str) -> tuple[WorkloadResult, ...]:
    """Workloads on the tiny model, small and once."""
    model = str(tiny_model_path())
    done = benchmark("--quick", "--model", model, "--output", str(folder), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)
    assert [result.failure for result in report.results] == [None] * len(report.results)
    return report.results


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two workloads with two servers."""
    folder = tmp_path_factory.mktemp("run")
    measured(folder, "--workloads", "chat,memory", "--servers", "ours,static")
    return folder


def result_of(folder: Path, workload: str) -> WorkloadResult:
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)
    (result,) = (result for result in report.results if result.name == workload)
    return result


@pytest.mark.slow
@pytest.mark.native
def test_two_servers_stand_side_by_side(written: Path) -> None:
    result = result_of(written, "chat")
    output = result.lines[0]
    assert set(output.servers) == {"ours", "static batching"}
    assert all(rounds.median > 0 for rounds in output.servers.values())
    assert [one.label for one in result.distributions] == ["ours", "static batching"]
    (judged,) = [goal for goal in result.goals if goal.is_met is not None]
    assert judged.what == "worst stall"
    assert "| output | tok/s |" in (written / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize(
    "name",
    [
        "throughput",
        "clients",
        "prefix",
        "turns",
        "prompt",
        "long-prompt",
        "long-prompt-16",
        "bursts",
        "unequal",
        "pictures",
        "sound",
    ],
)
def test_a_workload_has_figures_for_each_server(name: str) -> None:
    keys = frozenset({"ours"})
    bench = a_bench(model=tiny_model_path(), keys=keys, rounds=1)
    result = WORKLOADS[name](bench)
    assert result.failures == {}
    assert all(line.servers["ours"].median > 0 for line in result.lines)
    assert len(result.lines) >= (1 if name == "prompt" else 3)


@pytest.mark.slow
@pytest.mark.native
def test_constrained_and_free_answers_are_measured(tmp_path: Path) -> None:
    (result,) = measured(tmp_path, "--workloads", "json", "--servers", "ours")
    values = {line.what: line.servers["ours"].median for line in result.lines}
    assert values["constrained: valid answers"] == 100
    (forced,) = result.figures
    assert 0 < forced.rounds.median < 100
    assert [label for label, _ in result.uses] == ["ours", "ours"]


@pytest.mark.slow
@pytest.mark.native
def test_a_workload_is_measured_and_written_down(written: Path) -> None:
    result = result_of(written, "memory")
    cells = {figure.what: figure.rounds.values for figure in result.figures}
    assert 0 < cells["pool, cells held at peak"][0] < cells["cells without sharing"][0]
    ((label, use),) = result.uses  # it is of our server alone
    assert label == "ours"
    assert use.peak_rss_bytes > 10**7
    assert use.cpu_s > 0
    assert "pool, cells held at peak" in (written / "report.md").read_text()
