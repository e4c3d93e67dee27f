"""The command line in this process: to run it, and what it exits with.

Tests reach the inside of the package through this module: a name that moves is changed here.
"""

from meup_agent.cli import exit_codes
from meup_agent.cli.commands.gateway import ListenOptions
from meup_agent.cli.commands.journal import AuditListing, AuditTimeline
from meup_agent.cli.doctor import NAMES
from meup_agent.cli.failures import Failure
from meup_agent.cli.program import app, run
from meup_agent.cli.render.card import CardRow
from meup_agent.cli.render.formatting import NARROWEST, Glyphs
from meup_agent.cli.render.output import Output
from meup_agent.cli.render.screen import EditRefused, InboxApp, ScreenQuestion
from meup_agent.cli.render.timeline import Timeline
from meup_agent.cli.up.plan import read_servers_plan
from meup_agent.client.messages import request
from meup_agent.client.schema_check import ArgumentChecker
