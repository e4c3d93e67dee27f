"""Requests of the gateway to addresses outside, which it makes to no place that nobody allowed."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Final

import anyio
import anyio.to_thread
import httpx

from meup_agent.errors import system_reason

ANSWER_SECONDS: Final = 10.0
"""Seconds for a whole request, from the look-up of the name to the status."""

CONNECT_SECONDS: Final = 4.0
"""Seconds for one of the addresses of a name."""

MAX_ADDRESSES: Final = 4
"""Addresses of a name that are tried."""

GONE: Final = frozenset({404, 410})
"""Statuses of a service that does not know the receiver any more."""

_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""All of IPv6 that is given out; other addresses are of sites, or stand for some of IPv4."""

_TRANSLATED: Final = ipaddress.ip_network("2002::/16")
"""IPv6 addresses that lead to an IPv4 address within them, which may be a private one."""


class NotDelivered(Exception):
    """A service did not take a notice; the words say why, and nothing that is secret.

    Args:
        why: The reason.
        status: The status of its answer; 0: there was none.
    """

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status

    @property
    def is_gone(self) -> bool:
        """True if the receiver is not known there any more."""
        return self.status in GONE


def is_public(address: str) -> bool:
    """True for an address of the Internet; false for one of this machine or its networks."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found not in _UNICAST or found in _TRANSLATED:
            return False
    return found.is_global and not found.is_multicast


async def find_addresses(host: str, port: int, *, allow_private: bool) -> list[str]:
    """The addresses of a host, none of them private where that is not allowed.

    Raises:
        NotDelivered: It has none, or a private one.
    """
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotDelivered(f"its host is not found ({system_reason(error)})") from None
    except UnicodeError:
        raise NotDelivered("its host is not found") from None
    addresses = list(dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found))
    if not allow_private and not all(map(is_public, addresses)):
        raise NotDelivered(
            "it is at a private address, of this machine or its networks; allow_private allows it"
        )
    return addresses[:MAX_ADDRESSES]


@cache
def _tls_context() -> ssl.SSLContext:
    """A context that trusts what httpx does; a tenth of a second goes into its certificates."""
    return httpx.create_ssl_context(trust_env=False)


async def post(
    url: str, content: bytes, headers: Mapping[str, str], *, allow_private: bool
) -> None:
    """Send a request to an address, and read the status of its answer alone.

    The connection is made to the address that was looked up and checked, so a name that leads
    elsewhere a moment later changes nothing. No redirect is followed, no proxy and no cookie used.
    Not by a client of httpx, which logs addresses, and these have secrets in them.

    Raises:
        NotDelivered: It was not taken.
    """
    try:
        with anyio.fail_after(ANSWER_SECONDS):
            status = await _post(httpx.URL(url), content, headers, allow_private=allow_private)
    except TimeoutError:
        raise NotDelivered(f"it gave no answer within {ANSWER_SECONDS:.0f} seconds") from None
    except httpx.HTTPError as error:
        raise NotDelivered(f"it cannot be reached ({type(error).__name__})") from None
    if 300 <= status < 400:
        raise NotDelivered(
            f"it answered {status}, a redirect, which is not followed; give the address that it"
            " leads to",
            status,
        )
    if not 200 <= status < 300:
        raise NotDelivered(f"it answered {status}", status)


async def _post(
    url: httpx.URL, content: bytes, headers: Mapping[str, str], *, allow_private: bool
) -> int:
    port = url.port or (443 if url.scheme == "https" else 80)
    # As it is asked for in DNS and in TLS.
    host = url.raw_host.decode("ascii").strip("[]")
    addresses = await find_addresses(host, port, allow_private=allow_private)
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS).as_dict()
    is_tls = url.scheme == "https"
    verify = await anyio.to_thread.run_sync(_tls_context) if is_tls else False
    async with httpx.AsyncHTTPTransport(verify=verify, trust_env=False) as transport:
        for at, address in enumerate(addresses, 1):
            request = httpx.Request(
                "POST",
                url.copy_with(host=address, username=None, password=None),
                headers={"Host": url.netloc.decode("ascii"), **headers},
                content=content,
                extensions={"sni_hostname": host, "timeout": timeout},
            )
            try:
                response = await transport.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if at == len(addresses):
                    raise
                continue
            await response.aclose()
            return response.status_code
    raise NotDelivered("its host has no address")
