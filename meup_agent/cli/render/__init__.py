"""Everything that is written on a terminal, and the two streams that it is written to.

Text of strangers comes in, with the results and envelopes that hold it; lines go out that are safe
to print, fit the terminal, and say without colour what they say with it. ``escape`` is the border:
each module lets a stranger's text through it before it prints. Nothing here sends an envelope or
decides.
"""
