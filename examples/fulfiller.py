"""A fulfiller: it decides what others propose, and carries out what it likes.

Its capabilities let it call tools. Those of the proposer do not.
"""

from meup_agent import Agent, Context, Proposal, Reason, Withdrawal

agent = Agent("fulfiller")

MAX_DIGITS = 6


@agent.on_proposal(tool="divide")
async def review_division(proposal: Proposal) -> None:
    arguments = proposal.arguments
    divisor, digits = arguments.get("divisor"), arguments.get("digits", 0)
    # These are a stranger's words. Let through only what you understand: the
    # tool takes "12" for a number, and a rule for numbers would not see it.
    if not isinstance(divisor, int | float) or not isinstance(digits, int):
        await proposal.reject(Reason.INVALID, explain="numbers, please")
    elif divisor == 0:
        await proposal.reject(Reason.INVALID, explain="nobody divides by zero")
    elif digits > MAX_DIGITS:
        # Not quite what was proposed. The proposer is told the difference.
        await proposal.fulfill({**arguments, "digits": MAX_DIGITS})
    else:
        await proposal.fulfill()


# These do no harm. A proposal that is addressed to us, and that no handler
# matches, is rejected without our doing.
@agent.on_proposal(tool=["add", "summarize"])
async def approve(proposal: Proposal, ctx: Context) -> None:
    # If the proposer withdraws now, the tool is cancelled, and so are we.
    outcome = await proposal.fulfill()
    if outcome.is_error:
        ctx.log.warning("%s failed: %s", proposal.tool, outcome.content)


@agent.on_withdraw
async def note(withdrawal: Withdrawal, ctx: Context) -> None:
    # By now our handler has ended, and its request is cancelled.
    ctx.log.info("%r took a proposal back: %s", withdrawal.by, withdrawal.cause)


if __name__ == "__main__":
    agent.run()
