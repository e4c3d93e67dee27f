"""The wire: envelopes, kinds, payloads, and limits of both.

Bytes in, records out, and back. Knows nothing of what is open.
"""
