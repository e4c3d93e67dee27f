"""What a call changes in the file that it writes, at the inbox's screen: `f` shows it."""

from meup_agent import Agent
from tests.cli.commands import ScreenQuestion
from tests.cli.inbox.people import anyio_backend as anyio_backend
from tests.cli.inbox.people import shown
from tests.gateway.console.test_file_page import bridge

CALL = {"path": "/srv/a.md", "text": "new"}


async def test_one_key_shows_the_difference_and_any_other_goes_back() -> None:
    async with shown("write_file", CALL, having=bridge(), size=(100, 30)) as (d, _):
        assert "key f shows what it changes in the file" in d.text("#card")
        await d.press("f")
        await d.until(lambda: d.asks(ScreenQuestion.FILE))
        card = d.text("#card")
        assert "What its call would change in /srv/<i>a.md" in card
        assert "-<script>old</script>" in card
        assert "and 12 more lines" in card
        assert "\x1b" not in card
        # No key decides here: it was pressed at something else than the call.
        await d.press("a")
        assert "proposed by" in d.text("#card")
        assert d.inbox.items


async def test_server_that_reads_no_files_is_a_sentence() -> None:
    agent = Agent("tools")

    @agent.tool
    async def write_file(path: str, text: str) -> str:
        return f"{path}: {text}"

    async with shown("write_file", CALL, having=agent, size=(100, 30)) as (d, _):
        await d.press("f")
        await d.until(lambda: "start it with --root FOLDER" in d.text("#note"))
