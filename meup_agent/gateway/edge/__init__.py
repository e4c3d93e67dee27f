"""The ports of the gateway: here bytes come in from strangers."""

from __future__ import annotations
