from meup_agent.protocol.space.issued import MAX_ISSUED, Issued


def test_oldest_of_an_issuer_is_forgotten_first() -> None:
    issued = Issued(limit=2)
    for number in range(3):
        issued.remember(f"e{number}", "alice", ())
    assert issued.issuers("e0") == frozenset()
    assert issued.issuers("e1") == issued.issuers("e2") == {"alice"}


def test_id_used_again_counts_as_new() -> None:
    issued = Issued(limit=2)
    for number in (0, 1, 0, 2):
        issued.remember(f"e{number}", "alice", ())
    assert issued.issuers("e0") == {"alice"}
    assert issued.issuers("e1") == frozenset()


def test_nobody_pushes_out_anothers() -> None:
    issued = Issued()
    issued.remember("mine", "alice", ("bob",))
    for number in range(2 * MAX_ISSUED):
        issued.remember(f"e{number}", "mallory", ())
    assert issued.issuers("mine") == {"alice"}
    assert len(issued) == MAX_ISSUED + 1


def test_forgetting_one_of_two_with_the_same_id_leaves_the_other() -> None:
    issued = Issued(limit=1)
    issued.remember("same", "alice", ("bob",))
    issued.remember("same", "carol", ("dave",))
    issued.remember("next", "alice", ())
    assert issued.issuers("same") == {"carol"}
    assert issued.addressed("same", "dave")
    assert not issued.addressed("same", "bob")


def test_addressed_by_name_or_with_everybody() -> None:
    issued = Issued()
    issued.remember("named", "alice", ("bob",))
    issued.remember("all", "alice", ())
    assert issued.addressed("named", "bob")
    assert not issued.addressed("named", "carol")
    assert issued.addressed("all", "carol")
    assert not issued.addressed("unknown", "bob")
