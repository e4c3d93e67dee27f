"""A plugin of pytest (``-p tests.two_nodes``): each gateway of a test in a thread is two, on NATS.

The first has the spaces, the second none: members come in at either by turns, so half of them go
through the door of a gateway that does not have their space. Tests that choose a journal keep it.
"""

import secrets
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import cycle

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from meup_agent.gateway import Config, Gateway, ThreadedGateway
from meup_agent.gateway.config import NatsConfig
from tests.nats_servers import held_port, shared_server
from tests.patience import PATIENCE

_in_thread = Gateway.in_thread

ALONE = {
    # Each gateway counts what is at itself.
    "test_health_says_what_scripts_look_for",
    # One member has acted on a message before another, at another gateway, has it.
    "test_what_is_fulfilled_is_not_fulfilled_again",
    # An attack that gets through needs its moment, which is another at two; none may, at either.
    "test_it_succeeds_without_its_rule",
}
"""Tests of what differs between one gateway and several, as the documents say it does."""


def pytest_configure() -> None:
    """Replace the place where the suites get their gateways; for the rest of the process."""
    patch = pytest.MonkeyPatch()
    patch.setattr(Gateway, "in_thread", two_in_thread)
    # No space moves, and none is taken to hang, however busy the machine is.
    for name in (
        "membership.SILENT_SECONDS",
        "membership.STEADY_SECONDS",
        "forwarding.GREETING_SECONDS",
    ):
        patch.setattr(f"meup_agent.gateway.cluster.{name}", PATIENCE)
    # Nobody else starts at the same time.
    patch.setattr("meup_agent.gateway.cluster.membership.SETTLE_SECONDS", 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what tells one gateway from two."""
    chosen = [item for item in items if getattr(item, "originalname", "") not in ALONE]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


class TwoGateways(ThreadedGateway):
    """The owner of all spaces, and a gateway through which half of all members come in.

    Args:
        owner: A gateway that runs.
        door: Another one, with its configuration.
        portal: The loop of both.
    """

    def __init__(self, owner: Gateway, door: Gateway, portal: BlockingPortal) -> None:
        super().__init__(owner, portal)
        self._both = owner, door
        self._turns = cycle((door, owner))

    @property
    def url(self) -> str:
        return next(self._turns).url

    @property
    def http_url(self) -> str:
        return next(self._turns).http_url

    def kill(self) -> None:
        for each in self._both:
            self._portal.call(each.kill)

    def restart(self) -> None:
        """Start both anew, and as they do without a journal that outlives them: with nothing."""
        self.kill()
        prefix = secrets.token_hex(8)
        for each in self._both:
            nats = each._config.journal.nats
            assert nats is not None
            each._config = _with_nats(each._config, replace(nats, prefix=prefix))
        for each in self._both:
            self._portal.call(each.restart)


def _with_nats(config: Config, nats: NatsConfig) -> Config:
    return replace(config, journal=replace(config.journal, nats=nats))


@contextmanager
def two_in_thread(self: Gateway) -> Generator[ThreadedGateway]:
    """Run a gateway, and another with its configuration, on a loop in a thread."""
    config = self._config
    if config.journal.path is not None or config.journal.nats is not None:
        with _in_thread(self) as one:
            yield one
        return
    if config.http is not None:
        # The port for members passes HTTP on, too; one for HTTP alone does not.
        config = replace(config, http=replace(config.http, host=None, port=None))
    # The owner ends first, as where gateways are restarted one by one.
    with ExitStack() as doors, ExitStack() as stack:
        portal = doors.enter_context(start_blocking_portal("asyncio", name="meup-gateways"))
        prefix = secrets.token_hex(8)
        nodes: list[Gateway] = []
        for node, ends in (("owner", stack), ("door", doors)):
            held, port = held_port()
            doors.enter_context(held)
            nats = NatsConfig(
                servers=(shared_server().url,),
                prefix=prefix,
                replicas=1,
                node=node,
                advertise=f"127.0.0.1:{port}",
                cluster_token="of-both",
            )
            gateway = Gateway(
                config=_with_nats(config, nats), host=self._host, port=self._port, page=self._page
            )
            ends.enter_context(portal.wrap_async_context_manager(gateway))
            nodes.append(gateway)
        yield TwoGateways(nodes[0], nodes[1], portal)
