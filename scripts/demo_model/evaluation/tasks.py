"""Asks the model all kinds of held-out tasks and scores its answers."""

from __future__ import annotations

from dataclasses import dataclass

from demo_model.corpus.example import Example
from demo_model.corpus.mixture import Mixture
from demo_model.evaluation.asking import asked, held_out
from demo_model.evaluation.engine import Answer, Engine, Told
from demo_model.evaluation.marks import Mark, Score, added_up, mark
from demo_model.evaluation.scoring import SCORERS


@dataclass(frozen=True)
class Answered:
    example: Example
    answer: Answer


def answered(engine: Engine, mixture: Mixture, per_kind: int, told: Told) -> list[Answered]:
    examples = [example for kind in SCORERS for example in held_out(mixture, kind, per_kind)]
    answers = engine.answers([asked(example) for example in examples], told)
    return [Answered(example, answer) for example, answer in zip(examples, answers, strict=True)]


def scores(found: list[Answered]) -> list[Score]:
    marks = [one for each in found for one in SCORERS[each.example.kind](each.example, each.answer.text)]
    return [*added_up([*marks, *_story_marks(found)]), *added_up(_whole(each) for each in found)]


def _story_marks(found: list[Answered]) -> list[Mark]:
    """The marks of each story against those before it."""
    seen: set[str] = set()
    marks = []
    for each in found:
        if each.example.kind == "stories":
            marks.append(mark("stories: unlike all others", each.answer.text not in seen))
            seen.add(each.answer.text)
    return marks


def _whole(each: Answered) -> Mark:
    return mark("answers that the model ended itself", each.answer.is_whole)
