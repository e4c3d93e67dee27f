"""Doors: the tools that a coding agent runs by itself (shell, edit, fetch), decided in a space.

A door stands where the agent's program asks before it runs something: a hook, an editor's protocol,
a server's requests. :mod:`.permit` is the one way from there into a space: the door's participant
proposes the call to itself, and the request that fulfills the proposal is the permit. The agent's
program then runs the call with its own hands, and the door reports what came of it.

**In** come calls as a host tells them; **out** go permits and denials, with words for the model.
**Never**: a door runs no tool; it lets nothing run that no request of the space has permitted; what
it cannot read, reach or decide in time is a denial, said so that the host takes it for one. Where
its user lets the agent's terminal decide as well (:mod:`.terminal_race`), that is left to it.
"""
