"""What is said in a space: envelopes, dialects, lifecycles and who may do what.

Nothing in this folder does I/O, reads a clock, starts a task or draws a random number: times and
new ids are arguments. The same code serves agents, the gateway and the tests.
"""
