"""Every incident, in the order of the page."""

from tests.bypass import decisions, display, identity, rules, silence
from tests.bypass.incident import INCIDENTS

__all__ = ["INCIDENTS", "decisions", "display", "identity", "rules", "silence"]
