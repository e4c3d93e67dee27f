"""A moderator for a shell: harmless lines run, harmful ones never.

People decide the rest. Start the owner of a tool `shell` first; it takes a
`line`. Run this as fulfiller, and `meup inbox` as another that may decide.
"""

import shlex

from meup_agent import Agent, Context, Proposal, Reason

HARMLESS = {"ls", "pwd", "wc", "du"}
HARMFUL = {"rm", "dd", "mkfs", "shutdown", "sudo"}
SIGNS = set(";&|<>$`\\\n(){}*?~#!")  # by which a shell does more than it reads

agent = Agent("fulfiller")


def judge(line: object) -> bool | None:
    """Whether a line may run; None: a person decides."""
    if not isinstance(line, str):
        return False
    try:
        words = shlex.split(line)
    except ValueError:  # a quotation that does not end
        return False
    if any(word.rpartition("/")[2] in HARMFUL for word in words):
        return False
    if words and words[0] in HARMLESS and not SIGNS.intersection(line):
        return True
    return None


@agent.on_proposal(tool="shell")
async def moderate(proposal: Proposal, ctx: Context) -> None:
    arguments = proposal.arguments
    # What else stands beside the line, we do not know.
    allowed = (
        judge(arguments.get("line")) if arguments.keys() == {"line"} else None
    )
    if allowed:
        await proposal.fulfill()
    elif allowed is False:
        await proposal.reject(
            Reason.UNSAFE, explain="this line is not run here"
        )
    else:
        ctx.progress(0.1, message="a person is asked")
        ctx.log.info("left to people: %r", arguments)


if __name__ == "__main__":
    agent.run()
