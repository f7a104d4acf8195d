"""The evaluation gives full marks to the corpus' own answers, and none to wrong ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from demo_model.corpus.example import Example, Role
from demo_model.corpus.mixture import whole_mixture
from demo_model.evaluation.asking import asked, held_out, own_answer
from demo_model.evaluation.conversations import CONVERSATIONS, Conversation
from demo_model.evaluation.documents import Document, documents
from demo_model.evaluation.engine import Asked, Engine
from demo_model.evaluation.likeness import Likeness, Perplexity, read
from demo_model.evaluation.marks import Mark, added_up
from demo_model.evaluation.native import Native
from demo_model.evaluation.rows import GOALS, Row, Unit, of_likeness, of_reading, of_scores, table
from demo_model.evaluation.run_log import read_run
from demo_model.evaluation.scoring import SCORERS, calls_of
from demo_model.evaluation.story_checks import faults, loops
from demo_model.evaluation.texts import holds, last_number, same_json
from demo_model.evaluation.transcript import transcript
from numpy.typing import NDArray

from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.tiny_model import tiny_model_path

MIXTURE = whole_mixture(seed=3)
KINDS = sorted(SCORERS)


def marks(kind: str, answer: str, /, **expected: object) -> dict[str, tuple[int, int]]:
    found = SCORERS[kind](Example(kind, expected=expected), answer)
    return {one.score: (one.right, one.of) for one in found}


def rights(kind: str, answer: str, /, **expected: object) -> list[int]:
    return [right for right, _ in marks(kind, answer, **expected).values()]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "stories"])
def test_the_corpus_own_answers_are_right(kind: str) -> None:
    for example in held_out(MIXTURE, kind, 40):
        for one in SCORERS[kind](example, own_answer(example)):
            assert one.right == one.of > 0, (one, example.expected, own_answer(example))


def test_the_corpus_own_stories_hardly_ever_break_a_rule() -> None:
    stories = held_out(MIXTURE, "stories", 60)
    found = added_up(one for story in stories for one in SCORERS["stories"](story, own_answer(story)))
    assert len(found) == 4
    assert all(score.share >= 0.95 for score in found)


@pytest.mark.parametrize("kind", KINDS)
def test_nonsense_is_never_right(kind: str) -> None:
    for example in held_out(MIXTURE, kind, 10):
        for answer in ("", "Wrong wrong", "<|tool_call|>{"):
            scored = [one for one in SCORERS[kind](example, answer) if one.right]
            may = {"tools: none where none fits"} if answer == "Wrong wrong" else set()
            may |= {"stories: no loops"} if kind == "stories" else set()
            assert {one.score for one in scored} <= may


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_asked_without_the_answer(kind: str) -> None:
    for example in held_out(MIXTURE, kind, 10):
        question = asked(example)
        assert len(question.messages) == len(example.turns) - 1
        assert question.messages[-1]["role"] in {"user", "tool"}
        assert question.tools == example.tools


def test_held_out_examples_are_the_same_every_time() -> None:
    assert held_out(MIXTURE, "recall", 20) == held_out(whole_mixture(seed=3), "recall", 20)


def test_fields_count_one_by_one_and_unwanted_ones_as_wrong() -> None:
    wanted = {"rating": 4, "pros": ["fair price"]}
    for answer, fields, is_exact, is_json in (
        ('{"rating":4,"pros":["fair price"]}', (2, 2), 1, 1),
        ('{"rating":4,"pros":["fair"]}', (1, 2), 0, 1),
        ('{"rating":4}', (1, 2), 0, 1),
        ('{"rating":4,"pros":["fair price"],"cons":[]}', (2, 3), 0, 1),
        ('{"rating":"4","pros":["fair price"]}', (1, 2), 0, 1),
        ('{"rating":4,"pros":["fair price"]', (0, 2), 0, 0),
        ("[4]", (0, 2), 0, 1),
    ):
        found = marks("extract_review", answer, json=wanted)
        assert found["extraction: fields exact"] == found["extraction: fields of reviews"] == fields
        assert found["extraction: whole answers exact"] == (is_exact, 1)
        assert found["extraction: answers that are JSON"] == (is_json, 1)


def test_a_class_is_the_word_alone_or_the_whole_json() -> None:
    assert rights("classify_topic", "food", answer="food") == [1, 1]
    assert rights("classify_topic", "food and drink", answer="food") == [0, 0]
    assert rights("classify_topic", "Food", answer="food") == [0, 0]
    assert rights("classify_topic", '{"label": "food"}', json={"label": "food"}) == [1, 1]
    assert rights("classify_topic", "food", json={"label": "food"}) == [0, 0]


def call(name: str, **arguments: object) -> Mapping[str, object]:
    return {"name": name, "arguments": arguments}


def written(*calls: Mapping[str, object]) -> str:
    return "<|tool_call|>" + "\n".join(json.dumps(one) for one in calls)


def test_the_right_tool_is_one_score_and_its_arguments_another() -> None:
    wanted = [call("get_weather", city="Oslo"), call("get_weather", city="Rome")]
    assert rights("tool_call", written(*wanted), calls=wanted) == [1, 1]
    assert rights("tool_call", written(wanted[0], call("get_weather", city="Rom")), calls=wanted) == [1, 0]
    assert rights("tool_call", written(wanted[0]), calls=wanted) == [0, 0]
    assert rights("tool_call", written(*wanted).removeprefix("<|tool_call|>"), calls=wanted) == [0, 0]
    assert rights("tool_none", "There is no tool.", calls=[]) == [1]
    assert rights("tool_none", written(wanted[0]), calls=[]) == [0]
    assert calls_of(written(wanted[0]) + "\nand more") == []


def test_texts_hold_whole_words() -> None:
    assert holds("He met Ann.", "Ann")
    assert holds("A rabbit.", "a rabbit")
    assert not holds("He met Anna.", "Ann")
    assert not holds("312", "12")
    assert not holds("ANN", "Ann")
    assert not holds("anything", "")
    assert last_number("5 + 2.5 = 7.5, right.") == "7.5"
    assert last_number("none") is None
    assert not same_json(True, 1)


def test_answers_to_sums_questions_and_lists() -> None:
    assert rights("arithmetic", "2 + 3 = 5, so the answer is 5.", answer="5") == [1]
    assert rights("arithmetic", "5 = 2 + 3", answer="5") == [0]
    assert rights("paragraph_qa", "Noor lost it.", answer="No") == [0]
    assert rights("paragraph_qa", "No, Noor lost it.", answer="No") == [1]
    assert rights("paragraph_qa", "In the garden.", answer="in the garden") == [1]
    assert rights("facts", "Paris is the capital of France.", answer="The capital of France is Paris.") == [1]
    assert rights("facts", "Rome is the capital of France.", answer="The capital of France is Paris.") == [0]
    for answer, is_right in (
        ("1. cat\n2. dog", 1),
        ("- cat\n- dog", 1),
        ("cat, cat", 0),
        ("cat, dog, hamster", 0),
        ("cat, piano", 0),
    ):
        assert rights("lists", answer, count=2, category="pets") == [is_right]


GOOD = 'Tom met an owl. "Who is there?" asked Tom. "It is I, an old friend," said the owl.'


@pytest.mark.parametrize(
    ("story", "what"),
    [
        (GOOD.replace("an owl", "a owl"), "a owl"),
        (GOOD.replace("an owl.", "an owl"), None),
        (GOOD + " then they slept.", "small letter"),
        (GOOD[:-1], "does not end"),
        (GOOD.lower(), "small letter"),
        (GOOD.replace("met an", "met met an"), "met met"),
        (GOOD.replace('friend,"', "friend,"), "quote"),
        (GOOD, None),
        ("The Owl\n\n" + GOOD, None),
    ],
)
def test_grammar_rules(story: str, what: str | None) -> None:
    found = faults(story)
    assert found == [] if what is None else any(what in fault for fault in found)


def test_loops_are_sentences_and_rows_of_words_that_come_back() -> None:
    assert loops(GOOD) == []
    assert loops(GOOD + " Tom met an owl.") == ["tom met an owl."]
    assert loops("They went to the old red house, and they went to the old red barn.") == [
        "they went to the old red"
    ]


def test_a_story_has_its_length_and_its_names() -> None:
    found = marks("stories", GOOD, names=["Tom", "Ann"], words=[10, 20], topic="")
    assert found["stories: names kept"] == (0, 1)
    assert found["stories: length as asked"] == (1, 1)
    assert marks("stories", GOOD, names=["Tom"], words=[30, 40], topic="")["stories: length as asked"] == (
        0,
        1,
    )
    assert "stories: names kept" not in marks("stories", GOOD, names=[], words=[10, 20], topic="")


def test_perplexity_of_even_odds_is_the_size_of_the_vocabulary() -> None:
    document = Document(True, [1, 2, 3], np.array([False, True, True]))
    found = Perplexity()
    found.add(np.zeros((3, 4), np.float32), document)
    assert found.value == pytest.approx(4.0)
    assert found.num_tokens == 2


def test_perplexity_looks_at_the_logits_before_each_counted_token() -> None:
    logits = np.zeros((3, 4), np.float32)
    logits[0, 2] = 50.0  # of what follows the first token
    found = Perplexity()
    found.add(logits, Document(False, [1, 2, 3], np.array([False, True, False])))
    assert found.value == pytest.approx(1.0)


def test_likeness_counts_places_with_the_same_likeliest_token() -> None:
    left, right = np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32)
    left[:, 1], right[:, 1], right[3, 2] = 1.0, 1.0, 3.0
    found = Likeness()
    found.add(left, right)
    assert (found.num_same, found.num_tokens, found.largest) == (3, 4, 3.0)


def test_a_reading_compares_only_where_there_are_two_models() -> None:
    document = Document(True, [1, 2, 3], np.array([False, True, True]))

    def flat(tokens: list[int]) -> NDArray[np.float32]:
        return np.zeros((len(tokens), 4), np.float32)

    alone, both = read([document], flat, None), read([document], flat, flat)
    assert [row.count for row in of_reading("text", alone)] == [2]
    assert of_likeness([alone]) == []
    assert [row.value for row in of_reading("text", both)] == pytest.approx([4.0, 4.0])
    assert [(row.value, row.count, row.verdict) for row in of_likeness([both, both])] == [
        (1.0, 6, "pass"),
        (0.0, 6, ""),
    ]


def test_documents_are_plain_or_conversations_of_what_the_model_writes() -> None:
    def by_letter(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    for plain in (True, False):
        found = list(documents(MIXTURE, by_letter, plain=plain, tokens=5000, longest=2000))
        assert sum(len(document.tokens) for document in found) >= 5000
        assert all(document.is_plain is plain and not document.counted[0] for document in found)
    text = "".join(map(chr, found[0].tokens))
    shown = "".join(letter for letter, counted in zip(text, found[0].counted, strict=True) if counted)
    assert shown.endswith("<|im_end|>")
    assert "<|im_start|>" not in shown
    assert "<|im_start|>user" in text


def test_rows_meet_their_goal_or_miss_it_and_survive_json() -> None:
    name = next(iter(GOALS))
    rows = [*of_scores(added_up([Mark(name, 94, 100), Mark("other", 1, 2)])), Row(name, 0.95, 20)]
    assert [row.verdict for row in rows] == ["miss", "", "pass"]
    assert [row.shown for row in rows] == ["94.0%", "50.0%", "95.0%"]
    number = Row("perplexity", 3.14159, 7, Unit.NUMBER)
    assert number.shown == "3.142"
    for row in (*rows, number):
        assert Row.from_json(json.loads(json.dumps(row.as_json()))) == row
    assert table(rows, "title").row_count == 3


def test_every_goal_belongs_to_a_score() -> None:
    named = {one.score for kind in KINDS for one in SCORERS[kind](held_out(MIXTURE, kind, 1)[0], "")}
    assert {name for name in GOALS if not name.startswith("GGUF")} <= named


def test_a_log_of_a_continued_run_holds_each_step_once(tmp_path: Path) -> None:
    def line(step: int, **more: object) -> str:
        return json.dumps({"step": step, "tokens": 10 * step, "seconds": 2.0 * step, **more}) + "\n"

    steps = [
        line(10, loss=5.0),
        line(20, loss=4.0),
        line(30, loss=9.0),
        line(20, loss=3.0),
        line(30, loss=2.0),
    ]
    (tmp_path / "steps.jsonl").write_text("".join(steps))
    (tmp_path / "trials.jsonl").write_text(line(15, losses={"all": 3.0, "plain": 2.5}))
    run = read_run(tmp_path)
    assert [(point.step, point.loss) for point in run.steps] == [(10, 5.0), (20, 3.0), (30, 2.0)]
    assert run.trials[0].loss == 3.0
    assert run.kinds == {"plain": 2.5}
    (tmp_path / "trials.jsonl").write_text("")
    with pytest.raises(ValueError, match="nothing was logged"):
        read_run(tmp_path)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Random weights say nothing sensible, but all of it passes through the same doors."""
    with Engine(tiny_model_path(), threads=1, max_seqs=4) as engine:
        yield engine


@pytest.mark.native
def test_answers_come_in_the_order_of_the_questions(engine: Engine) -> None:
    words = ["one", "two", "three", "four", "five", "six"]
    asked = [
        Asked([{"role": "user", "content": word}], max_tokens=place + 1) for place, word in enumerate(words)
    ]
    told: list[tuple[int, int]] = []
    together = engine.answers(asked, lambda done, total: told.append((done, total)))
    assert together == [engine.answers([one])[0] for one in asked]
    assert all(one.is_whole or one.num_tokens == place + 1 for place, one in enumerate(together))
    assert sorted(told) == [(done, 6) for done in range(1, 7)]


@pytest.mark.native
def test_a_prompt_holds_the_conversation_and_asks_for_its_next_turn(engine: Engine) -> None:
    example = held_out(MIXTURE, "recall", 1)[0]
    prompt = engine.prompt(asked(example))
    assert all(turn.text in prompt for turn in example.turns[:-1])
    assert prompt.count("assistant") == sum(turn.role is Role.ASSISTANT for turn in example.turns)


@pytest.mark.native
def test_a_transcript_holds_every_turn(engine: Engine) -> None:
    conversation = Conversation("A title", ["Hello!", "And now?"], system="Be brief.")
    lines = transcript(engine, conversation).split("\n")
    assert lines[0] == "### A title"
    for line in ("system: Be brief.", "user: Hello!", "user: And now?"):
        assert lines.count(line) == 1
    assert sum(line.startswith("assistant: ") for line in lines) == 2


@pytest.mark.native
def test_its_logits_agree_with_the_engine(engine: Engine) -> None:
    question = Asked([{"role": "user", "content": "Hello"}], max_tokens=1)
    with Native(tiny_model_path(), threads=1) as native, Vocabulary.open(tiny_model_path()) as vocabulary:
        best = int(native.logits(native.encode(engine.prompt(question)))[-1].argmax())
        assert engine.answers([question])[0].text == vocabulary.decode([best]) != ""


def test_there_are_ten_conversations() -> None:
    assert len({conversation.title for conversation in CONVERSATIONS}) == 10
