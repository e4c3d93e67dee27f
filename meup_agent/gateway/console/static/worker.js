// The console's service worker: it shows what is pushed while no page is open, and opens the inbox.
// It decides nothing, keeps nothing, and answers no request of a page.
"use strict";
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("push", (event) => {
  let said = {};
  try { said = event.data.json(); } catch { /* shown without words of its own */ }
  const waiting = Number(said.waiting) || 0;
  const shown = { body: String(said.text || ""), tag: "meup", icon: "static/icon.svg", renotify: waiting > 0, silent: waiting === 0 };
  event.waitUntil((async () => {
    const pages = await self.clients.matchAll({ type: "window" });
    // Who looks at the console sees it there.
    if (!pages.some((each) => each.focused)) await self.registration.showNotification(String(said.title || "meup"), shown);
    await (waiting ? self.navigator.setAppBadge?.(waiting) : self.navigator.clearAppBadge?.());
  })());
});
self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil((async () => {
    const [page] = await self.clients.matchAll({ type: "window" });
    await (page ? page.focus() : self.clients.openWindow("inbox"));
  })());
});
