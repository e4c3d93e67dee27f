"""The gateway over HTTP: an ASGI application, at the gateway's port, at one of its own, or mounted.

:mod:`api` lists every endpoint; the routes and the OpenAPI document are made of it. Each
endpoint gets the runtime and a request, asks :mod:`context` who calls, and raises its ``Problem``
for what it does not do. An envelope that is posted takes the road of one from a WebSocket; an event
stream is one more subscriber of its space. No endpoint decides what an envelope may do, and none
writes into the journal itself: both are the space's.
"""
