"""A context for HTTP clients that speak without TLS: it trusts nothing, and reads nothing."""

import ssl

# httpx makes one of each client by default, and 0.1 s of CPU goes into the certificates.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
