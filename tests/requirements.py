"""Every rule of the protocol that this package keeps, by an id, and what it says in short.

A test names the rules that it proves: ``@pytest.mark.rule("4.1.only_the_proposer")``. The numbers
are the sections and rules of PROTOCOL.md; `race` are the races that cross several of them.
``test_requirements.py`` fails if a rule has no test or a test names no rule. To add a rule, write
its line here and its test anywhere under ``tests/``.
"""

from __future__ import annotations

from typing import Final

from tests.conformance.lines import REQUIRED as CONFORMANCE

LIFECYCLE: Final = {
    "4.1.only_the_proposer": "only the original proposer withdraws",
    "4.1.no_answer": "withdraw and reject are not confirmed; late and unknown ones are no error",
    "4.2.one_way": "steps go one way; any other step raises and changes nothing",
    "4.2.in_progress": "from its request on a proposal is in progress, until that is cancelled",
    "4.2.fulfilled_by_response": "a proposal is fulfilled by the response, result or error",
    "4.2.withdrawal_wins_until_response": "a withdrawal wins until the response is there",
    "4.2.withdrawn_stays_visible": "history is kept; a withdrawn proposal stays visible",
    "4.2.gateway_order": "where two events cross, the gateway's order decides",
    "4.2.refusal_completes_nothing": "what an executor refuses was not carried out",
    "4.2.cancel_crosses_response": "a result that crossed its request's cancel still fulfills",
    "4.3.explained": "the chat that explains a reject can be waited for; only its sender explains",
    "4.3.explained_later": "a reject or withdraw is explained later, once, by its sender alone",
    "4.3.may_explain": "words that no capability allows are refused before anything is sent",
    "4.3.may_reject": "a reject that is not allowed raises, and one refused is an error in the log",
    "4.3.may_withdraw": "a withdraw that a gateway of other make does not allow raises, unsent",
    "4.3.unknown_survive": "unknown reasons survive unchanged",
    "4.4.handlers_see": "handlers see a proposal that is broadcast or addressed to them",
    "4.4.incapable": "one addressed to us that no handler matches is rejected as incapable",
    "4.4.inbox": "unless a person decides from an inbox: then it waits, and nothing is said",
    "4.4.already_in_progress": "fulfill raises after somebody's request, or a decision",
    "4.4.recorded_in_progress": "while a request is out, rejections are only recorded",
    "4.4.follow": "the proposer follows proposal, request, response, and learns what changed",
    "4.4.all_correlation_ids": "all correlation ids are looked at",
    "4.4.sender_at_each_step": "the sender is checked at each step",
    "4.4.says_whose": "a fulfillment says whose proposal it means; in a proposal that is nothing",
    "4.4.ambiguous": "where an id is ambiguous and nothing tells, none is meant and nothing runs",
    "4.4.reused_id": "of an id that its proposer used again, the digest tells which is meant",
    "4.4.by_proposer": "records and outcomes go by proposer and id",
    "4.4.copy_no_handler": "no handler sees a proposal under the id of another participant's",
    "4.4.copy_told": "it is counted, and told to on_conflict",
    "4.4.executor_refuses": "withdrawn, expired, done, in another's hands, rejected here: refused",
    "4.4.own_rejection_lasts": "what one rejects, not as incapable or busy, it carries out no more",
    "4.4.others_rejects": "other participants' rejections stop nothing before the withdraw",
    "4.4.one_proposal": "a request that names more than one, or more than 64 ids, is refused",
    "4.4.without_to": "without `to` it begins at the target, a single addressee, or each owner",
    "4.4.at_its_start": "what waited is checked again as it begins",
    "4.4.early": "a request that comes before its proposal counts as its fulfillment",
    "4.4.flood": "nobody's flood makes another's decided proposal unknown",
    "4.4.every_path": "every path on which a handler starts is in one list",
    "4.4.before_it_is_sent": "fulfill looks at state, deadline and proposer as it leaves",
    "4.5.addressed": "a rejection from one that it was addressed to ends the wait",
    "4.5.broadcast": "of a broadcast, all who are present and could must reject it",
    "4.5.choice": "the caller can choose the first rejection, or the deadline",
    "4.5.all": "the caller can choose the rejections of all, but for those that are gone",
    "4.5.withdraw_follows": "a wait that ends so sends a withdraw; our record says why",
    "4.5.told": "each rejection of what waits is told, with whether it counts",
    "4.2.expiry": "a pending proposal expires for all once the gateway's clock is 60 s beyond it",
    "4.2.expiry.for_good": "a clock that is put back makes nothing pending again",
    "4.2.expiry.accepted_before": "what was asked for before that completes",
    "4.2.new_process": "a process that begins anew ends what the one before it had open",
    "4.2.silence": "no timer, crash, reconnect or default turns silence into a request",
    "4.2.expiry.told": "a handler that looked at a proposal is cancelled as it expires, and told",
    "4.4.edits_judged": "an edited call is judged again, by policy and capabilities",
    "4.4.gone_before_us": "nor for one that left before the decider came, as the gateway tells",
    "4.4.even_if_gone": "where a decider wants it, it is fulfilled for a proposer who has left",
    "4.15.offered": "a dependent is sent once all that it depends on is fulfilled",
    "4.15.withdrawn": "a bad end withdraws the dependents, in their order",
    "4.15.cycles": "only own proposals are depended on; a cycle is refused",
    "4.15.bounded": "dependencies and blocked proposals are bounded, whatever their chain",
    "4.15.reconnect": "dependents outlive a lost connection",
    "4.16.one_envelope": "proposals are withdrawn together where the dialect names several",
    "4.6.gone": "the wait ends when all who were asked have been absent for 30 s",
    "4.6.unattended": "a fulfiller that was never present, as over HTTP, is not waited for as gone",
    "4.6.from_our_welcome": "absence is counted anew from our own welcome",
    "4.6.replays": "open proposals follow the welcome of a newcomer that may decide, bounded",
    "4.6.replays.cancelled": "with what was cancelled of its requests, since results may come late",
    "4.6.replays.again": "who lost its connection while it was told of them is told again",
    "4.6.proposer_left": "who decides is told when a proposer left before, over HTTP too",
    "4.6.replays.handled": "what is pending of them starts a handler, once",
    "4.6.replays.record": "what is in progress or has expired of them is a record, and no more",
    "4.6.missing": "a broadcast that nobody may fulfill ends with who could, and what is missing",
    "4.6.nobody_may": "a broadcast ends after 30 s in which nobody present may fulfill it",
    "4.6.later": "the caller can choose to wait for those who are still to come",
    "4.7.same_sender": "a cancel names a request issued by the same sender",
    "4.7.optional_reason": "a cancel's reason is optional, and free text",
    "4.7.ignored": "unknown, finished and malformed cancels are ignored and counted",
    "4.7.initialize": "initialize is never cancelled",
    "4.7.no_response": "a cancelled request gets no response; one that comes is ignored",
    "4.7.logged": "the requester and the gateway log each cancel with its reason",
    "4.7.stream": "a cancelled event stream of MCP ends with a result, Operation cancelled",
    "4.7.stream.closed": "in MCP 2026-07-28 closing the stream cancels, without an answer",
    "4.7.stream.early": "a cancel that overtakes its call keeps it from beginning",
    "4.7.stream.key": "a stream's call is known by participant, session and request id",
    "4.7.stream.freed": "a stream that has ended leaves nothing behind",
    "4.7.stream.logged": "one INFO line has a cancelled stream's id and reason",
    "4.8.request_id": "requestId is the sender's JSON-RPC id as a string, or the envelope id",
    "4.8.key_by_sender": "two participants may use one id: key by sender and id",
    "4.8.our_cancel": "our cancel goes to the request's to and correlates to the request",
    "4.9.token": "progress carries the request's token",
    "4.9.increases": "progress values increase",
    "4.9.extends": "a request's deadline counts from its last progress, up to ten times in all",
    "4.9.none_after_completion": "there is no progress after completion",
    "4.10.only_the_gateway": "system/* comes only from the gateway",
    "4.10.any_context": "messages to a participant are handled whatever their context",
    "4.11.echo": "our own envelopes reach no handler of ours",
    "4.11.self_request": "requests to ourselves do, with their cancels and responses",
    "4.12.unchosen": "reasons nobody chose: timeout at a deadline, else no_longer_needed",
    "4.12.cascade": "a cascade keeps the code it began with",
    "4.13.returns_at_once": "a caller that gives up returns at once",
    "4.13.without_echoes": "without echoes, what we saw first decides",
    "4.13.loser_is_reported": "a result that loses is reported, not returned",
    "4.14.on_join": "endings are said again, same id, when one they concern joins",
    "4.14.proposer_follows": "the response to a fulfillment concerns the proposer, too",
    "4.14.words": "the words of a reject or withdraw are said again behind it",
    "4.14.limits": "for 5 minutes, at most 1,000, at most 16 MiB",
    "4.14.no_harm_twice": "endings do no harm twice",
}

IDS: Final = {
    "3.ids.claimed": "on our gateway a proposal or request claims its id for its sender",
    "3.ids.by_name": "ids of the form <participant>-<number> are that participant's alone",
    "3.ids.not_pending": "a request that names a proposal known as decided is refused",
    "3.ids.one_proposal": "a request that names two proposals, or more than 64 ids, is refused",
    "3.ids.proposer_key": "a proposal must not say whose it is; a fulfilling request may",
}

SPACES: Final = {
    "3.filled_in": "what an envelope leaves out is filled in, and what it says wrongly is refused",
    "3.announced": "welcome and presence say each member's dialect; all are announced to answer",
    "3.answers_proposal": "in the published dialects who may make a call may answer its proposal",
    "4.4.executor": "there `to` names the executor, which is silent about what it does not decide",
    "4.4.executor.written": "what their members get carries the executor in `to`",
    "3.output_log": "a participant with an output log is present without a connection",
    "3.history": "with --history all that passes is written as JSON Lines, without tokens",
    "3.existing_paths": "/health and /participants answer as those of existing gateways",
    "3.invited_over_http": "an invitation over HTTP is answered with its token",
    "3.already_exists": "in the published dialects an acknowledgement says that one is there",
    "3.invited_names": "a name that could lead elsewhere is not invited",
    "7.to": "addressees in a capability limit it; what is not understood is not granted",
    "3.space_yaml": "a space.yaml of the reference is understood, and what is not is named once",
    "3.space_yaml.tokens": "its tokens come from .mew/tokens and MEW_TOKEN_<ID>, which wins",
}

WHO_MAY: Final = {
    "4.17.renew": "its proposer gives a pending proposal more time, and changes nothing else of it",
    "4.17.bounds": "a renewal is later, at most a week ahead, one of 1,000, and of no other's",
    "5.who.withdraw": "the proposer, while the proposal is pending",
    "5.who.fulfill": "whoever requests what was proposed: its method, and its tool",
    "5.who.cancel": "the requester",
    "5.who.response": "who was asked, or the fulfiller; the first wins, the rest are duplicates",
    "5.who.progress": "who was asked, or the fulfiller",
    "5.who.reject": "anyone; it is recorded",
    "5.who.system": "the gateway",
    "5.who.me": "in our name, but not ours: logged",
    "5.who.me.beside": "where identity is checked, who decides beside us in our name has decided",
    "5.reviewers.bridge": "no bridge passes our methods on, and no tool's name makes a reviewer",
    "5.reviewers.capability": "one that may not decide is asked nothing, and tells nothing",
    "5.reviewers.flood": "no participant's questions keep another's from being answered",
    "5.reviewers.methods": "nothing that a face asks by itself is a tools/call",
    "5.votes.voter": "the sender of the request, where identity is checked; never the proposer",
    "5.votes.count": "each votes once, and may change it; the first vote that decides ends it",
    "5.votes.call": "a vote counts for one call, under the rule that asked for it",
    "5.votes.removed": "the vote of one that is removed, or may vote no more, is taken back",
    "5.votes.once": "votes that have decided are spent; a restart carries nothing out by itself",
    "5.tombstone": "an end that comes before what it names keeps that from starting",
    "5.tombstone.before_fulfillment": "it is consulted again before a fulfillment is sent",
    "5.tombstone.limits": "5 minutes, at most 1,000 a sender",
    "5.hostile": "whatever decodes is taken without an exception",
    "5.memory.open_is_kept": "what is open is never forgotten",
    "5.memory.bounded": "everything else is bounded",
    "5.memory.once": "what is delivered twice counts once",
}

REQUEST_TABLE: Final = {
    "5.request.queued.cancel": "drop; no response",
    "5.request.queued.sender_leaves": "keep",
    "5.request.queued.connection_lost": "keep",
    "5.request.queued.shutdown": "answer busy",
    "5.request.running.returns": "respond",
    "5.request.running.raises": "error response",
    "5.request.running.cancel": "cancel the scope; no response",
    "5.request.running.sender_leaves": "keep for the grace period, then cancel",
    "5.request.running.connection_lost": "keep; after the welcome, who is not there has left",
    "5.request.running.shutdown": "wait for the grace, then cancel and answer cancelled",
    "5.request.cancelling.returns": "discard the result",
    "5.request.cancelling.raises": "log",
    "5.request.cancelling.cancel": "ignore",
    "5.request.cancelling.sender_leaves": "ignore",
    "5.request.cancelling.shutdown": "ignore",
    "5.request.settled.cancel": "ignore; count as late",
    "5.request.settled.connection_lost": "the response waits in the outbox",
    "5.request.first_event_wins": "one writer of the state; the first event wins",
    "5.codes": "−32601 for unknown methods, never to a notification",
    "5.children": "what a handler began ends with it",
}

PROPOSAL_TABLE: Final = {
    "5.proposal.queued.withdraw": "drop",
    "5.proposal.queued.sender_leaves": "keep",
    "5.proposal.queued.connection_lost": "keep",
    "5.proposal.queued.shutdown": "reject as busy, if addressed to us",
    "5.proposal.running.returns": "undecided: say nothing",
    "5.proposal.running.raises": "reject with other, if addressed to us and not yet fulfilled",
    "5.proposal.running.withdraw": "cancel the scope",
    "5.proposal.running.sender_leaves": "keep for the grace period, then cancel",
    "5.proposal.running.connection_lost": "keep; after the welcome, who is not there has left",
    "5.proposal.running.shutdown": "wait for the grace, then cancel, and reject as busy",
    "5.proposal.cancelling.returns": "say nothing",
    "5.proposal.cancelling.raises": "say nothing",
    "5.proposal.cancelling.withdraw": "ignore",
    "5.proposal.cancelling.sender_leaves": "ignore",
    "5.proposal.cancelling.shutdown": "ignore",
    "5.proposal.settled.withdraw": "it is withdrawn, and no handler is cancelled",
    "5.proposal.settled.rejected": "our rejection settles it: a withdraw after it cancels nobody",
    "5.proposal.fulfillment_out": "a withdraw cancels our fulfilling request",
    "5.proposal.overflow": "reject as busy, only if addressed to us",
    "5.proposal.told_of_withdraw": "whoever handled it is told after the handler's end",
}

STREAMS: Final = {
    "8.frames": "a frame is `#id#data`, text or binary; it leaves as a binary frame, byte for byte",
    "8.order": "a frame has its place among the envelopes, behind those sent before it",
    "8.open": "every request is answered by stream/open, to the requester and as news",
    "8.ids": "ids are unique in a space, and not given again after a restart",
    "8.targets": "frames go to the targets, or else to all and to their writer",
    "8.welcome": "every welcome lists the open streams with all that their requests said",
    "8.writers": "the owner alone grants, revokes and transfers; each is told to all",
    "8.writer_left": "a writer that leaves may write no longer, and all are told",
    "8.owner_left": "an owner's streams outlive 30 s of absence, and no process of its own",
    "8.removed": "the streams of a removed owner, or one that may request no more, are closed",
    "8.close": "owner, only target and gateway close a stream; no frame follows",
    "8.paused": "frames of a participant that is paused or shut down are refused",
    "8.dialects": "members of dialects without streams get the envelopes and no frame",
    "8.not_journaled": "frames are neither journaled nor resumed",
    "8.lost": "a reader that is behind loses frames, and is told how many of which stream",
    "8.bounds": "streams, writers, requests and what waits of them are bounded",
    "8.bad_frames": "each bad frame gets one clear answer, and the space goes on",
    "8.http": "over HTTP the same holds, and an answer names the stream",
    "8.ends_with_block": "a stream ends with the block or handler that opened it, and says how",
    "8.once": "a participant sends a frame at most once",
    "8.reconnect": "after a reconnect a stream goes on if it is listed as before, or has ended",
    "8.behind": "a participant's reader that is behind loses the oldest frames, counted",
    "8.beside": "a tool's stream is about its request, for its sender, and ends before the answer",
}

OWN_TABLE: Final = {
    "5.own.unsent.deadline": "drop it; timeout",
    "5.own.unsent.gives_up": "drop it",
    "5.own.unsent.connection_lost": "stays in the outbox",
    "5.own.waiting.response": "result or error",
    "5.own.waiting.rejection": "rejected, and a withdraw",
    "5.own.waiting.refused": "refused, with what is missing",
    "5.own.waiting.gone": "gone, and a withdraw or cancel",
    "5.own.waiting.deadline": "expired or timeout; unknown if a connection was lost meanwhile",
    "5.own.waiting.gives_up": "withdraw or cancel",
    "5.own.waiting.connection_lost": "wait on; after the welcome idempotent ones are sent again",
    "5.own.given_up.response": "late: count; on_conflict if a proposal",
    "5.own.given_up.rejection": "ignore",
    "5.own.given_up.other": "nothing else matters any more",
    "5.own.given_up.connection_lost": "rule 4.14",
    "5.own.once": "each waiter is woken once",
}

OVERFLOW: Final = {
    "5.overflow.limits": "at most 64 handlers and 256 more queued",
    "5.overflow.waiting_does_not_count": "one that awaits an exchange does not count meanwhile",
    "5.overflow.busy": "requests beyond get busy",
    "5.overflow.talk_is_dropped": "chat and presence are dropped oldest first, and counted",
    "5.overflow.ends_are_not_dropped": "withdraw, cancel, reject and responses never are",
    "5.shutdown.nothing_new": "nothing new is taken; after the grace nothing begins",
}

RACES: Final = {
    "race.reject_crosses_fulfillment": "a reject that crosses a fulfillment",
    "race.two_fulfillers": "two fulfillers that race",
    "race.same_id": "two senders that use the same id",
    "race.restarted_peer": "a peer that restarts and counts its ids from one again",
    "race.proposer_dies": "a proposer, or an executor, that dies",
    "race.response_after_cancel": "a response after the cancel",
    "race.many_unknown_cancels": "10,000 cancels for unknown ids",
    "race.answer_before_sent": "an answer for what we believe unsent",
    "race.any_order": "whatever order senders, losses and ends come in, the invariants hold",
}

CAUSES: Final = {
    "6.cause": "a cancel tells the chain that led to it, newest first, at most 8 links",
}

EXTRAS: Final = {
    "6.expires_at": "a proposal that its proposer has certainly given up starts no handler",
    "6.ttl": "a foreign ttl, in milliseconds, counts from the acceptance",
    "6.expires_at.hint": "up to 60 s it may be the clocks that differ, and nothing is extended",
    "6.digest": "a fulfillment carries its proposal's digest, or says that it was edited",
    "6.digest.shown": "what a decider is shown is byte for byte what the digest covers, and runs",
    "6.meta_not_repeated": "of a proposal's _meta a fulfillment repeats traceparent alone",
    "6.target": "who should execute stands in _meta",
    "6.ts": "what is said again says the time at which it was said first",
}

RESUME: Final = {
    "6.seq.the_gateways": "an envelope's number is the gateway's, whatever its sender wrote there",
    "6.journal.one_gateway": "a journal's file is one gateway's, by whatever name it is opened",
    "6.journal.damage": "what damage took from a journal is kept, logged, and a gap for all",
    "6.resume.order": "who comes back gets what it missed, in order, before anything new",
    "6.resume.no_handler_yet": "until that is read, ends and answers count and no handler starts",
    "6.resume.taken_back": "what was taken back meanwhile never starts",
    "6.resume.once": "what has been read before is not read again",
    "6.resume.accepted": "what has come back with its number is never sent again",
    "6.resume.sent_again": "what has not is sent again, same id and order, when we have caught up",
    "6.resume.gap": "a gap is told, and nothing that may have been taken is sent again",
    "6.resume.asks": "we ask for a number of the gateway that gave it, and of no other",
    "6.resume.known": "after a resume without a gap a deadline is a deadline, not an unknown end",
    "6.resume.not_said_again": "nothing is said again to, or by, who reads what it missed",
    "6.resume.revoked": "the gateway ends what its sender may not do any more",
}

JOURNAL: Final = {
    "6.journal.kept": "what its sender got back with a number outlives the gateway's process",
    "6.journal.numbers": "numbers only grow, over restarts and whatever the clock does",
    "6.journal.again": "what was accepted lately is not delivered again, over a restart either",
    "6.journal.gap": "the welcome says so where the journal no longer reaches back",
    "9.time": "an entry has the time of the decision about it; no engine asks a clock again",
    "9.checksum": "a checksum goes over everything that an entry says",
    "9.damage.named": "a file that is not what was written is refused, with the numbers",
    "9.damage.accepted": "what is accepted as lost is left out, and nothing else",
    "9.damage.told": "who resumes, and an audit, is told of the numbers that damage took",
    "9.damage.facts": "a fact that is lost holds again where the entries behind the damage say so",
    "9.backup": "a backup is a consistent copy, whole and for its owner alone",
    "9.version_1": "a file without checksums is read, and made one with them",
}

DIALECTS: Final = {
    "1.kinds": "each dialect has its own words for a kind, and its own form of correlation",
    "1.unknown_kept": "unknown kinds and fields are kept as they are",
    "1.read.correlation": "correlation is read as a string or a list, under either name",
    "1.read.kinds": "kinds are read with dots and with slashes",
    "1.read.payloads": "payloads are read whatever they lack, and whatever stands there",
    "1.read.wrapper": "a proposal is read with {proposal: …} around it",
    "1.read.errors": "a system/error may lack id, time and sender",
    "1.read.gateway_names": "the gateway has three names",
    "1.read.notification": "a notification is a method that begins with notifications/",
    "1.write.strict": "our own are written exactly in the dialect's form, with jsonrpc and id",
    "1.forward.same_dialect": "within a dialect an envelope is forwarded byte for byte",
    "1.forward.between": "between dialects nothing but its forms is translated",
    "1.forward.several": "a list of correlation ids stands beside the one that there is room for",
    "1.not_expressible": "what a dialect has no words for is refused by name, never garbled",
    "1.numbers": "NaN, the infinities and integers that no double holds are refused, never changed",
    "1.calls": "a call that readers would read differently is refused before any sees it",
    "1.captures": "what existing gateways and participants said is read, and survives",
    "1.designs": "what the designs show is an envelope, and means what they say, in every dialect",
    "1.one_space": "members of four dialects meet, each sees its own, and correlations hold",
    "1.dialect_chosen": "header, join frame, participant, space: the first that names a dialect",
    "1.rpc_ids": "a bounded map of (sender, JSON-RPC id) and envelope id stands in for the latter",
}

PATTERNS: Final = {
    "7.negation": "a negated text matches texts only, and no number, list or object",
    "7.bounded": "a check ends in bounded time, and what was not found to be allowed is not",
    "7.system": "system/* is never granted, and refused where it is configured by name",
    "7.refused_with_place": "a pattern that does not compile is refused, with its place",
}

CONNECTION: Final = {
    "1.dialect_adopted": "an agent adopts the dialect of each connection's first welcome",
    "1.lenient": "what participants and gateways that exist write is read",
    "2.second_welcome": "a second welcome is an update, not a new session",
    "2.join_frame": "the first frame is a join frame where the header was not read",
    "2.probe": "after a reconnect a probe must come back; if not, join again, then dial again",
    "2.guarantees": "what a gateway gives is read from its first welcome alone",
    "2.routing": "a proposal is fulfilled where targets are hidden, and where everybody sees all",
    "2.old_socket_first": "the old socket is closed before another is dialled",
    "2.evicted": "who is evicted by the end of an older socket joins again",
    "2.liveness": "liveness is ours to find out, by a ping with a deadline",
    "2.no_close": "a gateway that ends without closing is dialled again",
    "2.repeated_ids": "ids repeat after a restart of a peer; what they name is new all the same",
    "2.existing_clients": "those who join as the existing participants do work unchanged",
    "2.heartbeat": "heartbeats and registrations of others mean nothing, and make no noise",
    "2.answered_notification": "a response to a notification means nothing; we answer none",
    "2.relay.sent": "a fulfiller sends the response on where the gateway hides it, with both ids",
    "2.relay.progress": "and the progress, if the proposer asked for it",
    "2.relay.accepted": "it is believed from whoever could have fulfilled, once",
    "2.relay.edits": "it says whether what was carried out is what was proposed",
    "3.takeover": "a newer connection of the same participant takes over; the older stops",
    "3.capability.as_read": "a capability is for what readers read, not for what is around it",
    "3.codes.stop": "401, 403, 404, 4401, 4403, 4404 and 4409 end it, and say why",
    "3.codes.token_again": "a token callable is asked once more, then it ends",
    "3.codes.reconnect": "what is over in a moment is dialled again",
    "3.codes.blamed": "1007, 1009: that message fails, and is not sent again",
    "3.codes.retry_after": "429 and 503 are waited for as long as they ask",
}

GATEWAY: Final = {
    "3.join.token": "the token decides who one is, and in which space",
    "3.join.header_alone": "where there is one space, a token in the header joins it by itself",
    "3.join.envelope": "an envelope of kind system/join is a join frame",
    "3.join.frame": "a join frame says the same, by the same rule; any path is taken",
    "3.delivery": "everything accepted goes to every member, its sender included, as it came",
    "3.delivery.order": "in one order, the same for all",
    "3.takeover.gateway": "a newer connection takes over; the older's end changes nothing for it",
    "3.always_allowed": "cancels, progress, answers and withdrawals need no capability",
    "3.withdraw.proposer": "from anybody but the proposer a withdrawal is refused, with an error",
    "3.withdraw.rate": "withdrawals have a rate of their own: what comes faster is read later",
    "3.pace.ends": "no withdraw, cancel or reject is lost for its pace; over HTTP it is said again",
    "3.pace.bytes": "bytes have a pace as messages have",
    "3.pace.reader": "a loud sender waits for a slow reader, a second at most; others do not",
    "3.names.look_alike": "names of one space that look alike are refused",
    "3.open.ghosts": "proposals that expired, or whose process is gone, take no room from others",
    "3.queues": "what waits for a participant, and for all readers together, is bounded",
    "3.limits": "whoever is over a limit is told once which, and how much it allows",
    "3.frames": "frames that are no message have a pace, and a turn takes so many of a connection",
    "3.join.budget": "before the join a connection has one budget of frames, bytes and seconds",
    "3.join.pace": "joins of a participant, and an address's connections that do not, have a pace",
    "3.join.storm": "each join is an event; what is due for a member in a turn is one write",
    "3.refusals.logged": "who does not get in is logged at a pace, with how many were left out",
    "3.guesses": "an address that sent too many wrong tokens is refused short ones for a while",
    "3.guesses.long": "a token of 128 bits is only looked up, whatever came from its address",
    "3.join.pages": "pages in browsers take no turn of the programs that join by a frame",
}

OBSERVING: Final = {
    "3.observe.takes_no_part": "an observer starts and answers nothing; its agent runs undisturbed",
    "3.observe.not_present": "an observer is present to nobody, and nobody waits for it",
    "3.observe.says_nothing": "whatever an observer sends is refused to it alone",
    "3.observe.private": "an observer hears nothing that is for others alone",
    "3.observe.limit": "a participant has a bounded number of observers, side by side",
    "3.observe.ends": "an observer ends with its participant's removal, or its token's",
    "3.observe.resume": "an observer reads what it missed, as a member does",
    "3.observe.header": "the header is 1 or refused, and counts in the handshake alone",
    "3.observe.no_echo": "without the echo an observer sends no join frame, unless told to",
}

MANAGING: Final = {
    "3.control.held": "a paused or shut down participant begins nothing, and ends everything",
    "3.control.lifted": "a resume or its time ends a pause; no participant lifts its own",
    "3.control.longer": "of two participants' pauses the one that ends later holds",
    "3.control.who": "who may control participants is a capability",
    "3.control.answers": "answering what one was asked takes no capability",
    "3.control.payload": "control that cannot be meant is refused",
    "3.control.rejoin": "a join ends a shutdown, and no pause; the welcome tells of that",
    "3.control.restart": "pauses and shutdowns outlive a restart of the gateway",
    "3.control.bounded": "of each participant one pause and one shutdown are kept",
    "4.18.context": "a line of thought is a context: start, thoughts, conclusion or cancel",
    "4.18.cancel": "a cancel by one who may ends the block with its reason",
    "4.18.bounded": "a line of thought ends at its time, and has so many thoughts at most",
    "4.19.acknowledged": "a chat that names an agent is acknowledged where that is expected",
    "4.19.cancelled": "a chat's handler ends when its sender takes it back, with the reason",
    "4.19.own": "nobody else takes a chat back",
    "5.control.paused": "a paused agent begins nothing, holds what waits, and answers busy",
    "5.control.resumes_itself": "when the time of its pause is over, it resumes and says so",
    "5.control.who": "it obeys those alone that may, and what names it",
    "5.control.reconnect": "a reconnect lifts no pause",
    "5.control.status": "it tells its status at once, with what its author adds",
    "5.control.memory": "it tells its status when it has forgotten, compacted or cleared",
    "5.control.restart": "a restart ends what runs and waits, and what it has begun",
    "5.control.shutdown": "shut down, it finishes what runs, says so, and leaves",
    "5.control.seat": "an onlooker obeys nothing",
    "3.manage.grant": "a grant takes effect at once; its recipient is told by a second welcome",
    "3.manage.lacking": "nobody grants what they lack",
    "3.manage.rests": "nobody keeps what its granter no longer has",
    "3.manage.ack": "the recipient acknowledges a grant, and nobody else does",
    "3.manage.revoke.id": "a grant is revoked by its id, at once",
    "3.manage.revoke.pattern": "a pattern revokes all that it covers, configured or granted",
    "3.manage.in_flight": "what is in flight and was revoked ends by the gateway's word",
    "3.manage.invite": "an invitation's token is told to the inviter alone, and kept as a digest",
    "3.manage.kick": "who is removed is closed with 4403, and stays out until invited again",
    "3.manage.restart": "grants, revocations, invitations and removals outlive a restart",
    "3.manage.limits": "grants and invitations are bounded",
    "5.who.gateway": "the gateway ends what somebody may do no more, and is believed",
    "3.withdraw.named": "a withdrawal or rejection that names no proposal is refused",
    "3.withdraw.announced": "a space can announce the withdrawals that took effect",
}

AUDIT: Final = {
    "3.audit.withdrawals": "a valid withdrawal is noted, a late one, or another's, is marked",
    "4.2.audit": "each proposal with its state, who decided it, when, why, and what was edited",
    "4.3.audit": "a chat about a rejection explains it",
    "4.5.audit": "a rejection counts once its proposer takes it for an answer",
    "4.8.audit": "two proposers may use one id, and the audit tells them apart",
    "3.audit.managing": "grants, with their chains, revocations, invitations and kicks",
    "3.audit.no_token": "no token is in the journal, nor in the audit",
    "3.tokens.nowhere": "no token is in a log, an error, an answer, the journal or the audit",
}

REQUIREMENTS: Final = (
    LIFECYCLE
    | IDS
    | SPACES
    | GATEWAY
    | OBSERVING
    | MANAGING
    | WHO_MAY
    | REQUEST_TABLE
    | PROPOSAL_TABLE
    | STREAMS
    | OWN_TABLE
    | OVERFLOW
    | RACES
    | CAUSES
    | EXTRAS
    | RESUME
    | JOURNAL
    | CONNECTION
    | PATTERNS
    | DIALECTS
    | CONFORMANCE
    | AUDIT
)
"""Rule id -> what it says. Further parts of the protocol add their own tables here."""
