"""A reviewer: it decides who prints what."""

from meup_agent import Agent, Proposal, Reason

agent = Agent("reviewer")


@agent.on_proposal(tool="print_pages")
async def review(proposal: Proposal) -> None:
    pages = proposal.arguments["pages"]
    print(f"{proposal.proposer} wants {pages} pages")
    if pages > 500:
        await proposal.reject(Reason.RESOURCE_LIMIT, explain="so much paper!")
        return
    outcome = await proposal.fulfill()
    print("it failed" if outcome.is_error else f"done: {outcome.value}")


if __name__ == "__main__":
    agent.run()
