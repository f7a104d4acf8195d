"""Check the health of this container's server: `healthcheck.py ready|alive`. Exit code 0 means healthy.

`ready` fails while the model loads for the first time. `alive` fails only if the server must be restarted: it does
not answer, or its engine has failed for good. The script needs only the standard library, and starts fast.
"""

import http.client
import json
import os
import ssl
import sys

_FAILED = {"failed", "stopped"}
_LOADING = {"loading"}


def status() -> str:
    """Return the status in `GET /health`. Raises OSError, HTTPException or ValueError without an answer."""
    port, timeout_s = int(os.environ.get("OCS_PORT", "8000")), 4
    if os.environ.get("OCS_SSL_CERTFILE"):
        # The certificate is for the server's public name, not for this address.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    connection.request("GET", "/health")
    return str(json.load(connection.getresponse())["status"])


def main() -> int:
    unhealthy = {"alive": _FAILED, "ready": _FAILED | _LOADING}[sys.argv[1]]
    try:
        current = status()
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        print(f"no answer: {error}")
        return 1
    print(current)
    return int(current in unhealthy)


if __name__ == "__main__":
    sys.exit(main())
