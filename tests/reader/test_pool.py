"""Reader processes may die: the request that killed one gets an error, and no other request notices."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from openai_cpu_server.contract.grammar import GrammarOrder, GrammarSource, MadeGrammar, RefusedGrammar
from openai_cpu_server.errors import (
    DeadlyInput,
    EngineUnavailable,
    InvalidRequest,
    StartupError,
    TemplateFailed,
)
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.prompt.chat_prompts import Conversation
from openai_cpu_server.reader.child import ReaderChild
from openai_cpu_server.reader.messages import ModelSource
from openai_cpu_server.reader.model import ReadModel
from openai_cpu_server.reader.pool import ReaderPool
from tests.gates import suspended
from tests.llama.odd_models import rewritten
from tests.reader.conftest import DEMO, opened
from tests.tiny_model import tiny_model_path
from tests.waiting import wait_until

USER = {"role": "user", "content": "Hello there"}
TEXTS = ["", "Hello", "Grüße, 世界 👋🏽", "nul \0 inside", "<|im_start|>user", "x" * 70_000]


def encoded(model: ReadModel, *texts: str) -> list[tuple[int, ...]]:
    return model.tokenizer.encode_all(list(texts), add_special=False, parse_special=False)


def templated(pool: ReaderPool, source: str) -> ReadModel:
    return ReadModel(pool, ModelSource(path=str(DEMO), generates=True, chat_template=source))


@pytest.mark.parametrize("path", [DEMO, tiny_model_path()])
def test_a_reader_agrees_with_the_vocabulary(pool: ReaderPool, path: Path) -> None:
    read = opened(pool, path).tokenizer
    with Vocabulary.open(path) as own:
        for special in (False, True):
            wanted = [own.encode(text, add_special=special, parse_special=special) for text in TEXTS]
            assert read.encode_all(TEXTS, add_special=special, parse_special=special) == wanted
            assert [read.encode(t, add_special=special, parse_special=special) for t in TEXTS] == wanted
            for token in range(own.vocab_size):
                assert read.piece(token, special=special) == own.piece(token, special=special)
        facts = ("vocab_size", "bos", "bos_text", "eos_text", "adds_bos", "fim", "marks", "end_tokens")
        assert [getattr(read, name) for name in facts] == [getattr(own, name) for name in facts]
        for wrong in (-1, own.vocab_size):
            with pytest.raises(InvalidRequest, match="is not a token"):
                read.piece(wrong)


def test_a_lone_surrogate_is_a_replacement_character(demo: ReadModel) -> None:
    tokens = demo.tokenizer.encode("a\ud83d b", add_special=False, parse_special=False)
    assert demo.tokenizer.decode(tokens) == "a\ufffd b"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_a_request_after_a_death_does_not_notice(demo: ReadModel, pool: ReaderPool, number: int) -> None:
    wanted = demo.prompt(Conversation(messages=[USER]))
    deaths, pid = pool.deaths, pool.pids[0]
    os.kill(pid, number)
    if number != signal.SIGTERM:  # the main thread dies first, and the working thread may still answer
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    assert demo.prompt(Conversation(messages=[USER])) == wanted
    # SIGTERM is ignored, because the parent decides when to end.
    assert pool.deaths == deaths + (number != signal.SIGTERM)


@pytest.mark.parametrize("kills", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_kills_under_load_cost_nothing(demo: ReadModel, pool: ReaderPool, kills: int) -> None:
    """Kill again once the pool has recovered, at a random moment of its work."""
    wanted = demo.tokenizer.encode_all(TEXTS, add_special=True, parse_special=False)
    done = itertools.count()
    num_done = 0

    def work(number: int) -> bool:
        nonlocal num_done
        texts = demo.tokenizer.encode_all(TEXTS, add_special=True, parse_special=False)
        order = GrammarOrder(source=GrammarSource.REGEX, text=f"a{{{number % 7}}}")
        made = demo.make_grammar(order)
        num_done = next(done)
        return texts == wanted and isinstance(made, MadeGrammar)

    def kill() -> None:
        for _ in range(kills):
            seen = num_done
            wait_until(lambda: num_done > seen + 1)  # noqa: B023 (called at once)
            for pid in pool.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    deaths = pool.deaths
    with ThreadPoolExecutor(9) as threads:
        killer = threads.submit(kill)
        number = 0
        while not killer.done():
            assert all(threads.map(work, range(number, number + 16)))
            number += 16
        killer.result()
    assert pool.deaths >= deaths + kills


def test_a_text_that_kills_a_reader_is_refused_and_others_are_read(pool: ReaderPool, tmp_path: Path) -> None:
    """Beyond a million letters even the large stack is used up by a splitter that recurses for each."""
    odd = opened(pool, rewritten(DEMO, tmp_path / "odd.gguf", {"tokenizer.ggml.pre": "gpt-4o"}))
    with ThreadPoolExecutor(2) as threads:
        deadly = threads.submit(odd.tokenizer.encode, "a" * 2_500_000, add_special=False, parse_special=False)
        for _ in range(9):
            assert odd.tokenizer.encode("Hello", add_special=False, parse_special=False)
            assert encoded(odd, "b" * 99)
        with pytest.raises(DeadlyInput, match="SIGSEGV"):
            deadly.result()
    odd.close()


def test_a_reader_has_bounds_of_time_and_memory_and_leaves_no_core(demo: ReadModel, pool: ReaderPool) -> None:
    """The kernel enforces the limits, also on native code that does not return."""
    assert encoded(demo, "begins a piece of work")
    limits = psutil.Process(pool.pids[0]).rlimit(psutil.RLIMIT_CPU)
    assert 10 <= limits[0] <= 1000
    assert psutil.Process(pool.pids[0]).rlimit(psutil.RLIMIT_DATA)[0] < 4 * 2**30
    assert psutil.Process(pool.pids[0]).rlimit(psutil.RLIMIT_CORE)[0] == 0


def test_a_closed_pool_ends_its_processes_and_refuses_work() -> None:
    pool = ReaderPool(child=ReaderChild())
    model = opened(pool, DEMO)
    pool.start_program_reader()
    wait_until(lambda: len(pool.pids) == 2)
    children = [psutil.Process(pid) for pid in pool.pids]
    pool.close()
    assert not any(child.is_running() for child in children)
    with pytest.raises(EngineUnavailable, match="shutting down"):
        encoded(model, "x" * 99)


def test_work_in_progress_fails_when_its_pool_is_closed() -> None:
    pool = ReaderPool(child=ReaderChild())
    model = opened(pool, DEMO)
    (pid,) = pool.pids
    with suspended(pid), ThreadPoolExecutor(1) as threads:
        work = threads.submit(encoded, model, "x" * 99)
        wait_until(lambda: pool.load()["quick"].running == 1)
        pool.close()
        with pytest.raises(EngineUnavailable, match="shutting down"):
            work.result()
    assert not psutil.pid_exists(pid)


def test_a_replaced_file_is_not_read_for_the_old_model(pool: ReaderPool, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(DEMO, path)
    model = opened(pool, path)
    shutil.copy(tiny_model_path(), tmp_path / "new.gguf")
    (tmp_path / "new.gguf").replace(path)
    assert encoded(model, "Hello")  # the old file is still open
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineUnavailable, match="must reload it"):
        encoded(model, "Hello")
    model.close()


def test_a_closed_model_is_opened_again_if_it_is_used(pool: ReaderPool, demo: ReadModel) -> None:
    model = opened(pool, DEMO)
    model.close()
    assert encoded(demo, "Hello")
    assert encoded(model, "Hello")


def test_errors_of_templates_are_reported(pool: ReaderPool) -> None:
    source = "{{ raise_exception('no ' + messages[0].content) }}"
    model = templated(pool, source)
    with pytest.raises(TemplateFailed, match="no Hello there"):
        model.prompt(Conversation(messages=[USER]))
    with pytest.raises(StartupError, match="line 1"):
        templated(pool, "{% if %}")


def test_half_a_character_in_a_reply_is_replaced(pool: ReaderPool) -> None:
    deaths = pool.deaths
    with pytest.raises(TemplateFailed, match="\ufffd"):
        templated(pool, r"{{ raise_exception('\ud800') }}").prompt(Conversation(messages=[USER]))
    assert pool.deaths == deaths


def test_numbers_of_any_size_reach_a_template(pool: ReaderPool) -> None:
    source = "{{ n }} {{ tools | tojson }} {{ messages[0].content }}"
    model = templated(pool, source)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"maximum": 10**400}}}
    conversation = Conversation(messages=[USER], tools=[tool], variables={"n": 2**70})
    text = model.tokenizer.decode(model.prompt(conversation).tokens, special=True)
    assert str(2**70) in text
    assert str(10**400) in text


def test_a_prompt_that_surely_does_not_fit_is_not_tokenised(demo: ReadModel) -> None:
    long = {"role": "user", "content": "word " * 100_000}
    with pytest.raises(InvalidRequest, match="maximum context length is 100 tokens, but at least") as raised:
        demo.prompt(Conversation(messages=[long], most_tokens=100))
    assert raised.value.code == "context_length_exceeded"
    short = {"role": "user", "content": "word " * 20}
    assert demo.prompt(Conversation(messages=[short], most_tokens=100)).tokens


def test_a_template_that_grows_without_end_costs_its_request_alone(pool: ReaderPool) -> None:
    """The limits inside the sandbox do not see what filters do, but those of the process do."""
    source = "{% set ns = namespace(x='x' * 60000000) %}{% if messages[0].content == 'grow' %}" + (
        "{% set ns.x = [ns.x] * 99999 | list %}{{ ns.x | join | length }}{% endif %}{{ messages[0].content }}"
    )
    model = templated(pool, source)
    with pytest.raises((InvalidRequest, TemplateFailed)):
        model.prompt(Conversation(messages=[{"role": "user", "content": "grow"}]))
    assert model.prompt(Conversation(messages=[USER])).tokens
    model.close()


def test_named_templates_of_a_file_are_read(pool: ReaderPool, tmp_path: Path) -> None:
    key, turns = "tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}"
    templates: dict[str, object] = {
        f"{key}s": ["tool_use", "rerank", "broken"],
        f"{key}.tool_use": '<tool_call>{# "arguments" #}{{ tools }}' + turns,
        f"{key}.rerank": "{query} {document}",
        f"{key}.broken": "{% if",
    }
    model = opened(pool, rewritten(tiny_model_path(), tmp_path / "named.gguf", templates))
    assert {name: each.tool_format for name, each in model.facts.named.items()} == {"tool_use": "hermes"}
    chat, tool_use = (Conversation(messages=[USER], template=name) for name in ("", "tool_use"))
    text = model.tokenizer.decode(model.prompt(tool_use).tokens, special=True)
    assert text.endswith("<tool_call>NoneHello there")
    assert "<tool_call>" not in model.tokenizer.decode(model.prompt(chat).tokens, special=True)
    model.close()


def test_grammars_are_made_in_a_reader(demo: ReadModel) -> None:
    make = demo.make_grammar
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert isinstance(make(GrammarOrder(source=GrammarSource.SCHEMA, text=schema)), MadeGrammar)
    refused = make(
        GrammarOrder(source=GrammarSource.SCHEMA, text='{"properties": {"a": {"$dynamicRef": "#x"}}}')
    )
    assert isinstance(refused, RefusedGrammar)
    assert refused.path == "/properties/a"
    wrong = make(GrammarOrder(source=GrammarSource.GBNF, text="root ::= ("))
    assert isinstance(wrong, RefusedGrammar)
    assert wrong.code == "invalid_grammar"


def test_a_pattern_that_a_vocabulary_cannot_follow_is_refused(demo: ReadModel) -> None:
    pattern = "".join(f"(?=.*[{c}-z]{{1,60}}[a-{c}]{{3,70}}.*)" for c in "bcdefghij") + ".*"
    refused = demo.make_grammar(GrammarOrder(source=GrammarSource.REGEX, text=pattern))
    assert isinstance(refused, RefusedGrammar)


PATTERNS = [
    *(r"\S", r"\w", "[A-Za-z]", "[^ ]", r"\S\S", "[aeiou]", r".*\S.*", r"\S+\s+\S+", "town", r"\d"),
    *("[.!?]$", r"^\S", r"^[^<>]*$", r"^(?!\s*$).+", r"\btown\b", r"^((?!foo).)*$"),
    *(r"^(?!\s)(?!.*\s$).+$", "^[a-z]+( [a-z]+)*$"),
]


@pytest.mark.parametrize("more", [{"maxLength": 10_000}, {"minLength": 300, "maxLength": 9_000}])
def test_lengths_beside_patterns_can_be_followed(demo: ReadModel, more: dict[str, int]) -> None:
    texts = [{"type": "string", "pattern": pattern, **more} for pattern in PATTERNS]
    texts += [{"type": "string", "not": {"pattern": "town"}, **more}]
    texts += [{"type": "string", "allOf": [{"pattern": r"\d"}, {"pattern": "[a-z]"}], **more}]
    texts += [{"type": "string", "format": "email", "pattern": r"@example\.com$", "maxLength": 254}]
    for text in texts:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": text}, "required": ["b"]}
        made = demo.make_grammar(GrammarOrder(source=GrammarSource.SCHEMA, text=json.dumps(schema)))
        assert isinstance(made, MadeGrammar), (text, made)


def test_a_grammar_becomes_a_part_of_another(demo: ReadModel) -> None:
    """The part crosses to the process twice, as bytes. The grammar has the model's control tokens."""
    make = demo.make_grammar
    part = make(GrammarOrder(source=GrammarSource.CHOICES, text='["a", "é"]'))
    assert isinstance(part, MadeGrammar)
    order = GrammarOrder(source=GrammarSource.PARTS, text='<[7]> ("," p)*', parts={"p": part.rules})
    made = make(order)
    assert isinstance(made, MadeGrammar)
    assert "<[7]>" in made.lark
    check = GrammarCheck(made.lark.replace("<[7]>", '"!"'))
    assert check.check("!,a,é").fits
    assert not check.check("!,b").fits


def test_a_grammar_that_kills_a_reader_is_refused(demo: ReadModel) -> None:
    """The grammar library recurses for each rule of a chain. The pool must survive a crash of it, whatever
    the limits in front of it prevent."""
    chain = (
        "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(200_000)) + 'r200000 ::= "x"\n'
    )
    refused = demo.make_grammar(GrammarOrder(source=GrammarSource.GBNF, text=chain))
    assert isinstance(refused, RefusedGrammar)
    assert isinstance(demo.make_grammar(GrammarOrder(source=GrammarSource.REGEX, text="a")), MadeGrammar)
