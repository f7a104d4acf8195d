"""Stored responses: chains, what expires with them, and who may end them; on every database there is."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from openai_cpu_server.errors import InvalidRequest, JobObjectNotFound
from openai_cpu_server.jobs.conversations import ConversationStore
from openai_cpu_server.jobs.records import (
    ConversationRecord,
    ConversationTurn,
    ItemRecord,
    KeptItem,
    PageQuery,
    ResponseRecord,
    ResponseStatus,
)
from openai_cpu_server.jobs.responses import ResponseStore
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.storage.database import Database

DAY_S = 24 * 3600


@pytest.fixture
def store(where: str) -> Iterator[ResponseStore]:
    database: Database = open_database(where)
    yield ResponseStore(database)
    database.close()


@pytest.fixture
def conversations(where: str) -> Iterator[ConversationStore]:
    database: Database = open_database(where)
    yield ConversationStore(database)
    database.close()


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


def test_a_chain_comes_back_in_its_order(store: ResponseStore) -> None:
    store.add(a_response("a"), [an_item("a1"), an_item("a2", is_output=True)])
    store.add(a_response("b", "a"), [an_item("b1")])
    store.add(a_response("other", "a"), [an_item("o1")])
    store.add(a_response("c", "b"), [])
    links = store.chain("ann", "c", 0, max_bytes=100)
    assert [(link.record.id, [item.id for item in link.items]) for link in links] == [
        ("a", ["a1", "a2"]),
        ("b", ["b1"]),
        ("c", []),
    ]
    assert links[0].record == a_response("a")
    assert links[0].items[1].is_output
    with pytest.raises(InvalidRequest):
        store.chain("ann", "c", 0, max_bytes=10)


def test_a_chain_with_a_gap_is_none(store: ResponseStore) -> None:
    store.add(a_response("a"), [])
    store.add(a_response("b", "a"), [])
    store.delete("ann", "a", 0)
    with pytest.raises(JobObjectNotFound):
        store.chain("ann", "b", 0, max_bytes=100)


def test_what_is_gone_on_from_lives_as_long_as_what_goes_on(store: ResponseStore) -> None:
    store.add(a_response("a"), [an_item("a1")])
    store.add(a_response("b", "a", expires_at=9 * DAY_S), [an_item("b1")])
    store.add(a_response("c"), [an_item("c1")])
    assert store.purge(2 * DAY_S) == 1
    assert [link.record.id for link in store.chain("ann", "b", 2 * DAY_S, max_bytes=100)] == ["a", "b"]
    assert store.items("ann", ["a1", "c1"], 2 * DAY_S) == {"a1": b'"a1"'}
    assert store.purge(9 * DAY_S) == 2
    assert store.items("ann", ["a1"], 0) == {}


def test_others_see_nothing(store: ResponseStore) -> None:
    store.add(a_response("a"), [an_item("a1")])
    assert store.items("bob", ["a1"], 0) == {}
    page = PageQuery(limit=10)
    for look in (
        lambda: store.get("bob", "a", 0),
        lambda: store.chain("bob", "a", 0, max_bytes=100),
        lambda: store.inputs("bob", "a", page, 0),
        lambda: store.delete("bob", "a", 0),
        lambda: store.get("ann", "a", DAY_S),
    ):
        with pytest.raises(JobObjectNotFound):
            look()


def test_a_response_ends_once(store: ResponseStore) -> None:
    running = a_response("a", status=ResponseStatus.IN_PROGRESS)
    store.add(running, [an_item("a1")])
    assert store.renew(running, until_s=5)
    ended = msgspec.structs.replace(running, status=ResponseStatus.CANCELLED)
    assert store.end(ended)
    assert not store.end(ended)
    assert not store.renew(running, until_s=5)
    assert not store.finish(a_response("a"), [an_item("a2", is_output=True)], b"events")
    assert store.get("ann", "a", 0).status is ResponseStatus.CANCELLED
    assert store.events("a") is None


def test_the_end_brings_outputs_and_events(store: ResponseStore) -> None:
    store.add(a_response("a", status=ResponseStatus.QUEUED), [an_item("a1")])
    assert store.finish(a_response("a"), [an_item("a2", is_output=True)], b"events")
    assert store.events("a") == b"events"
    (link,) = store.chain("ann", "a", 0, max_bytes=100)
    assert [item.id for item in link.items] == ["a1", "a2"]
    listed, has_more = store.inputs("ann", "a", PageQuery(limit=1), 0)
    assert [item.id for item in listed] == ["a1"]
    assert not has_more


def kept(name: str, answer: str | None = None) -> KeptItem:
    written = b"\x01" if name.endswith("1") and answer else b""
    return KeptItem(id=name, content=name.encode(), answer_id=answer, written=written, vocabulary="v")


def test_a_conversation_keeps_its_order_and_knows_whole_answers(
    conversations: ConversationStore,
) -> None:
    record = ConversationRecord(id="c", owner="ann", created_at=0, expires_at=5, metadata={"a": "b"})
    conversations.create(record, [kept("i1"), kept("i2")])
    turn = ConversationTurn("c", (kept("i2"), kept("i3"), kept("o1", "r"), kept("o2", "r")), expires_at=9)
    with pytest.raises(InvalidRequest):
        conversations.append("ann", turn, 0, only_new=False)
    conversations.append("ann", turn, 0, only_new=True)
    items = conversations.items("ann", "c", 6, max_bytes=100)
    assert [item.id for item in items] == ["i1", "i2", "i3", "o1", "o2"]
    assert items[3] == kept("o1", "r")
    assert conversations.found("ann", ["o2", "x"], 0) == {"o2": b"o2"}
    conversations.delete_item("ann", "c", "o2", 0)
    assert conversations.item("ann", "c", "o1", 0).written == b""
    with pytest.raises(InvalidRequest):
        conversations.items("ann", "c", 0, max_bytes=3)
    for look in (
        lambda: conversations.get("bob", "c", 0),
        lambda: conversations.append("bob", turn, 0, only_new=True),
        lambda: conversations.delete_item("ann", "c", "o2", 0),
        lambda: conversations.get("ann", "c", 9),
    ):
        with pytest.raises(JobObjectNotFound):
            look()
    assert conversations.purge(9) == 1
    assert conversations.found("ann", ["i1"], 0) == {}
