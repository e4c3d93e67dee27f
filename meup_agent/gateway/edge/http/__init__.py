"""The gateway over HTTP: an ASGI application, on a port of its own or mounted into another."""
