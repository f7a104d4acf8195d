"""Questions and answers for the tests of their cache."""

from __future__ import annotations

import msgspec

from openai_cpu_server.answers.store import AnswerKey, AnswerScope, LastTurn, direction
from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling

SCOPE = AnswerScope(holder="ann", model="file", kv_type="f16", adapter=None, version="1")
EARLIER = (1, 2, 9, 3)  # tokens of the earlier turns


def request(number: int = 0, **fields: object) -> GenerationRequest:
    plain = GenerationRequest(
        id=f"call/{number}",
        tokens=(1, 2, 4, 5, 3),
        max_tokens=8,
        sampling=Sampling(seed=7, temperature=0),
        priority=Priority.INTERACTIVE,
    )
    return msgspec.structs.replace(plain, **fields)


def question(*requests: GenerationRequest, text: str | None = None, **fields: object) -> AnswerKey:
    """`text` is the last user turn, or None if the question is not a conversation."""
    plain = AnswerKey(
        scope=SCOPE,
        requests=requests or (request(),),
        is_repeatable=True,
        output_limit=8,
        turn=None if text is None else LastTurn(text, EARLIER),
    )
    return msgspec.structs.replace(plain, **fields)


def direction_of(*numbers: float) -> bytes:
    vector = direction(numbers)
    assert vector is not None
    return vector


def answer(
    *texts: str, reason: FinishReason = FinishReason.STOP, finish: Finish | None = None
) -> list[TokenEvent]:
    """Return the events of one text for each request, a token for each letter."""
    events = []
    for number, text in enumerate(texts):
        name = f"call/{number}"
        events += [TokenEvent(id=name, tokens=(ord(letter),), text=letter) for letter in text]
        end = finish or Finish(reason=reason, output_tokens=len(text))
        events.append(TokenEvent(id=name, finish=end))
    return events
