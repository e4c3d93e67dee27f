"""Every endpoint does what the OpenAPI document says, whatever it is sent.

Run by test_openapi.py in a process of its own: schemathesis makes its examples as it is collected,
3 s that each worker would spend, and all of them belong together.
"""

import json
import os
import unicodedata
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, assume, settings

from meup_agent.gateway import GatewayLimits
from tests.gateway.http.conftest import Api, served
from tests.gateways import OPERATIONS, document

EXAMPLES = int(os.environ.get("MEUP_TEST_EXAMPLES", "15"))
"""Of each kind for each endpoint: some seconds together."""


@pytest.fixture(scope="module")
def fuzzed() -> Generator[Api]:
    # Wrong tokens are among what is sent, and must not end the test with 429.
    with served(GatewayLimits(failed_tokens=1_000_000)) as found:
        found.say("something to read")
        yield found


@pytest.fixture(scope="module")
def session() -> Generator[requests.Session]:
    with requests.Session() as found:
        # Or each request looks for proxies and passwords, a quarter of its time.
        found.trust_env = False
        yield found


REAL = {"participant": "bob", "space": "demo"}

answered: dict[str, set[int]] = defaultdict(set)

described = schemathesis.openapi.from_dict(document(OPERATIONS))


@described.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_endpoint(
    fuzzed: Api, session: requests.Session, case: schemathesis.Case[Any]
) -> None:
    if case.operation.path == "/spaces/{space}/events":
        case.query = {**(case.query or {}), "follow": "false"}  # or the answer has no end
    # With a length of its own a request is no HTTP: it is refused before any endpoint sees it.
    assume({"content-length", "transfer-encoding"}.isdisjoint(map(str.lower, case.headers or ())))
    if case.meta is not None and case.meta.generation.mode.is_positive:
        # Otherwise none would be let in.
        case.path_parameters = {name: REAL[name] for name in case.path_parameters or {}}
        # Examples are made with a newer Unicode than this Python may have.
        said = json.dumps([case.query, case.body], ensure_ascii=False, default=str)
        assume("Cn" not in map(unicodedata.category, said))
    answer = case.call_and_validate(
        base_url=fuzzed.gateway.http_url, headers=fuzzed.header("bob"), session=session
    )
    answered[case.operation.label].add(answer.status_code)


def test_each_endpoint_let_somebody_in() -> None:
    assert len(answered) == len(OPERATIONS)
    for label, statuses in answered.items():
        assert 200 in statuses, label
