"""A fulfiller: it decides what others propose, and carries out what it approves.

Its capabilities let it call tools. Those of the proposer do not.
"""

from meup_agent import Agent, Context, Proposal, Reason, Withdrawal

agent = Agent("fulfiller")

MAX_DIGITS = 6


@agent.on_proposal(name="divide")
async def review_division(proposal: Proposal) -> None:
    # Nobody has checked these arguments yet: the tool does, when it is called.
    arguments = proposal.arguments
    digits = arguments.get("digits", 0)
    if arguments.get("divisor") == 0:
        await proposal.reject(Reason.INVALID, explain="nobody can divide by zero")
    elif isinstance(digits, int) and digits > MAX_DIGITS:
        # This is not quite what was proposed. The proposer is told the difference.
        await proposal.fulfill({**arguments, "digits": MAX_DIGITS})
    else:
        await proposal.fulfill()


# Of several handlers that match, the first is asked. This one gets what is left.
@agent.on_proposal
async def review(proposal: Proposal, ctx: Context) -> None:
    # If the proposer withdraws meanwhile, the tool is cancelled, and so are we.
    outcome = await proposal.fulfill()
    if outcome.is_error:
        ctx.log.warning("%s failed: %s", proposal.tool, outcome.result)


@agent.on_withdraw
async def note(withdrawal: Withdrawal, ctx: Context) -> None:
    # By now our handler of the proposal has ended, and its request is cancelled.
    ctx.log.info("%r took a proposal back: %s", withdrawal.by, withdrawal.cause)


if __name__ == "__main__":
    agent.run()
