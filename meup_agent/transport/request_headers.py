"""Headers by which an HTTP server tells where a request comes from.

What a stranger's proxy adds is taken in its widest sense; what names this machine, in its
narrowest.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_FORWARDING: Final = (
    *("forwarded", "via", "x-forwarded", "x-real-", "x-original-", "x-client-", "client-ip"),
    *("x-cluster-client-", "true-client-ip", "proxy-", "x-proxy", "x-envoy-", "x-remote-"),
    *("cf-", "cdn-", "fastly-", "fly-", "x-amz", "x-appengine-", "x-azure-", "x-vercel-"),
)
"""Beginnings of the headers that proxies, tunnels and clouds add."""

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z_.-]+)(?::([0-9]{1,5}))?", re.ASCII)


def is_forwarded(names: Iterable[str]) -> bool:
    """True if a request came through a proxy, by the names of its headers, in lower case.

    Some proxies write ``_`` for ``-``.
    """
    return any(name.replace("_", "-").startswith(_FORWARDING) for name in names)


def host_name(host: str) -> str:
    """The name in a ``Host``, in lower case and without a port; empty: it is no name and port."""
    found = _HOST.fullmatch(host.strip().lower())
    return "" if found is None else found[1].removeprefix("[").removesuffix("]")


def is_served(host: str, served: Collection[str]) -> bool:
    """True if a ``Host`` is one of these; one that ends with ``:*`` stands for any port.

    The port has to be a number: ``localhost:1.example.com`` is no port of ``localhost``.
    """
    said = host.strip().lower()
    found = _HOST.fullmatch(said)
    if found is None:
        return False
    return said in served or (found[2] is not None and f"{found[1]}:*" in served)
