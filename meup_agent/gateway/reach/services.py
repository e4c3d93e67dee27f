"""Services that notices are sent by: signed webhooks, and what Apprise reaches."""

from __future__ import annotations

import base64
import logging
import os
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx
import msgspec

from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.gateway.auth import read_token
from meup_agent.gateway.logs import log
from meup_agent.gateway.reach.bursts import InboxNotice
from meup_agent.gateway.reach.outbound import NotDelivered, find_addresses, post

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
    check_extra(place)
    plugin = _apprise_plugin(target.url)
    if plugin is not None:
        return AppriseService(plugin, place, allow_private=target.allow_private)
    scheme = _scheme_of(target.url)
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


def _scheme_of(url: str) -> str:
    """The scheme of an address of a host; empty: it is none."""
    try:
        parts = urlsplit(str(httpx.URL(url)))
        return parts.scheme if parts.hostname and parts.port != 0 else ""
    except (ValueError, httpx.InvalidURL):
        return ""


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
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
                made = new_secret()
                file.write(f"{made}\n")
                log.info("made the secret that signs a webhook, in %s", path)
                return made
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be made ({system_reason(error)})") from None
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
