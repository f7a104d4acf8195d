"""One certificate in place of all: a client of HTTP reads them when it is made, which takes 29 ms for all.

Machines behind a proxy name a file of all in SSL_CERT_FILE: there too.
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
    if os.environ.get("SSL_CERT_FILE") == str(file):  # a worker of pytest has it from who started it
        return
    first, end, _ = Path(certifi.where()).read_text(encoding="utf-8").partition(_END)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(first + end, encoding="utf-8")
    partial.replace(file)
    os.environ["SSL_CERT_FILE"] = str(file)
