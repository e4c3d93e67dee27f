"""``meup guard``: the hooks of coding agents in their own settings, and the gateway that they ask.

In: the settings files of the agents on this machine. Out: the same files with entries of ours, or
without them. An entry is known as ours by the program that it starts, ``meup-hook``; others are
left as they are. A file is written whole, with what it was beside it, and never where it is
something else than was read: another program's change, a link, or not what the agent reads.
"""
