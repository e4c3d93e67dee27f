"""``meup doctor``: checks of the way to a gateway, and of the gateway.

``diagnosis`` runs the checks in their order until one fails that the rest need: ``probe`` takes the
steps to the port and its certificate alone, and records the one connection that is made.
``findings`` are the results, with advice. Nothing is sent into the space.
"""
