"""Adapters: the tools of a space in agent frameworks, each in one module and one extra.

They own nothing but the translation. What comes in is a joined :class:`~meup_agent.Space`; what
goes out are tools of the framework, whose calls are calls in the space. A call that the
participant's capabilities do not allow waits as a proposal, and the gateway holds it: a framework
that is edited, crashes or is asked nicely gets no further. They are for asyncio, as the frameworks
are, import these only when they are imported themselves, and never decide anything.

* :mod:`~meup_agent.adapters.pydantic_ai`: ``SpaceToolset``
* :mod:`~meup_agent.adapters.approvals`: ``approve_calls``, for a pydantic-ai agent's own tools
* :mod:`~meup_agent.adapters.openai_agents`: ``space_tools``
* :mod:`~meup_agent.adapters.langchain`: ``space_tools``
* :mod:`~meup_agent.adapters.ag_ui`: ``SpaceInterrupts``, for runs that end while a call waits
* :mod:`~meup_agent.adapters.claude_agent`: ``can_use_tool``, for Claude's own tools
"""
