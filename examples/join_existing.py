"""Joins whatever gateway there is, and says what its answers are worth."""

import anyio

from meup_agent import Agent, Fulfillment, Rejection, Space

agent = Agent("visitor")


def look_around(space: Space) -> None:
    print(f"I am {space.me}, and the gateway speaks {space.gateway.dialect}.")
    given = space.gateway.guarantees
    if not given.identity_checked:
        print("Anybody may speak in anybody's name here.")
    if given.hidden_targets:
        print("I see only what is meant for me.")
    if not given.echo:
        print("What I send does not come back to me.")


async def main() -> None:
    async with agent.join() as space:  # MEUP_URL, MEUP_PARTICIPANT and so on
        look_around(space)
        async with space.propose(
            "tools", "add", {"a": 1, "b": 2}, to="fulfiller", ttl=30
        ) as proposal:
            match await proposal.outcome():
                case Fulfillment() as done:
                    # Only a name, if the gateway checks none.
                    result = done.result(accept_edits=True)
                    print(f"{done.by} says: {result}")
                case Rejection(by=by, reason=reason):
                    print(f"{by} says no: {reason}")
                case other:  # Expiry, Gone or Withdrawal
                    print(f"nobody decided: {other}")


if __name__ == "__main__":
    anyio.run(main)
