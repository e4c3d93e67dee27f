// The console's own script: time, keys, drafts, and the event stream that all tabs of a browser share.
// Pages work without it. It puts into the page what the server has rendered, and text as text.
"use strict";
(() => {
  const body = document.body, base = body.dataset.base;
  const $ = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  // Of all that is loaded, only what was made for who is signed in here comes into this page.
  const as = body.dataset.as, isOurs = (html) => { const made = /data-as="(\w+)"/.exec(html); return !made || made[1] === as; };
  // The gateway's clock counts, whatever this machine's says.
  const skew = Date.parse(body.dataset.now) - Date.now();
  const now = () => Date.now() + skew;

  // --- time ---
  // The two largest units, as meup_agent/wording.py has it.
  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const amount = (exact) => {
    const s = Math.round(exact);
    const at = UNITS.findIndex(([, length]) => s >= length);
    if (at < 0) return "0 s";
    const [[unit, length], [smaller, part] = []] = UNITS.slice(at);
    const rest = smaller ? Math.floor(s % length / part) : 0;
    return `${Math.floor(s / length)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
  };
  const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  function tick() {
    const at = now();
    for (const each of all("time[data-left]")) {
      const left = (Date.parse(each.dateTime) - at) / 1000;
      put(each, left < 0 ? `${amount(-left)} past its time` : `${amount(left)} left`);
    }
    for (const each of all("time[data-ago]")) {
      const ago = (at - Date.parse(each.dateTime)) / 1000;
      put(each, ago < 5 ? "just now" : `${amount(ago)} ago`);
    }
    for (const each of all("progress[data-until]")) {
      each.value = Math.max((Date.parse(each.dataset.until) - at) / 1000, 0);
      each.classList.toggle("soon", each.value < each.max / 5);
    }
    // What is past its time is not decided; the gateway says why when it has ended.
    const acts = $("#acts[data-until]");
    if (acts && Date.parse(acts.dataset.until) < at) for (const each of all("#acts button, #edit button")) { each.disabled = true; each.dataset.gone = "yes"; }
  }
  setInterval(tick, 1000);

  // --- what is said to everybody, and to those who do not see ---
  const live = $("#live"), strip = $("#offline");
  function say(text) { const line = document.createElement("p"); line.textContent = text; live.append(line); while (live.children.length > 6) live.firstChild.remove(); }
  function offline(text) { strip.hidden = !text; put(strip, text || ""); }
  function linkTo(proposal) { const link = document.createElement("a"); link.href = `${base}/proposals/${encodeURIComponent(proposal)}`; link.textContent = "Look at it"; return link; }
  function notice(text, failed, proposal, plain) {
    const line = document.createElement("p");
    line.className = failed ? "notice failed" : plain ? "notice plain" : "notice"; line.setAttribute("role", "status"); line.textContent = text;
    if (proposal) line.append(" ", linkTo(proposal));
    all("#main > .notice").forEach((each) => each.remove());
    $("#main").prepend(line);
  }

  // --- drafts: what is typed survives a reload, a reconnect and a new neighbour ---
  const drafts = {
    key() { return `draft ${base} ${body.dataset.signedIn} ${$("#decision")?.dataset.key || ""}`; },
    read() { try { return JSON.parse(sessionStorage.getItem(this.key())) || {}; } catch { return {}; } },
    write(kept) {
      try {
        if (Object.keys(kept).length) sessionStorage.setItem(this.key(), JSON.stringify(kept)); else sessionStorage.removeItem(this.key());
      } catch { /* full: it stays on the page */ }
    },
    keep(field) {
      this.write({ ...this.read(), [field.id]: field.value });
      // The page of what is typed about, so that a reload finds it whatever came before it meanwhile.
      if (location.pathname === `${base}/inbox`) history.replaceState(null, "", `${base}/inbox/${$("#decision").dataset.key}`);
    },
    restore() {
      if ($("#leave-edit")) return;
      const kept = this.read(), lost = [];
      for (const [id, value] of Object.entries(kept)) {
        const field = document.getElementById(id);
        if (!field || !("draft" in field.dataset)) { lost.push(value); continue; }
        if (field.value === value) continue;
        field.value = value;
        field.closest("#edit")?.setAttribute("open", "");
        field.closest("details")?.setAttribute("open", "");
        if (field.form.matches(".checked")) { check(field); checkSoon(field.form); }
      }
      const typed = $("#typed");
      if (typed && lost.length) { typed.hidden = false; $("textarea", typed).value = lost.join("\n"); }
      guardEdit();
    },
    drop() { sessionStorage.removeItem(this.key()); },
    get any() { return Object.keys(this.read()).length > 0; },
  };
  // What was decided needs no draft; where the same decision is shown again, it was not.
  const SENT = `sent ${base}`;
  function dropSent() {
    if (!$("#decision")) return;
    const sent = sessionStorage.getItem(SENT);
    sessionStorage.removeItem(SENT);
    // A vote was counted, and the call that it is about may be shown again.
    if (sent && (sent !== drafts.key() || $("#main > .notice:not(.failed)"))) sessionStorage.removeItem(sent);
  }
  // While there is an edit, the call as it was proposed is not approved: by an edit one means another call.
  function isEdited(field) {
    if (!field.options) return field.value !== field.defaultValue.replace(/\r\n?/g, "\n");
    const options = [...field.options];
    return field.selectedOptions[0] !== (options.find((each) => each.defaultSelected) || options[0]);
  }
  const edits = () => all("#edit [data-draft]").filter(isEdited);
  function guardEdit() {
    // What is typed stays as it is; a form that nobody typed into must become that of the next proposal.
    for (const form of all("#edit form")) form.toggleAttribute("hx-morph-skip", all("[data-draft]", form).some(isEdited));
    const note = $("#edited");
    if (!note) return;
    note.hidden = !edits().length;
    for (const each of all("#approve, #vote")) if (!each.dataset.gone) each.disabled = !note.hidden;
  }
  function dropEdit() {
    const kept = drafts.read();
    for (const field of all("#edit [data-draft]")) delete kept[field.id];
    drafts.write(kept);
    all("#edit form").forEach((form) => { form.reset(); clearTimeout(asking); asked += 1; });
    all("#edit .complaint").forEach((line) => { line.hidden = true; put(line, ""); });
    all("#edit [aria-invalid]").forEach((field) => field.removeAttribute("aria-invalid"));
    guardEdit();
  }
  function complain(field, problem) {
    const line = document.getElementById(`${field.id}-problem`);
    if (!line) return;
    line.hidden = !problem; put(line, problem);
    field.setAttribute("aria-invalid", String(Boolean(problem)));
  }
  function check(field) {
    if (!field.dataset.json) return true;
    let problem = "";
    try {
      const value = field.value.trim() ? JSON.parse(field.value) : null;
      if (field.dataset.json === "object" && (value === null || typeof value !== "object" || Array.isArray(value))) problem = "This must be a JSON object, in braces.";
    } catch (error) { problem = `This is not JSON yet: ${error.message}`; }
    complain(field, problem);
    return !problem;
  }
  // The gateway knows the tool's schema: it is asked when one pauses, and says nothing where it is away.
  let asked = 0, asking = 0;
  function checkSoon(form) { clearTimeout(asking); asking = setTimeout(checkAll, 250, form, ++asked); }
  async function checkAll(form, number) {
    const answer = await fetch(form.action.replace(/edit$/, "check"), { method: "POST", redirect: "manual", body: new URLSearchParams(new FormData(form)) }).catch(() => null);
    if (!answer?.ok) return;
    const { problems } = await answer.json();
    if (number !== asked || !form.isConnected) return;
    for (const each of all(".complaint", form)) {
      const key = each.id.slice(0, -"-problem".length), field = document.getElementById(key), problem = problems[key] || "";
      if (!field) { each.hidden = !problem; put(each, problem); } else if (check(field)) complain(field, problem);
    }
  }
  document.addEventListener("input", (event) => {
    const field = event.target;
    if (!field.dataset || !("draft" in field.dataset)) return;
    drafts.keep(field);
    const form = field.closest("form.checked");
    if (form) { check(field); checkSoon(form); }
    guardEdit();
  });
  document.addEventListener("click", (event) => {
    const target = event.target.closest("#drop-edit");
    if (target) { dropEdit(); ($("#approve") || $("#edit-summary")).focus(); }
    if (event.target.closest("#show-edit")) edits()[0]?.closest("form").querySelector("[type=submit]").click();
    if (event.target.closest("#leave-edit, #forget")) drafts.drop();
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!all("[data-json]", form).every(check)) { event.preventDefault(); $("[aria-invalid=true]", form).focus(); return; }
    const decides = form.closest("#acts");
    // By an edit one means another call: it is not approved with the others.
    if (form.id === "mark-form") for (const each of marked()) each.value = sessionStorage.getItem(`draft ${base} ${body.dataset.signedIn} ${each.id.slice(2)}`) ? "edited" : "yes";
    if (decides && isNew()) { event.preventDefault(); notice("Nothing was done: this had just changed. Look at it, and choose again.", true); return; }
    if (decides && $("#marked")) sessionStorage.removeItem(MARKS);
    if (decides) { try { sessionStorage.setItem(SENT, drafts.key()); } catch { /* full: the draft stays */ } event.submitter?.classList.add("sent"); }
    // Twice would be refused; once is enough. Later, since a disabled button sends no value.
    setTimeout(() => all("button", decides || form).forEach((each) => { each.disabled = true; }), 0);
  });
  window.addEventListener("pageshow", () => all("button:disabled").forEach((each) => { each.disabled = false; each.classList.remove("sent"); tick(); }));
  window.addEventListener("pageshow", guardEdit);
  window.addEventListener("pageshow", (event) => { if (event.persisted) restoreMarks(); });

  // --- a decision that has just come in the place of another is not made by what was meant for that one ---
  const GUARD = 400; // ms, as in the terminal
  const shown = () => `${$("#decision")?.dataset.key} ${$("#acts [name=digest]")?.value}`;
  let shownWas = null, shownAt = 0;
  const isNew = () => performance.now() - shownAt < GUARD;
  function noticeChange() {
    if (shown() !== shownWas) { shownWas = shown(); shownAt = performance.now(); armed = 0; votes = false; setTimeout(markNew, GUARD + 1); }
    markNew();
    // Who sat on what is gone would sit nowhere.
    if (!document.activeElement || document.activeElement === body) $("#card-title")?.focus({ preventScroll: true });
  }
  function markNew() { for (const each of all("#acts button")) if (isNew()) each.ariaDisabled = "true"; else each.removeAttribute("aria-disabled"); }

  // --- marks: what is decided together; they outlive the page, since each card is one ---
  const MARKS = `marks ${base} ${body.dataset.signedIn}`;
  const boxes = () => all("#queue input[type=checkbox]"), marked = () => boxes().filter((each) => each.checked);
  let lastBox = "";
  function readMarks() { try { return JSON.parse(sessionStorage.getItem(MARKS)) || []; } catch { return []; } }
  function keepMarks() { try { sessionStorage.setItem(MARKS, JSON.stringify(marked().map((each) => each.id))); } catch { /* full: they stay on the page */ } showMarks(); }
  function showMarks() {
    const form = $("#mark-form"), count = marked().length;
    if (!form) return;
    form.hidden = !count; $("#unmark").hidden = false; put($("#together"), count === 1 ? "Look at the one marked" : `Look at the ${count} marked together`);
  }
  // Those of a row that was drawn anew, too; what waits no longer is marked no longer.
  function restoreMarks() { const kept = new Set(readMarks()); for (const each of boxes()) each.checked = kept.has(each.id); if ($("#mark-form")) keepMarks(); }
  const rowOfCard = () => document.getElementById(`q-${$("#decision")?.dataset.key}`);
  function lookTogether() { if (!marked().length) return false; $("#mark-form").requestSubmit(); return true; }
  document.addEventListener("click", (event) => {
    const box = event.target.closest("#queue input[type=checkbox]");
    if (event.target.closest("#unmark")) { boxes().forEach((each) => { each.checked = false; }); keepMarks(); }
    if (!box) return;
    const ids = boxes().map((each) => each.id), from = ids.indexOf(lastBox), to = ids.indexOf(box.id);
    if (event.shiftKey && from >= 0) for (const each of boxes().slice(Math.min(from, to), Math.max(from, to) + 1)) each.checked = box.checked;
    lastBox = box.id; keepMarks();
  });

  // --- keys ---
  let armed = 0, votes = false;
  // Its last line has been on the screen.
  const endIsShown = (call) => call.scrollTop + call.clientHeight >= call.scrollHeight - 4 && call.getBoundingClientRect().bottom <= visibleEnd() + 4;
  // The bar with the buttons covers the end of the screen.
  const visibleEnd = () => { const bar = $("#acts"), top = bar && getComputedStyle(bar).position === "sticky" ? bar.getBoundingClientRect().top : innerHeight; return top > 0 ? Math.min(top, innerHeight) : innerHeight; };
  const partsOf = (call) => [call, ...all(".block", call)];
  const isSeen = () => { const call = $("#call"); return !call || partsOf(call).every((each) => each.dataset.seen || endIsShown(each)); };
  document.addEventListener("scroll", () => {
    const call = $("#call");
    if (call) for (const each of partsOf(call)) if (endIsShown(each)) each.dataset.seen = "yes";
  }, true);
  function step(by) {
    const rows = all("#queue a"), at = rows.findIndex((each) => each.hasAttribute("aria-current"));
    rows[Math.min(Math.max(at + by, 0), rows.length - 1)]?.click();
  }
  const keys = {
    j: () => step(1), k: () => step(-1), n: () => step(1), p: () => step(-1),
    x() { const box = rowOfCard() && $("input", rowOfCard()); if (!box) return; box.checked = !box.checked; keepMarks(); if (box.checked) step(1); },
    X() {
      const group = rowOfCard()?.dataset.group; if (!group) return;
      const its = boxes().filter((each) => each.closest("li").dataset.group === group), mark = its.some((each) => !each.checked);
      for (const each of its) each.checked = mark;
      keepMarks();
    },
    a() {
      if (lookTogether() || goOn()) return;
      const button = $("#send-edit") || $("#approve") || $("#vote"), sure = $("#sure");
      if (!button) return;
      if (edits().length && !$("#send-edit")) { notice("Nothing was done: you are editing this call. Show what changes, or drop the edit.", true); return; }
      if (button.disabled) return;
      if (isNew()) { notice("Nothing was done: this had just changed. Look at it, and press the key again.", true); return; }
      const asks = sure && !sure.checked ? "It is marked as dangerous" : "", unseen = isSeen() ? "" : "You have not seen all of the call";
      if ((asks || unseen) && Date.now() - armed > 3000) {
        armed = Date.now(); if (unseen) $("#call").focus();
        notice(`${[asks, unseen].filter(Boolean).join(". ")}. Press a or y to approve it all the same.`, false, "", true); return;
      }
      const word = $("#word");
      if (word && !word.value) { word.focus(); notice("Its rule asks for a word: type it, and Enter.", false, "", true); return; }
      if (sure) sure.checked = true;
      button.click();
    },
    s() { $("#yes")?.click(); },
    y() { if (Date.now() - armed < 3000) keys.a(); },
    f() { ($("#file") || $("#back"))?.click(); },
    e() { const edit = $("#edit"); if (edit) { edit.open = true; ($("[data-draft]", edit) || edit).focus(); } },
    r() { if (lookTogether() || goOn()) return; const form = $("#rejecting"); if (form) { form.open = true; $("#reason").focus(); } },
    c() { const exact = $("#exact"); if (exact) { exact.open = !exact.open; if (exact.open) exact.scrollIntoView({ block: "nearest" }); } },
    v() {
      const button = $("#vote");
      if (goOn() || !button || button.disabled) return;
      button.focus(); votes = true; notice("Vote: a for it, r against it; any other key goes back.", false, "", true);
    },
    "?"() { const help = $(".keys"); if (help) { help.open = !help.open; $("summary", help).focus(); } },
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target.closest("input, textarea, select")) { event.target.closest("#rejecting")?.removeAttribute("open"); event.target.blur(); return; }
    // As from a field of text; a browser would open the list.
    if (event.key === "Enter" && event.target.id === "reason" && !event.repeat) { event.preventDefault(); const send = $("#reject"); if (!send.disabled) send.click(); return; }
    // What is typed behind the key that rejects is meant as words, not as the first letter of another reason.
    if (event.target.id === "reason" && event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey && !event.altKey) { $("#words").focus(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]), textarea, select")) return;
    // A key that is held down decides one proposal, not those that come behind it.
    if (event.repeat && !"jknp".includes(event.key)) return;
    if (!$("#desk, #marked, #back")) return;
    const voting = votes;
    votes = false;
    if (voting && "ar".includes(event.key)) { event.preventDefault(); $(event.key === "a" ? "#vote" : "#vote-against")?.click(); }
    else if (voting && event.key !== "Enter" && event.key !== "Tab") { event.preventDefault(); notice("No vote was given.", false, "", true); }
    else if (Object.hasOwn(keys, event.key)) { event.preventDefault(); keys[event.key](); }
  });

  // --- the page, part by part ---
  const parse = (html) => { const holder = document.createElement("template"); holder.innerHTML = html; return holder.content; };
  const redrawn = new Set();
  async function refresh(selector, url = location.href) {
    const target = $(selector), older = selector === "#timeline" && $("#older");
    // What is being loaded is not thrown away, nor what was loaded before.
    if (older && $(".htmx-request", older)) { soon(selector); return; }
    if (older && url === location.href) { const from = $("a", older); url = new URL(url); url.searchParams.set("kept", from ? new URL(from.href).searchParams.get("before") : "1"); url = url.href; }
    if (!target || !window.htmx) return;
    const pushed = [];
    redrawn.add(pushed);
    try { await htmx.ajax("GET", url, { source: target, target, select: selector, swap: "outerMorph" }); } finally { redrawn.delete(pushed); }
    // What was pushed meanwhile may not have been in what was loaded, and the swap took it away.
    if (selector === "#timeline") pushed.forEach(timeline);
  }
  let later = 0;
  // A part that somebody is at is drawn anew once they have left it.
  const isHeld = (selector) => ["#people", "#yeses"].includes(selector) && $(selector)?.contains(document.activeElement);
  const soon = (selector, wait = 300) => { clearTimeout(later); later = setTimeout(() => (isHeld(selector) ? soon(selector) : refresh(selector)), wait); };
  function title(count) {
    const badge = $("#badge");
    document.dispatchEvent(new CustomEvent("waiting", { detail: count }));
    document.title = `${count ? `(${count}) ` : ""}${document.title.replace(/^\(\d+\) /, "")}`;
    if (badge) { badge.hidden = !count; put(badge, String(count)); }
    if ($("#desk")) { put($("#count"), String(count)); const more = $("#more"); more.hidden = count <= 50; put($("span", more), (count - 50).toLocaleString("en")); }
  }
  const shownKey = () => $("#decision")?.dataset.key || "", inboxOf = (key) => `${base}/inbox${key ? `/${key}` : ""}`;
  const isEditing = () => drafts.any || Boolean($("#leave-edit")) || $("#decision")?.contains(document.activeElement?.closest("input, textarea, select"));

  const handlers = {
    hello(data) {
      title(data.waiting);
      // What was said between the page and its stream.
      if ($("#chain")) soon("#chain", 0); else if ($("#yeses")) soon("#yeses", 0); else if ($("#timeline") && !paused) soon("#timeline", 0); const queue = $(".queue"); if (queue && queue.dataset.version !== data.version) handlers.renew({ tell: true });
    },
    inbox(data) {
      title(data.waiting);
      data.said.forEach(say);
      for (const [key, html] of Object.entries(data.left)) { const line = $(`#t-${key} .gone`); if (line) { line.replaceChildren(parse(html)); line.hidden = false; } }
      const aside = $(".queue");
      if (!aside) return;
      const queue = $("#queue"), shown = shownKey(), why = Object.hasOwn(data.left, shown) ? data.left[shown] : "";
      if (why) left(why);
      if (aside.dataset.version === data.version) return;
      if (data.renew || aside.dataset.version !== data.was) { handlers.renew({ keepCard: Boolean(why) }); return; }
      aside.dataset.version = data.version;
      data.drop.forEach((key) => document.getElementById(`q-${key}`)?.remove());
      for (const each of data.put) {
        const row = parse(each.html).firstElementChild, old = document.getElementById(`q-${each.id}`), held = old?.contains(document.activeElement);
        old?.remove();
        if (each.id === shown) $("a", row).setAttribute("aria-current", "true");
        row.classList.add("came");
        queue.insertBefore(row, each.before ? document.getElementById(`q-${each.before}`) : null);
        if (held) $("a", row).focus({ preventScroll: true });
      }
      restoreMarks();
      if (why) return;
      // It comes back, as after the gateway was away.
      const isBack = $("#gone")?.hidden === false && data.put.some((each) => each.id === shown);
      // By its own address: at that of the inbox another one may be the next by now.
      if (isBack || data.changed.includes(shown)) { if (!$("#leave-edit")) refresh("#decision", inboxOf(shown)); }
      else if (!$("#decision .card") && !shown && data.waiting) refresh("#decision", inboxOf(""));
    },
    renew({ keepCard = false, tell = false } = {}) {
      const known = new Set(all("#queue > li").map((each) => each.id));
      // Who looks at one goes on looking at it, whichever is the next by now.
      refresh(".queue", inboxOf(shownKey())).then(() => {
        const came = tell ? all("#queue > li").filter((each) => !known.has(each.id)) : [], shown = shownKey();
        if (came.length > 5) say(`${came.length} proposals came`);
        else for (const row of came) say(`New: ${$(".muted .name", row).textContent} proposes ${$(".tool", row).textContent}`);
        if (keepCard || $("#gone")?.hidden === false) return;
        if ($("#decision .card") && $("#more").hidden && !document.getElementById(`q-${shown}`)) left("It waits no longer.");
        else if (!isEditing()) refresh("#decision", inboxOf(shown));
      });
    },
    told(data) {
      say(data.said);
      if ($("#card-yeses") && !$("#leave-edit")) refresh("#decision", inboxOf(shownKey()));
      // Of several that were decided together each stays.
      const outcomes = $("#outcomes");
      if (!outcomes) { notice(data.said, data.failed, data.proposal); return; }
      const line = document.createElement("li");
      line.className = data.failed ? "failed" : ""; line.append(data.said, " ", linkTo(data.proposal)); outcomes.append(line); outcomes.parentNode.open = true;
    },
    space(data) {
      if ($("#timeline")) timeline(data);
      const chain = $("#chain");
      if (chain && Object.hasOwn(data.touched, chain.dataset.thread)) soon("#chain");
      if ($("#people") && data.members) soon("#people");
      // A call that was decided may have used one.
      if ($("#yeses") && (data.yeses || Object.keys(data.touched).length)) soon("#yeses");
    },
    fresh() { if ($("#desk")) handlers.renew(); else if ($("#timeline")) soon("#timeline"); else if ($("#chain")) soon("#chain"); else if ($("#yeses")) soon("#yeses"); },
    gone({ other }) { offline(`${other ? "Another tab signed in as somebody else" : "You are signed out"}. What you typed stays on this page; ${other ? "" : "sign in again in another tab (meup console opens one), then "}reload${other ? " it to go on" : ""}.`); },
  };
  function left(html) {
    const gone = $("#gone");
    if (!gone) return;
    gone.replaceChildren(parse(html)); gone.hidden = false;
    // Those of before the last one, and words about an earlier card.
    all("#votes, #main > .notice.plain").forEach((each) => each.remove());
    all("#acts button, #edit button").forEach((each) => { each.disabled = true; each.dataset.gone = "yes"; });
    const next = document.createElement("a");
    next.className = "button"; next.href = `${base}/inbox`; next.textContent = "Next";
    gone.append(" ", next);
    clearTimeout(goingOn);
    if (!isEditing()) goingOn = setTimeout(goOn, 2500);
  }
  // To the next one, from a card that waits no longer; false: it waits, or something is typed about it.
  let goingOn = 0;
  function goOn() {
    clearTimeout(goingOn);
    const gone = $("#gone");
    if (!gone || gone.hidden || isEditing()) return false;
    const why = gone.innerText.replace(/\s*Next$/, ""), key = shownKey();
    refresh("#decision", inboxOf("")).then(() => {
      if (shownKey() === key) return;
      notice(`The last one left: ${why}`, false, "", true); history.replaceState(null, "", `${base}/inbox`);
    });
    return true;
  }

  // --- timeline ---
  let paused = false, held = [];
  function passes(row) {
    const { participant, tone, state, thread } = Object.fromEntries(new FormData($("#filters")));
    const of = row.dataset;
    return (!participant || of.from === participant || of.to.split("\n").includes(participant))
      && (!tone || of.tone === tone) && (!state || of.state === state) && (!thread || of.thread === thread);
  }
  function filter() { all("#rows > .row").forEach((row) => { row.hidden = !passes(row); }); }
  // Of a line of thought, or a stream, the first row stays, with the parts of the later ones in the page.
  function fold() {
    const first = {};
    for (const row of all("#rows > [id^=group-]")) {
      const kept = first[row.id] ??= row;
      if (kept === row) continue;
      const parts = $(".parts", kept), known = new Set([...parts.children].map((each) => each.id));
      parts.append(...[...$(".parts", row).children].filter((each) => !known.has(each.id)));
      put($(".parts-count", kept), String(parts.children.length));
      if ($("details", row).open) $("details", kept).open = true;
      row.remove();
    }
  }
  function add(html) {
    const rows = $("#rows");
    for (const row of all(".row", parse(html)).reverse()) {
      const group = row.id.startsWith("group-");
      if (!group && document.getElementById(row.id)) continue;
      row.classList.add("came"); rows.prepend(row);
    }
    fold(); filter();
    $("#nothing")?.remove();
    // As many as one looks at; what is older is loaded again by scrolling.
    const kept = all("#rows > .row");
    if (kept.length > 1000 && scrollY < 200) kept.slice(1000).forEach((row) => row.remove());
  }
  function restate(touched) {
    for (const row of all("#rows > .row")) {
      const [state, word] = touched[row.dataset.thread] || [], chip = $(".state", row);
      if (!state) continue;
      row.dataset.state = state;
      if (chip) { chip.className = `state s-${word.replace(" ", "_")}`; put(chip, word); }
    }
  }
  function timeline(data) {
    redrawn.forEach((pushed) => pushed.push(data));
    if (paused) { held.push(data); put($("#held"), `${held.length} updates wait`); if (held.length > 200) held = [{ wider: true, touched: {} }]; return; }
    if (data.wider) { soon("#timeline"); return; }
    restate(data.touched);
    // By state, older rows of the same proposals come with the newest: they were not loaded.
    if ($("#filters").elements.state.value && Object.keys(data.touched).length) soon("#timeline");
    if (data.rows) add(data.rows);
  }
  function setUpTimeline() {
    const filters = $("#filters"), pause = $("#pause");
    if (!filters) return;
    pause.hidden = false; $("button", filters).hidden = true;
    filters.addEventListener("change", () => {
      const url = `${base}/timeline?${new URLSearchParams([...new FormData(filters)].filter(([, value]) => value))}`;
      history.replaceState(null, "", url); filter(); refresh("#timeline", url);
    });
    pause.addEventListener("click", () => {
      paused = !paused; pause.setAttribute("aria-pressed", String(paused)); put(pause, paused ? "Go on" : "Pause");
      if (!paused) { const taken = held; held = []; put($("#held"), ""); taken.forEach(timeline); }
    });
  }
  document.addEventListener("htmx:before:swap", (event) => {
    // What is not such a page must not take the place of what is shown, and perhaps typed.
    const answer = event.detail.ctx?.response?.raw;
    if (!answer) return;
    const { target, text } = event.detail.ctx, other = !isOurs(text), signedOut = answer.redirected && new URL(answer.url).pathname.endsWith("/sign-in");
    if (signedOut || other || !answer.ok) event.preventDefault();
    // What has been typed about one meanwhile does not come into the form of the next.
    else if (target?.id === "decision" && isEditing() && !text.includes(`data-key="${shownKey()}"`)) event.preventDefault();
    else if (target?.id === "timeline" && $("#older .htmx-request")) { event.preventDefault(); soon("#timeline"); }
    if (signedOut || other) handlers.gone({ other });
  });
  document.addEventListener("htmx:after:swap", () => { if ($("#filters")) { fold(); filter(); } drafts.restore(); restoreMarks(); noticeChange(); });

  // --- one event stream for all tabs ---
  function listen() {
    const topic = body.dataset.topics || "inbox";
    const channel = new BroadcastChannel(`meup ${base} ${location.host} ${as}`);
    const handle = (type, data) => { if (Object.hasOwn(handlers, type)) handlers[type](data); };
    const state = (text) => { offline(text); };
    let source = null, wanted = "", last = null, answerAsked = () => {};
    const locks = navigator.locks;
    const lockOf = (name) => `meup ${base} ${as} ${name}`;
    async function topics() {
      if (!locks) return "inbox,space";
      const { held: taken } = await locks.query(), prefix = lockOf("topic ");
      return [...new Set(["inbox", ...taken.filter((each) => each.name.startsWith(prefix)).map((each) => each.name.slice(prefix.length))])].sort().join(",");
    }
    async function open() {
      const now_ = await topics();
      if (source && wanted === now_ && source.readyState !== EventSource.CLOSED) return;
      source?.close();
      wanted = now_;
      const mine = source = new EventSource(`${base}/events?topics=${wanted}&as=${as}`);
      const pass = (type, data) => { if (type === "hello" || type === "inbox") last = data; handle(type, data); channel.postMessage({ type, data }); };
      for (const type of ["hello", "inbox", "space", "told", "fresh"]) {
        mine.addEventListener(type, (event) => pass(type, JSON.parse(event.data)));
      }
      mine.addEventListener("gone", () => { mine.close(); retry(mine); });
      mine.onopen = () => { state(""); channel.postMessage({ type: "state", data: "" }); };
      mine.onerror = () => {
        const text = "Reconnecting… nothing that you typed is lost.";
        state(text); channel.postMessage({ type: "state", data: text });
        if (mine.readyState === EventSource.CLOSED) setTimeout(retry, 2000, mine);
      };
    }
    // Without a secure context there are no locks. The stream is then of the tab that was last to say in
    // storage that it holds it. A hidden tab, whose timers a browser slows down, says so when it is asked;
    // one that does not answer was killed, or sleeps.
    function takeTurns() {
      const lease = lockOf("stream"), me = crypto.getRandomValues(new Uint32Array(2)).join("-");
      let away = false, doubted = {}; // a page that goes is hidden after it has left
      const holder = () => { try { return JSON.parse(localStorage.getItem(lease)) || {}; } catch { return {}; } };
      function hold() {
        if (away) return;
        const { id, until } = holder(), isTheirs = id && id !== me;
        if (isTheirs && until > Date.now()) { source?.close(); source = null; doubted = {}; return; }
        if (isTheirs && doubted.id !== id) { doubted = { id, at: performance.now() }; channel.postMessage({ type: "asked" }); return; }
        if (isTheirs && performance.now() - doubted.at < 1500) return;
        doubted = {};
        try { localStorage.setItem(lease, JSON.stringify({ id: me, until: Date.now() + 6000 })); } catch { /* each tab has its own */ }
        if (!source) open();
      }
      answerAsked = () => { if (source && holder().id === me) hold(); };
      const leave = () => { away = true; source?.close(); source = null; if (holder().id === me) localStorage.removeItem(lease); };
      window.addEventListener("pagehide", leave);
      window.addEventListener("pageshow", (event) => { if (event.persisted) { away = false; hold(); } });
      window.addEventListener("storage", (event) => { if (event.key === lease && !event.newValue) setTimeout(hold, Math.random() * 200); });
      document.addEventListener("visibilitychange", hold);
      channel.postMessage({ type: "topics" });
      setInterval(hold, 2000); hold();
    }
    async function retry(mine) {
      if (mine !== source) return;
      // A refused stream closes for good, and does not say why: the page that asks does.
      const answer = await fetch(`${base}/inbox`, { redirect: "manual", headers: { Accept: "text/html" } }).catch(() => null);
      const isOut = answer && (answer.type === "opaqueredirect" || answer.status === 401), other = Boolean(answer?.ok) && !isOurs(await answer.text().catch(() => ""));
      if (mine !== source) return;
      if (isOut || other) { handle("gone", { other }); channel.postMessage({ type: "gone", data: { other } }); return; }
      source = null; open();
    }
    channel.onmessage = ({ data: message }) => {
      if (message.type === "state") state(message.data);
      else if (message.type === "asked") answerAsked();
      else if (message.type === "topics") { if (source) { open(); if (last) channel.postMessage({ type: "hello", data: { version: last.version, waiting: last.waiting } }); } }
      else handle(message.type, message.data);
    };
    if (!locks) { takeTurns(); return; }
    locks.request(lockOf(`topic ${topic}`), { mode: "shared" }, () => { channel.postMessage({ type: "topics" }); return new Promise(() => {}); });
    locks.request(lockOf("stream"), () => { open(); setInterval(open, 15000); return new Promise(() => {}); });
  }

  // What expired is seen once its rows have been on the screen for a moment, all of them.
  function setUpHistory() {
    const note = $("#unseen-note[data-seen]");
    if (!note) return;
    const send = () => fetch(note.action, { method: "POST", redirect: "manual", body: new URLSearchParams(new FormData(note)) }).then(() => { note.hidden = true; $("#unseen")?.replaceChildren(); }).catch(() => null);
    setTimeout(function look() { if (document.visibilityState === "visible") send(); else document.addEventListener("visibilitychange", () => setTimeout(look, 2000), { once: true }); }, 2000);
  }

  tick();
  setUpHistory();
  dropSent();
  drafts.restore();
  restoreMarks();
  setUpTimeline();
  if (body.dataset.signedIn) listen();
  ($("#seen-title") || $("#card-title"))?.focus({ preventScroll: !$("#seen-title") });
  noticeChange();
})();
