"""Extracting JSON: from reviews, contacts, events and orders."""

from __future__ import annotations

from demo_model.corpus.example import Maker
from demo_model.corpus.extraction import contacts, events, orders, reviews

MAKERS: dict[str, Maker] = {
    "extract_review": reviews.make,
    "extract_contact": contacts.make,
    "extract_event": events.make,
    "extract_order": orders.make,
}
