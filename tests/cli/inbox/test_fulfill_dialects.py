"""`meup fulfill` of a participant in each dialect: what it reads of a proposal is one thing."""

from dataclasses import replace
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from meup_agent import Agent
from meup_agent.approval import Reviewer
from meup_agent.gateway import Gateway
from meup_agent.gateway.config import one_space_config
from tests.cli.commands import exit_codes, run
from tests.cli.inbox.conftest import PARTICIPANTS, POLICY, Office, files_agent
from tests.cli.participants import variables_of


@pytest.mark.rule("4.4.edits_judged")
@pytest.mark.parametrize("dialect", ["meup/v0.1", "meup/v0.2", "mew/v0.4", "mew/v0.3"])
def test_an_edit_is_judged_in_the_approvers_dialect(
    dialect: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    config = one_space_config("demo", PARTICIPANTS)
    (space,) = config.spaces
    people = space.participants
    alice = replace(people["alice"], dialect=dialect)
    config = replace(config, spaces=(replace(space, participants={**people, "alice": alice}),))
    with Gateway("demo", config=config).in_thread() as gateway, start_blocking_portal() as portal:
        office = Office(gateway, portal)
        agents: dict[str, Agent | Reviewer] = {
            "files": files_agent(office.calls),
            "reviewer": Reviewer(policy),
            "bot": Agent("bot"),
        }
        for variable, value in variables_of(gateway, "alice").items():
            monkeypatch.setenv(variable, value)
        with portal.wrap_async_context_manager(office.joined(agents)):
            proposal = office.propose("write", to=(), path="notes.md")
            denied = run(["fulfill", proposal, "--yes", "--edit", "path=etc/hosts"])
            assert "'never' of 'reviewer'" in capfd.readouterr().err
            assert (denied, office.calls) == (exit_codes.REFUSED, [])
            assert run(["fulfill", proposal, "--yes", "--edit", "path=more.md"]) == 0
            assert office.calls == [{"path": "more.md", "text": ""}]
