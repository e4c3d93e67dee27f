"""A context for HTTP clients that speak without TLS: it trusts nothing, and reads nothing."""

import ssl
from typing import Any, Final

from tests.patience import PATIENCE

# httpx makes one of each client by default, and 0.1 s of CPU goes into the certificates.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

ALONE: Final[dict[str, Any]] = {"trust_env": False, "timeout": PATIENCE, "verify": NO_TLS}
"""Options of a client that no setting of the machine has a say in."""
