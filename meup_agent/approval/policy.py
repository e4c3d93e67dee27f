"""Policy: a rule set by which an agent decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meup_agent.approval.rule_set import RuleSet

if TYPE_CHECKING:
    from meup_agent.agent.agent import Agent


class Policy(RuleSet):
    """Rules that decide calls.

    ``agent.use(policy)`` lets an agent decide by them: what is allowed is fulfilled, what is denied
    rejected, and the rest left to people.

    Args:
        rules: The rules, in the order in which they are asked.

    Attributes:
        rules: The same.
        names: Their names.
        digest: First 16 hexadecimal digits of the SHA-256 of what the rules say.

    Raises:
        ConfigurationError: A pattern does not compile, or a name is given twice.
    """

    def install(self, agent: Agent) -> None:
        """Let an agent decide by it; ``agent.use(policy)`` calls this.

        Raises:
            ConfigurationError: A rule counts votes, for which the agent has no tools.
        """
        # Loaded when it is used: deciding alone needs no agent.
        from meup_agent.approval.decider import Decider, refuse_quorum

        refuse_quorum(self)
        Decider(lambda: self).install(agent)
