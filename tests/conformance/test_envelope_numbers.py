"""The number of an envelope is the gateway's, whatever its sender writes there."""

import json

import pytest

from tests.conformance.wire import V01, V02, V04, Site, serving
from tests.wire import read_seq

PEOPLE = {name: [{"kind": "chat"}] for name in ("alice", "bob", "carol")}

FORGED = [
    '{{"seq":9{more}}}',
    '{{"s\\u0065q":9{more}}}',
    '{{"x":"\\"seq\\":9"{more},"seq":99999999999999999999}}',
    '{{"x":[{{"seq":1}}]{more},"seq":"9"}} \r\n\t ',
    '{{"x":1{more},"seq":null,"seq":-1}}\n',
]


@pytest.mark.rule("6.seq.the_gateways")
@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("dialect", [V01, V02, V04])
def test_nobody_numbers_what_others_get(forged: str, dialect: str) -> None:
    with serving(PEOPLE, dialect=dialect) as gateway:
        site = Site(gateway, dialect)
        with (
            site.join("alice") as (alice,),
            site.member("bob", more={"MEUP-Resume": "1"}) as bob,
            site.member("carol", dialect=V04, more={"MEUP-Resume": "1"}) as carol,
        ):
            for member in (bob, carol):
                member.hear_any()
            header = {"protocol": dialect, "id": "a", "from": "alice", "kind": "chat", "ts": "2025"}
            fields = json.dumps({**header, "payload": {"text": "hi", "message": "hi"}})[1:-1]
            frame = forged.format(more=f",{fields}")
            alice.write(frame)
            numbers: list[object] = []
            for member in (bob, carol):
                before = member.hear_any()["seq"]
                while (heard := json.loads(text := member.read()))["id"] != "a":
                    before = heard["seq"]
                assert before < heard["seq"] == read_seq(text.encode())
                numbers.append(heard["seq"])
            assert numbers[0] == numbers[1]
            # Who did not ask for numbers gets it as it was written.
            while json.loads(heard_by_alice := alice.read())["id"] != "a":
                pass
            assert heard_by_alice == frame
