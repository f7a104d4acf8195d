"""Stored responses: chains, their expiry, and their owners; on every supported database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from openai_cpu_server.errors import InvalidRequest, JobObjectNotFound
from openai_cpu_server.jobs.records import (
    ConversationItem,
    ConversationTurn,
    ItemRecord,
    PageQuery,
    ResponseRecord,
    ResponseStatus,
)
from tests.jobs.test_stores import Stores, stores_at

pytestmark = pytest.mark.anyio

DAY_S = 24 * 3600


@pytest.fixture
async def stores(where: str) -> AsyncIterator[Stores]:
    async with stores_at(where) as stores:
        stores.now_s = 0
        yield stores


def a_response(
    name: str,
    previous: str | None = None,
    *,
    owner: str = "ann",
    status: ResponseStatus = ResponseStatus.COMPLETED,
    expires_at: int = DAY_S,
) -> ResponseRecord:
    return ResponseRecord(
        id=name,
        owner=owner,
        previous_id=previous,
        status=status,
        created_at=0,
        expires_at=expires_at,
        response=b"{}",
        written=b"\x01",
        vocabulary="v",
    )


def an_item(name: str, *, is_output: bool = False) -> ItemRecord:
    return ItemRecord(id=name, content=b'"%b"' % name.encode(), is_output=is_output)


async def test_a_chain_is_returned_in_order(stores: Stores) -> None:
    store = stores.responses
    await store.add(a_response("a"), [an_item("a1"), an_item("a2", is_output=True)])
    await store.add(a_response("b", "a"), [an_item("b1")])
    await store.add(a_response("other", "a"), [an_item("o1")])
    await store.add(a_response("c", "b"), [])
    links = await store.chain("ann", "c", max_bytes=100)
    assert [(link.record.id, [item.id for item in link.items]) for link in links] == [
        ("a", ["a1", "a2"]),
        ("b", ["b1"]),
        ("c", []),
    ]
    assert links[0].record == a_response("a")
    assert links[0].items[1].is_output
    with pytest.raises(InvalidRequest):
        await store.chain("ann", "c", max_bytes=10)


async def test_a_chain_with_a_gap_is_not_found(stores: Stores) -> None:
    store = stores.responses
    await store.add(a_response("a"), [])
    await store.add(a_response("b", "a"), [])
    await store.delete("ann", "a")
    with pytest.raises(JobObjectNotFound):
        await store.chain("ann", "b", max_bytes=100)


async def test_a_response_lives_as_long_as_its_continuations(stores: Stores) -> None:
    store = stores.responses
    await store.add(a_response("a"), [an_item("a1")])
    await store.add(a_response("b", "a", expires_at=9 * DAY_S), [an_item("b1")])
    await store.add(a_response("c"), [an_item("c1")])
    stores.now_s = 2 * DAY_S
    assert await store.purge_some() == 1
    assert [link.record.id for link in await store.chain("ann", "b", max_bytes=100)] == ["a", "b"]
    assert await store.content_by_id("ann", ["a1", "c1"]) == {"a1": b'"a1"'}
    stores.now_s = 9 * DAY_S
    assert await store.purge_some() == 2
    stores.now_s = 0
    assert await store.content_by_id("ann", ["a1"]) == {}


async def test_other_owners_see_nothing(stores: Stores) -> None:
    store = stores.responses
    await store.add(a_response("a"), [an_item("a1")])
    assert await store.content_by_id("bob", ["a1"]) == {}
    page = PageQuery(limit=10)
    for access in (
        lambda: store.get("bob", "a"),
        lambda: store.chain("bob", "a", max_bytes=100),
        lambda: store.inputs("bob", "a", page),
        lambda: store.delete("bob", "a"),
    ):
        with pytest.raises(JobObjectNotFound):
            await access()
    stores.now_s = DAY_S
    with pytest.raises(JobObjectNotFound):
        await store.get("ann", "a")


async def test_a_response_ends_once(stores: Stores) -> None:
    store = stores.responses
    running = a_response("a", status=ResponseStatus.IN_PROGRESS)
    await store.add(running, [an_item("a1")])
    assert await store.renew(running)
    ended = msgspec.structs.replace(running, status=ResponseStatus.CANCELLED)
    assert await store.end(ended)
    assert not await store.end(ended)
    assert not await store.renew(running)
    assert not await store.finish(a_response("a"), [an_item("a2", is_output=True)], [b"events"])
    assert (await store.get("ann", "a")).status is ResponseStatus.CANCELLED
    assert await store.events("a") is None


async def test_finishing_adds_outputs_and_events(stores: Stores) -> None:
    store = stores.responses
    await store.add(a_response("a", status=ResponseStatus.QUEUED), [an_item("a1")])
    assert await store.finish(a_response("a"), [an_item("a2", is_output=True)], [b"events"])
    assert await store.events("a") == [b"events"]
    (link,) = await store.chain("ann", "a", max_bytes=100)
    assert [item.id for item in link.items] == ["a1", "a2"]
    listed, has_more = await store.inputs("ann", "a", PageQuery(limit=1))
    assert [item.id for item in listed] == ["a1"]
    assert not has_more


def chat_item(name: str, answer: str | None = None) -> ConversationItem:
    written = b"\x01" if name.endswith("1") and answer else b""
    return ConversationItem(id=name, content=name.encode(), answer_id=answer, written=written, vocabulary="v")


async def test_a_conversation_stores_its_order_and_complete_answers(stores: Stores) -> None:
    conversations = stores.responses.conversations
    await conversations.create("ann", "c", {"a": "b"}, [chat_item("i1"), chat_item("i2")])
    new = (chat_item("i2"), chat_item("i3"), chat_item("o1", "r"), chat_item("o2", "r"))
    turn = ConversationTurn("c", new, expires_at=9)
    with pytest.raises(InvalidRequest):
        await conversations.append("ann", turn, only_new=False)
    await conversations.append("ann", turn, only_new=True)
    items = await conversations.items("ann", "c", max_bytes=100)
    assert [item.id for item in items] == ["i1", "i2", "i3", "o1", "o2"]
    assert items[3] == chat_item("o1", "r")
    assert await conversations.content_by_id("ann", ["o2", "x"]) == {"o2": b"o2"}
    await conversations.delete_item("ann", "c", "o2")
    assert (await conversations.item("ann", "c", "o1")).written == b""
    with pytest.raises(InvalidRequest):
        await conversations.items("ann", "c", max_bytes=3)
    for access in (
        lambda: conversations.get("bob", "c"),
        lambda: conversations.append("bob", turn, only_new=True),
        lambda: conversations.delete_item("ann", "c", "o2"),
    ):
        with pytest.raises(JobObjectNotFound):
            await access()
    stores.now_s = 9
    with pytest.raises(JobObjectNotFound):
        await conversations.get("ann", "c")
    assert await conversations.purge_some() == 1
    stores.now_s = 0
    assert await conversations.content_by_id("ann", ["i1"]) == {}
