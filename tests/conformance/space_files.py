"""The ``space.yaml`` of spaces that exist, in each form that templates and scenarios write it."""

from typing import Final

LISTED: Final = """\
# meup/v0.2, the oldest form: the space at the top, participants in a list.
name: quay
description: Cranes and a harbour master
participants:
  - id: crane
    description: Lifts things
    auto_start: true
    fifo: false
    capabilities:
      - kind: mcp/response
      - kind: system/*
  - id: master
    fifo: true
    capabilities:
      - kind: mcp/request
        payload: {method: tools/*}
      - kind: mcp/proposal
      - kind: system/*
"""

MEUP_V02: Final = """\
# meup/v0.2: tokens in the file, FIFOs and logs in place of connections.
space:
  id: quay
  name: "The quay"
  description: "A crane and a clerk"

participants:
  crane:
    tokens: ["crane-token"]
    capabilities:
      - kind: chat
      - kind: mcp/response
      - kind: system/*
    fifo: false
    auto_start: false
    command: "node"
    args: ["../agents/crane.js", "--gateway", "ws://localhost:${PORT}", "--token", "crane-token"]

  clerk:
    tokens: ["clerk-token"]
    default_to: [crane]
    io: http
    capabilities:
      - kind: "mcp/*"
      - kind: chat
      - kind: [system/presence, reasoning/*]
    fifo: true
    output_log: "./logs/clerk.log"
    auto_connect: true

defaults:
  routing: broadcast
  capabilities:
    - kind: chat
"""

MEW_V04: Final = """\
# mew/v0.4: no tokens in the file; they are kept in .mew/tokens.
space:
  id: "quay"
  name: "quay"
  description: "A crane that asks before it lifts"
  default_participant: human
  ui_theme: "sea"

gateway_logging:
  enabled: true
  envelope_history: {enabled: true}

participants:
  human:
    capabilities:
      - kind: "*"

  crane:
    type: local
    command: "node"
    args: ["crane.js", "--gateway", "ws://localhost:${PORT}", "--token", "${TOKEN}", "--depth", 3]
    cwd: ./tools
    auto_start: false
    restart_policy: on-failure
    capabilities:
      - kind: "chat"
      - id: asks
        kind: "mcp/proposal"
      - kind: "mcp/request"
        payload:
          method: "!tools/call"
      - kind: "mcp/request"
        payload:
          method: "tools/call"
          params: {name: "read_*"}
    env:
      MODEL_KEY: "${MODEL_KEY}"
      DEBUG: true
      RETRIES: 3
      UNSET:

  lift-files:
    type: mcp-bridge
    auto_start: false
    mcp_server:
      command: "node"
      args: ["./files.js", "./data"]
      env: {VERBOSE: false}
    bridge_config: {init_timeout: 30000, reconnect: true, max_reconnects: 3}
    restart_policy: never
    capabilities:
      - kind: "mcp/response"

  guest:

defaults:
  capabilities:
    - kind: "chat"
    - kind: "system/*"
"""
