"""Commands on their way from the reader thread to the loop."""

from __future__ import annotations

from openai_cpu_server.contract.messages import CancelRequest, ClearCache
from openai_cpu_server.engine.loop import Inbox


def test_commands_come_out_in_order_and_are_no_news_then() -> None:
    inbox = Inbox()
    inbox.put(CancelRequest(id="a"))
    inbox.put(ClearCache())
    assert inbox.has_news
    assert list(inbox.drain()) == [CancelRequest(id="a"), ClearCache()]
    assert not inbox.has_news


def test_that_there_will_be_no_more_stays_news() -> None:
    """Else a measurement would begin when the server ends."""
    inbox = Inbox()
    inbox.close()
    assert list(inbox.drain()) == []
    assert inbox.has_news
    inbox.wait(None)
