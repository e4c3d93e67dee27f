"""The event stream of a space: nothing twice, nothing lost, and no gap in silence."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import httpx
import pytest

from meup_agent.gateway import JournalConfig
from tests.gateway.http.conftest import LIMITS, Api, served
from tests.gateways import OBSERVE_HEADER
from tests.no_tls import ALONE
from tests.patience import PATIENCE

Event = dict[str, str]


def events(lines: Iterator[str]) -> Iterator[Event]:
    """The events of a stream."""
    event: Event = {}
    for line in lines:
        if not line and set(event) - {"retry"}:
            yield event
        if not line:
            event = {}
            continue
        name, _, value = line.partition(": ")
        if name:
            event[name] = event.get(name, "") + value


@contextmanager
def stream(api: Api, participant: str = "carol", **more: str) -> Generator[Iterator[Event]]:
    """The events of the space, from when the gateway has taken the request on."""
    last = more.pop("last", None)
    headers = {**api.header(participant), **({"Last-Event-ID": last} if last else {})}
    observe = more.pop("observe", None)
    headers |= {OBSERVE_HEADER: observe} if observe else {}
    path = "/spaces/demo/events"
    with api.client.stream("GET", path, params=more, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        if observe:
            assert response.headers[OBSERVE_HEADER] == observe
            assert response.headers["meup-protocol"] == "meup/v0.1"
        yield events(response.iter_lines())


def message(event: Event) -> str:
    said: str = json.loads(event["data"])["payload"]["message"]
    return said


def test_what_is_said_is_heard_with_its_number(api: Api) -> None:
    with stream(api) as heard:
        numbers = [api.say("one"), api.say("two", "bob")]
        found = [next(heard), next(heard)]
    assert [int(event["id"]) for event in found] == numbers
    assert [json.loads(event["data"])["seq"] for event in found] == numbers
    assert [message(event) for event in found] == ["one", "two"]


def test_a_reader_comes_back_to_where_it_was(api: Api) -> None:
    with stream(api) as heard:
        first = api.say("one")
        assert message(next(heard)) == "one"
    api.say("two")
    api.say("three")
    with stream(api, last=str(first)) as heard:
        assert [message(next(heard)) for _ in range(2)] == ["two", "three"]
        api.say("four")
        assert message(next(heard)) == "four"


def test_many_missed_events_come_in_order_before_what_is_new(api: Api) -> None:
    first = api.say("begin")
    numbers = [api.say(f"m{each}") for each in range(3 * LIMITS.max_queued_frames)]
    with stream(api, last=str(first)) as heard:
        numbers.append(api.say("new"))
        assert [int(next(heard)["id"]) for _ in numbers] == numbers


def test_what_there_is_can_be_read_without_waiting(api: Api) -> None:
    first = api.say("one")
    numbers = [api.say("more") for _ in range(2 * LIMITS.max_queued_frames)]
    with stream(api, since=str(first), follow="false") as heard:
        assert [int(event["id"]) for event in heard] == numbers
    with stream(api, follow="false") as heard:
        assert list(heard) == []


def test_a_gap_is_announced() -> None:
    with served(journal=JournalConfig(memory_entries=2)) as api:
        first, *_, last = [api.say("x") for _ in range(5)]
        for follow in ("true", "false"):
            with stream(api, last=str(first), follow=follow) as heard:
                gap = next(heard)
                assert gap["event"] == "gap"
                assert json.loads(gap["data"]) == {"after": last - 2}
                assert [int(next(heard)["id"]) for _ in range(2)] == [last - 1, last]
        with stream(api, last=str(last - 2)) as heard:
            assert next(heard)["id"] == str(last - 1)


def test_a_number_that_was_never_given_is_a_gap(api: Api) -> None:
    only = api.say("x")
    with stream(api, last=str(only + 1_000)) as heard:
        assert next(heard)["event"] == "gap"
        assert next(heard)["id"] == str(only)


def test_events_in_the_dialect_that_is_asked_for(api: Api) -> None:
    with stream(api, dialect="mew/v0.4") as heard:
        api.post(
            {"kind": "mcp.proposal", "payload": {"method": "tools/call", "params": {"name": "x"}}}
        )
        assert json.loads(next(heard)["data"])["kind"] == "mcp/proposal"


def test_lines_of_a_frame_stay_one_event(api: Api) -> None:
    with stream(api) as heard:
        api.post(b'{"kind": "chat",\r\n\r\n "payload":\n {"message": "hi"}\r}')
        assert message(next(heard)) == "hi"


@pytest.mark.parametrize("last", ["x", "-1", "1" * 19])
def test_a_wrong_number_is_refused(api: Api, last: str) -> None:
    assert api.get("/spaces/demo/events", since=last).status_code == 400


def test_a_stream_ends_when_the_gateway_stops() -> None:
    with served() as api:
        client = httpx.Client(base_url=api.gateway.http_url, **ALONE)
        with client, client.stream("GET", "/spaces/demo/events", headers=api.header("bob")) as it:
            lines = it.iter_lines()
            assert next(lines).startswith("retry")
            api.gateway.restart()
            # A restart plays a killed gateway.
            with suppress(httpx.RemoteProtocolError):
                assert all(line == "" for line in lines)


def test_a_stream_ends_for_who_is_removed(api: Api) -> None:
    with stream(api) as heard:
        kick = {"kind": "space/kick", "payload": {"participant_id": "carol", "reason": "enough"}}
        assert api.post(kick, "bob").status_code == 200
        kinds = [json.loads(event["data"])["kind"] for event in heard]
    assert "space.kick" in kinds or "space/kick" in kinds


@pytest.mark.rule("3.observe.not_present", "3.observe.takes_no_part")
def test_an_observers_stream_begins_with_a_welcome_and_disturbs_no_connection(api: Api) -> None:
    before = api.say("before")
    with api.join("carol") as agent, stream(api, observe="1") as heard:
        welcome = json.loads(next(heard)["data"])
        assert welcome["kind"] == "system.welcome"
        payload = welcome["payload"]
        assert (payload["you"]["id"], payload["observing"]) == ("carol", True)
        assert [each["id"] for each in payload["participants"]] == ["carol"]
        assert (payload["resumed"], welcome["seq"]) == (False, payload["until"])
        assert welcome["seq"] > before
        api.say("hello")
        assert message(next(heard)) == "hello"
        assert json.loads(agent.recv(PATIENCE))["payload"]["message"] == "hello"


@pytest.mark.rule("3.observe.resume")
def test_an_observers_stream_resumes_after_its_welcome(api: Api) -> None:
    first, second = api.say("one"), api.say("two")
    with stream(api, observe="1", last=str(first)) as heard:
        welcome = json.loads(next(heard)["data"])["payload"]
        assert (welcome["resumed"], welcome["gap"], welcome["until"]) == (True, False, second)
        assert message(next(heard)) == "two"


@pytest.mark.rule("3.observe.ends")
def test_an_observers_stream_says_why_it_ends(api: Api) -> None:
    with stream(api, observe="1") as heard:
        assert json.loads(next(heard)["data"])["kind"] == "system.welcome"
        kick = {"kind": "space/kick", "payload": {"participant_id": "carol"}}
        assert api.post(kick, "bob").status_code == 200
        *_, last = heard
        assert (last["event"], json.loads(last["data"])["code"]) == ("close", 4403)


def test_an_observers_stream_is_asked_for_with_a_one(api: Api) -> None:
    headers = {**api.header("carol"), OBSERVE_HEADER: "yes"}
    answer = api.client.get("/spaces/demo/events", headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")


@pytest.mark.rule("3.join.pace")
def test_observers_streams_have_a_pace_as_other_joins() -> None:
    with served(replace(LIMITS, joins_per_second=0.001, joins_burst=2)) as api:
        for _ in range(2):
            with stream(api, observe="1") as heard:
                next(heard)
        headers = {**api.header("carol"), OBSERVE_HEADER: "1"}
        with api.client.stream("GET", "/spaces/demo/events", headers=headers) as answer:
            assert answer.status_code == 429
            assert int(answer.headers["Retry-After"]) > 100
        with api.join("carol"):
            pass  # which observers do not keep out
