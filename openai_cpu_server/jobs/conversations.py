from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from openai_cpu_server.errors import InvalidRequest, JobObjectNotFound
from openai_cpu_server.jobs.records import ConversationItem, ConversationRecord, ConversationTurn, PageQuery
from openai_cpu_server.jobs.store import database as db
from openai_cpu_server.jobs.store.storage import StoringRepository, recounted

_CONVERSATIONS = db.OwnedTable(
    db.conversations,
    ConversationRecord,
    "Conversation with id '{id}' not found.",
    is_live=lambda now_s: db.conversations.c.expires_at > now_s,
    children=(db.conversation_items.c.conversation_id,),
)
_ITEMS = db.ItemTable(db.conversation_items, ConversationItem, db.conversation_items.c.conversation_id)


def add_turn(
    connection: Connection, owner: str, turn: ConversationTurn, now_s: float, *, only_new: bool
) -> bool:
    """Return False without a conversation. Raises InvalidRequest for existing items, unless `only_new` skips
    them."""
    own = _CONVERSATIONS.one(owner, turn.conversation_id, now_s)
    # The update comes first because its lock keeps other transactions from numbering items meanwhile.
    changed = connection.execute(update(db.conversations).where(own).values(expires_at=turn.expires_at))
    if changed.rowcount != 1:
        return False
    items = db.conversation_items.c
    ids = [item.id for item in turn.items]
    query = select(items.id).where(items.conversation_id == turn.conversation_id, items.id.in_(ids))
    existing = frozenset(connection.execute(query).scalars())
    if existing and not only_new:
        at = next(index for index, item in enumerate(turn.items) if item.id in existing)
        message = f"Item with id '{turn.items[at].id}' is in this conversation already."
        raise InvalidRequest(message, param=f"items[{at}].id", code="invalid_value")
    new = [item for item in turn.items if item.id not in existing]
    _ITEMS.add(connection, turn.conversation_id, new)
    return True


class ConversationRepository(StoringRepository[ConversationRecord]):
    """Conversations live as long as responses, from their last change."""

    table, item_table = _CONVERSATIONS, _ITEMS

    def turn(self, conversation_id: str, items: Sequence[ConversationItem]) -> ConversationTurn:
        return ConversationTurn(db.storable(conversation_id), tuple(items), self.now_s + self.lifetime_s)

    @recounted
    @db.writes
    def create(
        self,
        connection: Connection,
        owner: str,
        conversation_id: str,
        metadata: Mapping[str, str],
        items: Sequence[ConversationItem],
    ) -> ConversationRecord:
        record = ConversationRecord(
            id=conversation_id,
            owner=owner,
            created_at=self.now_s,
            expires_at=self.now_s + self.lifetime_s,
            metadata=_storable_metadata(metadata),
        )
        connection.execute(insert(db.conversations).values(**msgspec.structs.asdict(record)))
        _ITEMS.add(connection, record.id, items)
        return record

    @db.writes
    def change(
        self, connection: Connection, owner: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> ConversationRecord:
        record = self.own(connection, owner, conversation_id)
        new = _storable_metadata(metadata)
        own = db.conversations.c.id == record.id
        connection.execute(update(db.conversations).where(own).values(metadata=new))
        return msgspec.structs.replace(record, metadata=new)

    async def append(self, owner: str, turn: ConversationTurn, *, only_new: bool = False) -> None:
        """Raise InvalidRequest for an existing item unless `only_new`."""

        def add(connection: Connection) -> None:
            if not add_turn(connection, owner, turn, self.clock(), only_new=only_new):
                raise _CONVERSATIONS.not_found(turn.conversation_id)

        await self._write(add)
        self.storage.grew(owner, turn.num_bytes)

    @db.reads
    def items(
        self, connection: Connection, owner: str, conversation_id: str, *, max_bytes: int
    ) -> tuple[ConversationItem, ...]:
        """Return all items in order. Raises InvalidRequest for more than `max_bytes`."""
        record = self.own(connection, owner, conversation_id)
        own = _ITEMS.parent_id == record.id
        if _ITEMS.num_bytes(connection, own) > max_bytes:
            message = f"The conversation has more than {max_bytes} bytes."
            raise InvalidRequest(message, param="conversation", code="context_length_exceeded")
        return tuple(_ITEMS.read(connection, own)[record.id])

    @db.reads
    def page(
        self, connection: Connection, owner: str, conversation_id: str, page: PageQuery
    ) -> tuple[list[ConversationItem], bool]:
        record = self.own(connection, owner, conversation_id)
        own, missing = _ITEMS.parent_id == record.id, partial(_no_item, param="after")
        return _ITEMS.page_of(connection, page, own, missing)

    @db.reads
    def item(
        self, connection: Connection, owner: str, conversation_id: str, item_id: str
    ) -> ConversationItem:
        record = self.own(connection, owner, conversation_id)
        return _item(connection, record, item_id)[0]

    @recounted
    @db.writes
    def delete_item(
        self, connection: Connection, owner: str, conversation_id: str, item_id: str
    ) -> ConversationRecord:
        """Forget the tokens of the item's answer, which are no longer whole."""
        record = self.own(connection, owner, conversation_id)
        item, which = _item(connection, record, item_id)
        connection.execute(delete(db.conversation_items).where(which))
        if item.answer_id is not None:
            is_same = db.conversation_items.c.answer_id == item.answer_id
            same_answer = update(db.conversation_items).where(_ITEMS.parent_id == record.id, is_same)
            connection.execute(same_answer.values(answer_id=None, written=b""))
        return record


def _item(
    connection: Connection, record: ConversationRecord, item_id: str
) -> tuple[ConversationItem, ColumnElement[bool]]:
    which = and_(_ITEMS.parent_id == record.id, db.conversation_items.c.id == db.storable(item_id))
    item = _ITEMS.find(connection, which)
    if item is None:
        raise _no_item(db.storable(item_id))
    return item, which


def _no_item(item_id: str, *, param: str = "item_id") -> JobObjectNotFound:
    return JobObjectNotFound(f"Item with id '{item_id[:64]}' not found in this conversation.", param=param)


def _storable_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    return {db.storable(name): db.storable(value) for name, value in metadata.items()}
