"""A space whose file asks for it tells everybody of the withdrawals that took effect."""

from pathlib import Path

import pytest

from meup_agent.gateway import Gateway, load_config
from tests.conformance.wire import MCPX, V01, V02, V04, Site

FILE = """
spaces:
  demo:
    announce_withdrawals: {announces}
    defaults: {{capabilities: [{{kind: mcp/proposal}}, {{kind: chat}}]}}
    participants:
      alice: {{tokens: [alice-token]}}
      bob: {{tokens: [bob-token]}}
"""


@pytest.mark.rule("3.withdraw.announced")
@pytest.mark.parametrize("dialect", [V01, V02, V04, MCPX])
@pytest.mark.parametrize("announces", ["true", "false"])
def test_what_took_effect_is_announced_once(tmp_path: Path, announces: str, dialect: str) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(FILE.format(announces=announces))
    dot = "." if dialect == V01 else "/"
    with (
        Gateway(config=load_config(file)).in_thread() as gateway,
        Site(gateway, V04).join("alice") as (alice,),
        Site(gateway, dialect).join("bob") as (bob,),
    ):
        proposal = alice.send("mcp/proposal", {"method": "tools/call", "params": {"name": "x"}})
        for about in (proposal, proposal, "unknown"):
            alice.send("mcp/withdraw", {"reason": "policy"}, correlation_id=[about])
        alice.send("chat", {"text": "done"}, id="done")
        heard = [bob.hear_any()]
        while heard[-1]["id"] != "done":
            heard.append(bob.hear_any())
        announced = [each for each in heard if each["kind"] == f"system{dot}withdrawn"]
        assert len(heard) == 5 + len(announced)
        if announces == "false":
            assert announced == []
            return
        (said,) = announced
        assert heard.index(said) == 2  # right after the withdrawal itself
        assert said["from"] == "system:gateway"
        assert said["payload"] == {"proposal_id": proposal, "by": "alice", "reason": "policy"}
        named = [proposal] if dialect in (V02, V04) else proposal
        assert (said.get("correlationId") or said["correlation_id"]) == named
