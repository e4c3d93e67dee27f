"""The inbox: the proposals that wait for a person, and that person's decisions.

In: the gateway's answers and news, the rules of reviewers. Out: items, their order, changes of
both, and decisions as envelopes. Terminal and page are faces of it.
"""
