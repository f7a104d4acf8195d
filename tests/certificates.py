"""A single trusted certificate: an HTTP client reads all of them when it is created, which takes 29 ms.

This replaces a file in SSL_CERT_FILE too, such as machines behind a proxy have.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import certifi

_END = "-----END CERTIFICATE-----\n"


def trust_one() -> None:
    """Trust only the first of the usual authorities, here and in child processes, before a client is made."""
    file = Path(tempfile.gettempdir()) / f"one-certificate-{os.getuid()}.pem"
    if os.environ.get("SSL_CERT_FILE") == str(file):  # a pytest worker inherits it
        return
    first, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition(_END)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(first + end, encoding="utf-8")
    partial.replace(file)
    os.environ["SSL_CERT_FILE"] = str(file)
