"""The example that joins gateways of other make, at gateways of other make."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.conformance.gateways import ExistingGateway
from tests.conformance.versions import MEUP_V02, MEW_V04, Version
from tests.programs import ROOT, Program, program

CAPABILITIES = {
    "proposer": [{"kind": "mcp/proposal"}, {"kind": "mcp/withdraw"}],
    "fulfiller": [{"kind": "mcp/*"}, {"kind": "chat"}],
    "tools": [{"kind": "mcp/response"}],
}


def starting(gateway: ExistingGateway) -> Callable[[str, str], AbstractContextManager[Program]]:
    def start(name: str, participant: str) -> AbstractContextManager[Program]:
        environment = {
            "MEUP_URL": gateway.url,
            "MEUP_SPACE": "demo",
            "MEUP_TOKEN": f"{participant}-token",
            "MEUP_PARTICIPANT": participant,
        }
        return program([ROOT / "examples" / name], environment)

    return start


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (MEUP_V02, ["I see only what is meant for me.", "What I send does not come back to me."]),
        (MEW_V04, []),
    ],
    ids=["meup/v0.2", "mew/v0.4"],
)
def test_it_joins_and_proposes(version: Version, said: list[str]) -> None:
    tokens = {f"{name}-token": name for name in CAPABILITIES}
    with ExistingGateway(version, tokens=tokens, capabilities=CAPABILITIES).in_thread() as gateway:
        start = starting(gateway)
        with (
            start("calculator.py", "tools") as tools,
            start("fulfiller.py", "fulfiller") as fulfiller,
        ):
            tools.wait_for("connected to")
            fulfiller.wait_for("connected to")
            with start("join_existing.py", "proposer") as joining:
                assert joining.wait() == 0, str(joining)
    assert joining.stdout == [
        f"I am proposer, and the gateway speaks {version.protocol}.",
        "Anybody may speak in anybody's name here.",
        *said,
        "fulfiller says: 3.0",
    ]
