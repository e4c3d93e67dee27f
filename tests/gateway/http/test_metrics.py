"""The metrics of a gateway, as Prometheus reads them."""

import json

import pytest

from tests.gateway.http.conftest import Api, served
from tests.gateways import OBSERVE_HEADER
from tests.patience import PATIENCE


def test_metrics_count_messages_and_connections(api: Api) -> None:
    with api.join("bob"):
        api.say("hi")
        api.post({"kind": "mcp.request", "payload": {}})
        text = api.client.get("/metrics").text
    lines = text.splitlines()
    assert "meup_envelopes_accepted_total 1.0" in lines
    assert 'meup_envelopes_refused_total{code="capability_violation"} 1.0' in lines
    assert 'meup_members{space="demo"} 1.0' in lines
    assert "meup_connections 1.0" in lines
    assert 'meup_queued_bytes{space="demo"} 0.0' in lines
    assert 'meup_journal_behind{space="demo"} 0.0' in lines
    assert "alice" not in text
    assert "bob" not in text


def test_metrics_count_observers_by_themselves(api: Api) -> None:
    with api.join("bob"), api.dial("bob", **{OBSERVE_HEADER: "1"}) as socket:
        assert json.loads(socket.recv(PATIENCE))["kind"] == "system.welcome"
        lines = api.client.get("/metrics").text.splitlines()
    assert 'meup_members{space="demo"} 1.0' in lines
    assert 'meup_observers{space="demo"} 1.0' in lines
    assert "meup_connections 2.0" in lines
    assert "meup_connections_joined_total 1.0" in lines
    assert "meup_connections_observed_total 1.0" in lines
    assert "meup_connections_taken_over_total 0.0" in lines


@pytest.mark.parametrize("version", ["x", "\u00b2", "1.0.0;escaping=x", ""])
def test_metrics_are_said_whatever_form_is_asked_for(api: Api, version: str) -> None:
    accept = f"application/openmetrics-text;version={version}".encode("latin-1")
    answer = api.client.get("/metrics", headers={b"Accept": accept})
    assert answer.status_code == 200
    assert "meup_connections" in answer.text


def test_metrics_of_each_gateway_are_its_own(api: Api) -> None:
    api.say("hi")
    with served() as other:
        assert "meup_envelopes_accepted_total 0.0" in other.client.get("/metrics").text
