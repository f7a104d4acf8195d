"""Asks the server of this container how it is: `healthcheck.py ready|alive`. Exit code 0: well.

`ready` fails while the model loads for the first time. `alive` fails only when nothing but a new start helps:
the server does not answer, or has given its engine up. Needs the standard library only, and starts fast.
"""

import http.client
import json
import os
import ssl
import sys

_HOPELESS = {"failed", "stopped"}
_NOT_YET = {"loading"}


def status() -> str:
    """What `GET /health` says. Raises OSError, HTTPException or ValueError if it says nothing."""
    port, timeout_s = int(os.environ.get("OCS_PORT", "8000")), 4
    if os.environ.get("OCS_SSL_CERTFILE"):
        # The certificate is for the name by which clients know the server, not for this address.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    connection.request("GET", "/health")
    return str(json.load(connection.getresponse())["status"])


def main() -> int:
    unwell = {"alive": _HOPELESS, "ready": _HOPELESS | _NOT_YET}[sys.argv[1]]
    try:
        said = status()
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        print(f"no answer: {error}")
        return 1
    print(said)
    return int(said in unwell)


if __name__ == "__main__":
    sys.exit(main())
