"""What a call changes in the file that it writes, in a browser: as its bridge answers, escaped."""

from typing import Any

from meup_agent import Agent
from meup_agent.client.file_difference import (
    FILE_DIFFERENCE,
    FileDifference,
    FileQuestion,
    seal_difference,
)
from meup_agent.client.messages import Request, read_params
from tests.gateway.console.conftest import Site

FOUND = FileDifference(
    path="/srv/<i>a.md",
    said="The file is <b>there</b>.",
    lines=(
        "@ line 1",
        " same",
        "-<script>old</script>",
        "+new\x1b[31m\u202e",
        "\\ no line end here",
    ),
    omitted=12,
    read_at="2026-11-28T10:00:00+00:00",
)


def bridge() -> Agent:
    """A server that tells what stands in its files."""
    agent = Agent("tools")

    @agent.tool
    async def write_file(path: str, text: str) -> str:
        return f"{path}: {text}"

    @agent.on_request(FILE_DIFFERENCE)
    async def tell(request: Request) -> dict[str, Any]:
        question = read_params(request, FileQuestion)
        assert question.proposer == "proposer"
        return seal_difference(question, FOUND)

    return agent


async def test_difference_is_a_key_away_and_escaped(site: Site) -> None:
    await site.join("tools", bridge())
    await site.propose(await site.join("proposer"))
    you = await site.browser("you")
    key = await you.key()
    assert (
        f'href="/console/inbox/{key}/file" aria-keyshortcuts="f"' in (await you.get("/inbox")).text
    )
    page = (await you.get(f"/inbox/{key}/file")).text
    assert "/srv/&lt;i&gt;a.md" in page
    assert "-&lt;script&gt;old&lt;/script&gt;" in page
    assert "The file is &lt;b&gt;there&lt;/b&gt;." in page
    assert "And 12 more lines" in page
    assert "As the file was at" in page
    assert not any(each in page for each in ("<b>there", "<script>old", "\x1b", "\u202e"))
    assert f'id="back" href="/console/inbox/{key}"' in page


async def test_server_that_reads_no_files_is_a_sentence(site: Site) -> None:
    await site.propose(await site.proposer())
    you = await site.browser("you")
    key = await you.key()
    assert "start it with --root FOLDER" in (await you.get(f"/inbox/{key}/file")).text
    gone = await you.get(f"/inbox/{'0' * 24}/file")
    assert gone.status_code == 303


async def test_call_that_names_no_file_offers_no_difference(site: Site) -> None:
    await site.propose(await site.proposer(), {"path": "a.md"}, "read_file")
    you = await site.browser("you")
    assert "/file" not in await you.page("/inbox", 'data-key="')
