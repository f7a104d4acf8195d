"""Addresses as URLs have them."""

from __future__ import annotations


def authority(host: str, port: int) -> str:
    """`127.0.0.1:8000`, `[::1]:8000`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
