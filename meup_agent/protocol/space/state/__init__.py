"""The state of a space, and its decisions about each frame: functions of the two.

In: a frame or an entry of the journal, and the time. Out: a decision, or the new state. Appends and
sends nothing.
"""
