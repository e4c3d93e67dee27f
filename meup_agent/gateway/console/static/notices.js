// Notices of this browser: its badge, a notification while the page is hidden, and Web Push where the
// gateway has it. Asked for once; what is shown has no text of a stranger.
"use strict";
(() => {
  const base = document.body.dataset.base, key = document.body.dataset.push;
  const AFTER = 3000, PAUSE = 30000; // as the gateway has it (reach/bursts.py)
  const can = "Notification" in window && "serviceWorker" in navigator && window.isSecureContext;
  const keep = (name, value) => { try { localStorage.setItem(`meup ${name}`, value); } catch { /* asked again */ } };
  const kept = (name) => { try { return localStorage.getItem(`meup ${name}`); } catch { return null; } };
  const isOn = () => can && Notification.permission === "granted" && kept("notices") !== "off";
  const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (each) => each.charCodeAt(0));
  const worker = () => navigator.serviceWorker.register(`${base}/worker.js`, { scope: `${base}/` });
  const subscription = async () => (can && key ? (await navigator.serviceWorker.getRegistration(`${base}/`))?.pushManager?.getSubscription() : null);

  function send(path, fields) {
    const csrf = document.querySelector("input[name=csrf]").value;
    return fetch(`${base}${path}`, { method: "POST", body: new URLSearchParams({ csrf, ...fields }) });
  }
  async function push() {
    const manager = (await worker(), await navigator.serviceWorker.ready).pushManager;
    if (!key || !manager) return;
    const options = { userVisibleOnly: true, applicationServerKey: bytes(key) };
    let mine = await manager.getSubscription();
    const old = mine?.options.applicationServerKey;
    // Of a gateway that has another key by now nothing would arrive.
    if (old && btoa(String.fromCharCode(...new Uint8Array(old))) !== btoa(String.fromCharCode(...bytes(key)))) { await mine.unsubscribe(); mine = null; }
    mine ??= await manager.subscribe(options);
    const { endpoint, keys } = mine.toJSON();
    await send("/push", { endpoint, p256dh: keys.p256dh, auth: keys.auth });
  }
  async function turnOn() {
    keep("asked", "yes");
    if (await Notification.requestPermission() === "granted") { keep("notices", "on"); await push().catch(() => say("Your browser's push service cannot be reached: it tells you while this page is open.")); }
    await show();
  }
  async function turnOff() {
    keep("asked", "yes"); keep("notices", "off");
    const mine = await subscription();
    if (mine) { await send("/push/off", { endpoint: mine.endpoint }); await mine.unsubscribe(); }
    await show();
  }

  // --- what the page says of it ---
  let problem = "";
  const say = (text) => { problem = text; };
  const where = key ? "also while this page is closed: encrypted, by the push service of your browser" : "while this page is open in the background";
  async function show() {
    const box = document.getElementById("notices"), ask = document.getElementById("ask-notices");
    const state = !window.isSecureContext ? "insecure" : !can ? "" : Notification.permission === "denied" ? "denied" : isOn() && (!key || await subscription() || problem) ? "on" : "off";
    if (ask) { ask.hidden = state !== "off" || Boolean(kept("asked")); ask.querySelector("span").textContent = `Shall this browser tell you when a call waits, ${where}?`; }
    if (!box) return;
    box.hidden = !state;
    box.querySelector("p").textContent = problem || {
      insecure: "This browser can tell you when a call waits only where the console is served by https, or at localhost.",
      denied: "Your browser blocks notices of this page; its settings allow them again.",
      on: `This browser tells you when a call waits, ${where}.`,
      off: `This browser can tell you when a call waits, ${where}.`,
    }[state] || "";
    box.querySelector("[value=on]").hidden = state !== "off";
    box.querySelector("[value=off]").hidden = state !== "on";
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("#notices button, #ask-notices button");
    if (button) (button.value === "on" || button.value === "yes" ? turnOn() : turnOff());
  });

  // --- what waits ---
  let waiting = 0, told = 0, last = -PAUSE, timer = 0, leads = false;
  const holds = new Promise(() => {});
  // One tab of a browser tells, however many are open.
  if (navigator.locks) navigator.locks.request(`meup notices ${base}`, () => { leads = true; return holds; }); else leads = true;
  async function tell() {
    timer = 0;
    // A push tells it by itself; and who looks at the page sees it.
    if (!waiting || waiting <= told || !leads || !document.hidden || !isOn() || await subscription()) return;
    told = waiting; last = Date.now();
    const title = `${waiting} call${waiting === 1 ? " waits" : "s wait"} for a decision`;
    (await worker()).showNotification(title, { tag: "meup", renotify: true, icon: `${base}/static/icon.svg` });
  }
  async function settle() {
    told = 0;
    const shown = can ? await (await navigator.serviceWorker.getRegistration(`${base}/`))?.getNotifications({ tag: "meup" }) : [];
    shown?.forEach((each) => each.close());
  }
  document.addEventListener("waiting", (event) => {
    waiting = event.detail;
    if (navigator.setAppBadge) (waiting ? navigator.setAppBadge(waiting) : navigator.clearAppBadge()).catch(() => {});
    if (waiting < told) told = waiting;
    if (!waiting) settle();
    else if (waiting > told && !timer) timer = setTimeout(tell, Math.max(AFTER, last + PAUSE - Date.now()));
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) told = waiting; });

  if (isOn() && kept("notices")) push().catch(() => {}).finally(show); else show();
})();
