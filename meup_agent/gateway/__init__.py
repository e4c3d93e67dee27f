"""The other end: a gateway that participants meet at.

Importing this package needs nothing beyond the standard dependencies; running a gateway needs the
extra ``gateway``.
"""

from __future__ import annotations
