"""Services that notices are sent by: signed webhooks, what Apprise reaches, and Web Push."""

from __future__ import annotations

import base64
import ipaddress
import logging
import re
import secrets
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import SplitResult, urlsplit

import anyio
import anyio.to_thread
import httpx
import msgspec

from meup_agent.atomic_file import replace_file, write_new_file
from meup_agent.errors import ConfigurationError, UsageError, explain_os_error, system_reason
from meup_agent.gateway.auth import Identity, Tokens, read_token
from meup_agent.gateway.logs import log
from meup_agent.gateway.reach.bursts import InboxNotice
from meup_agent.protocol.space.owner import SpaceServer
from meup_agent.transport.base import Condition

if TYPE_CHECKING:
    from apprise.plugins.base import NotifyBase

    from meup_agent.gateway.config import NotifyTarget

APPRISE_SECONDS: Final = 30.0
"""Seconds for a service of Apprise, which may take several requests."""

SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32

MIN_SECRET_BYTES: Final = 24
"""Bytes of a webhook's secret at least, as Standard Webhooks asks for."""

LOGS_OF_ADDRESSES: Final = ("apprise", "urllib3.connectionpool")
"""Loggers that write whole addresses, in which secrets are; they are switched off."""

EXTRA: Final = ("standardwebhooks", "apprise", "pywebpush")
"""Modules of the extra ``notify``."""


class NotifyService(Protocol):
    """A service, and the way to it."""

    @property
    def name(self) -> str:
        """Words for the log, without what is secret in its address."""
        ...

    async def send(self, notice: InboxNotice, link: str) -> None:
        """Send a notice, with a link to the inbox if there is one.

        Raises:
            NotDelivered: It was not taken.
        """
        ...


def check_extra(place: str) -> None:
    """Check that what notices need is installed.

    Raises:
        ConfigurationError: It is not.
    """
    missing = [each for each in EXTRA if find_spec(each) is None]
    if missing:
        raise ConfigurationError(
            f"{place} needs {', '.join(missing)}, not installed here;"
            " run: pip install 'meup-agent[notify]'"
        )


def make_service(target: NotifyTarget, place: str) -> NotifyService:
    """The service of a target.

    Args:
        target: The target.
        place: Its place in the configuration, for errors: these never name its address.

    Raises:
        ConfigurationError: There can be none.
    """
    plugin = _apprise_plugin(target.url)
    if plugin is not None:
        return AppriseService(plugin, place, allow_private=target.allow_private)
    parts = _parse_url(target.url)
    scheme = parts.scheme if parts else ""
    if scheme not in ("http", "https"):
        raise ConfigurationError(
            f"{place}: expected the https address of a webhook, or an address of Apprise, for"
            " example ntfys://ntfy.sh/topic"
        )
    if scheme == "http" and not target.allow_private:
        raise ConfigurationError(
            f"{place}: a notice could be read on its way; give an https address, or say"
            " allow_private (--notify-private) for one of your own network"
        )
    return Webhook(target, place)


def _parse_url(url: str) -> SplitResult | None:
    """An address of a host; ``None``: it is none."""
    try:
        parts = urlsplit(str(httpx.URL(url)))
        return parts if parts.hostname and parts.port != 0 else None
    except (ValueError, httpx.InvalidURL):
        return None


def _apprise_plugin(url: str) -> NotifyBase | None:
    """Apprise's plugin for an address; ``None``: it has none."""
    for each in LOGS_OF_ADDRESSES:
        logging.getLogger(each).disabled = True
    import apprise

    asset = apprise.AppriseAsset(http_redirects=False, app_id="meup", app_desc="meup")
    return apprise.Apprise.instantiate(url, asset=asset)  # pyright: ignore[reportUnknownMemberType]


# --- webhooks ---


class Webhook:
    """A webhook that is signed as Standard Webhooks says.

    Raises:
        ConfigurationError: Its secret is missing, or is none.
    """

    def __init__(self, target: NotifyTarget, place: str) -> None:
        from standardwebhooks import Webhook as Signer

        self._url = target.url
        self._allow_private = target.allow_private
        self.name = f"the webhook at {urlsplit(target.url).hostname} ({place})"
        secret = target.secret
        if target.secret_file is not None:
            if secret is not None:
                raise ConfigurationError(f"{place}: give secret or secret_file, not both")
            secret = keep_secret(target.secret_file)
        if secret is None:
            raise ConfigurationError(
                f"{place}: a webhook is signed; give secret_file, in which one is made"
            )
        key = secret.removeprefix(SECRET_PREFIX)
        try:
            size = len(base64.b64decode(key + "=" * (-len(key) % 4), validate=True))
        except ValueError:
            size = 0
        if size < MIN_SECRET_BYTES:
            raise ConfigurationError(
                f"{place}: its secret must be {MIN_SECRET_BYTES} bytes or more in Base64, after"
                f" {SECRET_PREFIX}"
            )
        self._signer = Signer(secret)

    async def send(self, notice: InboxNotice, link: str) -> None:
        """Send a notice; see :class:`NotifyService`."""
        at = datetime.now(UTC)
        document = {
            "type": "proposals.settled" if notice.settled else "proposals.waiting",
            "timestamp": at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "data": notice.document() | ({"link": link} if link else {}),
        }
        body = msgspec.json.encode(document)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "meup-agent",
            "webhook-id": notice.id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": self._signer.sign(notice.id, at, body.decode()),
        }
        await post(self._url, body, headers, allow_private=self._allow_private)


def new_secret() -> str:
    """A new secret of a webhook."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def keep_secret(path: Path) -> str:
    """The secret in a file, which is made with a new one if there is none.

    Raises:
        ConfigurationError: The file cannot be used.
    """
    with explain_os_error(f"{path} cannot be made"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            made = new_secret()
            write_new_file(path, f"{made}\n".encode())
            log.info("made the secret that signs a webhook, in %s", path)
            return made
    return read_token(path)


# --- Apprise ---


class AppriseService:
    """A service of Apprise; it is reached by a thread, of which there is one at a time."""

    def __init__(self, plugin: NotifyBase, place: str, *, allow_private: bool) -> None:
        service: Any = plugin.service_name
        self.name = f"{service} ({place})"
        self._plugin = plugin
        self._allow_private = allow_private
        self._is_sending = False

    async def send(self, notice: InboxNotice, link: str) -> None:
        """Send a notice; see :class:`NotifyService`."""
        if self._is_sending:
            raise NotDelivered("it has not answered the last one yet")
        # Of the others the library knows the address, or it is no address but a secret.
        plugin: Any = self._plugin
        if "host" in plugin.template_tokens and not self._allow_private:
            host = str(plugin.host).strip("[]")
            await find_addresses(host, int(plugin.port or 443), allow_private=False)
        body = "\n".join(each for each in (notice.text, link) if each)
        self._is_sending = True
        try:
            with anyio.fail_after(APPRISE_SECONDS):
                taken = await anyio.to_thread.run_sync(
                    self._notify, notice.title, body, abandon_on_cancel=True
                )
        except TimeoutError:
            raise NotDelivered(f"it gave no answer within {APPRISE_SECONDS:.0f} seconds") from None
        if not taken:
            raise NotDelivered("it did not take the notice; is its address right?")

    def _notify(self, title: str, body: str) -> bool:
        try:
            return bool(self._plugin.notify(body=body, title=title, body_format="text"))
        except Exception:
            # A plugin may raise anything, and its words may have the address.
            return False
        finally:
            self._is_sending = False


# --- Web Push ---
# Browsers that are told while no page of the console is open. The gateway's key, and their
# subscriptions, are in one file. A browser gives an address of its vendor's push service, and keys
# with which a notice is encrypted, so that service reads nothing.

PUSH: Final = "push"
"""The address of a target that stands for Web Push."""

MAX_BROWSERS: Final = 5
"""Browsers of a participant that are told; the one that was added the longest ago makes room."""

MAX_PEOPLE: Final = 200
"""Participants with browsers, each of which has a task."""

MAX_ENDPOINT_CHARS: Final = 1_000

MAX_FILE_BYTES: Final = 4 * 1024 * 1024

TTL_SECONDS: Final = 3_600
"""Seconds for which a push service keeps a notice for a browser that is off."""

TOKEN_SECONDS: Final = 6 * 3_600
"""Seconds for which a signature is valid; push services take a day at the most."""

SUBJECT: Final = "https://pypi.org/project/meup-agent/"
"""Address of the sender, which push services ask for (RFC 8292)."""

_POINT: Final = re.compile(r"[A-Za-z0-9_-]{87}=?")  # 65 bytes
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{22}(==)?")  # 16 bytes


class Subscription(msgspec.Struct, frozen=True):
    """A browser of a participant."""

    space: str
    participant: str
    endpoint: str  # an address of its push service, which is as good as a secret
    p256dh: str
    auth: str
    token: str = ""  # the digest (hex) of the token that its person signed in with

    @property
    def identity(self) -> Identity:
        """The participant, in its space."""
        return Identity(self.space, self.participant)

    @property
    def keys(self) -> dict[str, str]:
        """The keys with which what is sent to it is encrypted."""
        return {"p256dh": self.p256dh, "auth": self.auth}


class _Stored(msgspec.Struct):
    key: str
    subscriptions: list[Subscription] = []


class PushSubscriptions:
    """The browsers that are told, and the key of the gateway, kept in a file.

    Args:
        path: The file; it is made with a new key if there is none.
        allow_private: Browsers may name addresses of this machine and its networks.

    Raises:
        ConfigurationError: The file cannot be used.
    """

    def __init__(self, path: Path, *, allow_private: bool = False) -> None:
        from py_vapid import Vapid02

        self.allow_private = allow_private
        self.changed: Final = Condition()
        """Notified when a participant has its first browser, or none any more."""
        self._path = path
        self._subscriptions: dict[str, Subscription] = {}
        self._saving = anyio.Lock()
        self._signer: Any
        try:
            with path.open("rb") as file:
                stored = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=_Stored)
            vapid: Any = Vapid02
            self._signer = vapid.from_pem(stored.key.encode())
            self._subscriptions = {each.endpoint: each for each in stored.subscriptions}
        except FileNotFoundError:
            self._signer = Vapid02()
            self._signer.generate_keys()
            self._write(self._content())
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read ({system_reason(error)})") from None
        except ValueError:
            raise ConfigurationError(f"{path} is not a file of Web Push; remove it") from None
        # The library takes no path in the address of who sends.
        self._signer.conf = {"no-strict": True}

    @property
    def application_key(self) -> str:
        """The public key, as a browser subscribes with it."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        point = self._signer.public_key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return _text(point)

    def of(self, identity: Identity) -> list[Subscription]:
        """The browsers of a participant."""
        return [each for each in self._subscriptions.values() if each.identity == identity]

    @property
    def people(self) -> frozenset[Identity]:
        """The participants that have browsers."""
        return frozenset(each.identity for each in self._subscriptions.values())

    async def add(
        self, identity: Identity, endpoint: str, p256dh: str, auth: str, token: bytes = b""
    ) -> None:
        """Tell a browser, in place of whom it belonged to before.

        Args:
            identity: Its participant.
            endpoint: The address of its push service.
            p256dh: Its public key.
            auth: Its secret.
            token: The digest of the token that its person signed in with, with which it ends.

        Raises:
            UsageError: It is no subscription, or too many participants have one.
        """
        space, participant = identity
        added = Subscription(space, participant, endpoint, p256dh, auth, token.hex())
        if self._subscriptions.get(endpoint) == added:
            return
        self._check(added)
        self._subscriptions.pop(endpoint, None)
        theirs = self.of(identity)
        if not theirs and len(self.people) >= MAX_PEOPLE:
            raise UsageError("too many people are told by Web Push here already")
        if len(theirs) >= MAX_BROWSERS:
            del self._subscriptions[theirs[0].endpoint]
        self._subscriptions[endpoint] = added
        self.changed.notify_all()
        await self._save()

    async def remove(self, identity: Identity, endpoint: str) -> None:
        """Tell a browser of a participant no longer; it is so at once, whatever the disk does."""
        known = self._subscriptions.get(endpoint)
        if known is not None and known.identity == identity:
            del self._subscriptions[endpoint]
            self.changed.notify_all()
            await self._save()

    def sign(self, endpoint: str) -> dict[str, str]:
        """The headers that show a push service who sends."""
        parts = urlsplit(endpoint)
        claims = {
            "sub": SUBJECT,
            "aud": f"{parts.scheme}://{parts.netloc}",
            "exp": int(time.time()) + TOKEN_SECONDS,
        }
        return dict(self._signer.sign(claims))

    def _check(self, given: Subscription) -> None:
        parts = _parse_url(given.endpoint)
        schemes = ("https", "http") if self.allow_private else ("https",)
        if (
            parts is None
            or parts.scheme not in schemes
            or parts.username
            or len(given.endpoint) > MAX_ENDPOINT_CHARS
        ):
            raise UsageError("the browser's push service has no https address")
        if not (_POINT.fullmatch(given.p256dh) and _SECRET.fullmatch(given.auth)):
            raise UsageError("the browser's keys are not keys of Web Push")
        try:
            encrypt(given, b"anything")
            self.sign(given.endpoint)
        except Exception:
            # The libraries raise what they like for what a stranger wrote.
            raise UsageError("the browser's keys or its address are none of Web Push") from None

    async def _save(self) -> None:
        """Write the file in a thread, since a disk may take long; one that does not is logged."""
        # Whoever is cancelled while another one writes would leave out its change.
        with anyio.CancelScope(shield=True):
            async with self._saving:
                try:
                    await anyio.to_thread.run_sync(self._write, self._content())
                except ConfigurationError as error:
                    log.warning("%s; what changed of Web Push is lost at the next start", error)

    def _content(self) -> bytes:
        key = self._signer.private_pem().decode()
        return msgspec.json.encode(_Stored(key, list(self._subscriptions.values())))

    def _write(self, content: bytes) -> None:
        with explain_os_error(f"{self._path} cannot be written"):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, content)


def encrypt(subscription: Subscription, content: bytes) -> bytes:
    """A content that the browser alone can read (RFC 8291)."""
    from pywebpush import WebPusher

    pusher: Any = WebPusher({"endpoint": subscription.endpoint, "keys": subscription.keys})
    return bytes(pusher.encode(content, content_encoding="aes128gcm")["body"])


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


class PushService:
    """The browsers of a participant; see :class:`~.services.NotifyService`."""

    def __init__(
        self,
        subscriptions: PushSubscriptions,
        identity: Identity,
        spaces: Mapping[str, SpaceServer],
        tokens: Tokens,
    ) -> None:
        self.name = f"the browsers of {identity.participant!r} in {identity.space!r}"
        self._subscriptions = subscriptions
        self._identity = identity
        self._spaces = spaces
        self._tokens = tokens

    async def send(self, notice: InboxNotice, link: str) -> None:
        """Send a notice to each of its browsers, and forget those that are gone."""
        browsers = self._subscriptions.of(self._identity)
        for each in tuple(browsers):
            if not self._is_let_in(each):
                browsers.remove(each)
                await self._subscriptions.remove(self._identity, each.endpoint)
        results: list[NotDelivered | None] = []

        async def send_one(browser: Subscription) -> None:
            results.append(await self._send(browser, notice))

        async with anyio.create_task_group() as tasks:
            for each in browsers:
                tasks.start_soon(send_one, each)
        failures = [each for each in results if each is not None]
        if failures and len(failures) == len(results):
            raise failures[0]

    def _is_let_in(self, browser: Subscription) -> bool:
        """True while its person could look at the console by the token of that time."""
        host = self._spaces.get(self._identity.space)
        if host is not None and host.owner.is_kicked(self._identity.participant):
            return False
        return self._tokens.holder(bytes.fromhex(browser.token)) == self._identity

    async def _send(self, browser: Subscription, notice: InboxNotice) -> NotDelivered | None:
        """The reason for which a browser was not told; ``None``: it was, or is gone."""
        said = {
            "title": notice.title,
            "text": notice.text,
            "waiting": 0 if notice.settled else notice.total,
        }
        content = msgspec.json.encode(said)
        # Elliptic curves take some milliseconds.
        body = await anyio.to_thread.run_sync(encrypt, browser, content)
        headers = {
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(TTL_SECONDS),
            "Urgency": "normal" if notice.settled else "high",
            # A push service that still holds the last one for this space replaces it.
            "Topic": _text(sha256(notice.space.encode()).digest())[:32],
            **self._subscriptions.sign(browser.endpoint),
        }
        allow_private = self._subscriptions.allow_private
        try:
            await post(browser.endpoint, body, headers, allow_private=allow_private)
        except NotDelivered as error:
            if not error.is_gone:
                return error
            await self._subscriptions.remove(self._identity, browser.endpoint)
        return None


# --- requests to addresses outside ---
# The gateway makes them to no place that its configuration does not allow.

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
