"""The OpenAPI document is served, and true of every endpoint."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import scaled
from tests.gateway.http.conftest import Api
from tests.gateways import OPERATIONS, document
from tests.programs import ROOT


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_every_endpoint_does_what_it_says() -> None:
    file = Path(__file__).with_name("every_endpoint.py")
    plugins = ("-p", "no:cacheprovider", "-p", "schemathesis.pytest.plugin")
    command = [sys.executable, "-m", "pytest", "-q", *plugins, str(file)]
    environment = {**os.environ, "MEUP_TEST_EXAMPLES": str(scaled(15))}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_document_is_served(api: Api) -> None:
    served_document = api.client.get("/openapi.json").json()
    assert {**served_document, "servers": []} == {**document(OPERATIONS), "servers": []}
