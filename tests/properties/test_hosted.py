"""A real space with a journal that is late, and connections and processes that break."""

import os
from random import Random

import pytest

from tests.effort import scaled
from tests.properties.hosted import GATEWAY, KINDS, MEMBER, Hosted
from tests.spaces import delivery

SEEDS = int(os.environ.get("MEUP_EXAMPLES") or scaled(60))
DIALECTS = ("meup/v0.1", "meup/v0.1", "mew/v0.4")


def check_capabilities(hosted: Hosted) -> None:
    """No member said what was revoked before; what was open then has ended (PROTOCOL 3)."""
    allowed = {name: [each["kind"] for each in MEMBER] for name in hosted.clients}
    open_: dict[tuple[str, str], str] = {}
    for entry in hosted.file.entries:
        envelope = entry.envelope
        sender, payload = envelope.sender, envelope.payload_object
        if envelope.kind.startswith("capability/") and sender == "admin":
            (capability,) = payload["capabilities"]
            held = allowed[payload["recipient"]]
            if envelope.kind == "capability/grant":
                held.append(capability["kind"])
            else:
                held[:] = [kind for kind in held if kind != capability["kind"]]
        elif envelope.kind.replace("/", ".") in KINDS and sender != GATEWAY:
            assert envelope.kind in allowed[sender], "what was revoked was let through"
            if envelope.kind != "chat":
                open_[sender, envelope.id] = envelope.kind
        elif envelope.kind == "mcp/withdraw" or sender == GATEWAY:
            # Ids are nobody else's here.
            for name in envelope.correlation:
                for key in [key for key in open_ if key[1] == name]:
                    if sender == GATEWAY or (key[0] == sender and open_[key] == "mcp/proposal"):
                        del open_[key]
    for (sender, name), kind in open_.items():
        assert kind in allowed[sender], f"{name} goes on though it was revoked"


@pytest.mark.rule("6.resume.order")
@pytest.mark.parametrize("forgets", [False, True])
def test_nothing_is_lost_or_comes_twice(monkeypatch: pytest.MonkeyPatch, forgets: bool) -> None:
    monkeypatch.setattr(delivery, "PAGE", 3)
    for seed in range(SEEDS):
        hosted = Hosted(Random(seed), DIALECTS, forgets=forgets)
        try:
            for _ in range(1_000):
                hosted.step()
            hosted.settle()
            if not forgets:
                check_capabilities(hosted)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
