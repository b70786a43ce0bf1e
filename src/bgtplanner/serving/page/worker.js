// Keeps the page and its model, so that it opens without a network; asks the network first if there is one.

const KEPT = `bgtplanner:${registration.scope}`;
const FILES = ["./", "index.html", "page.css", "page.js", "model.js", "ranking.js", "reasons.js", "texts.js", "icon.svg", "public.model"];
const ADDRESSES = new Set(FILES.map((name) => new URL(name, registration.scope).href));

addEventListener("install", (event) => event.waitUntil(caches.open(KEPT).then((kept) => kept.addAll(FILES)).then(() => skipWaiting())));
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  if (method === "GET" && ADDRESSES.has(url.split("#")[0])) event.respondWith(fresh(event.request));
});

async function fresh(request) {
  const kept = await caches.open(KEPT);
  const answer = await fetch(request).catch(() => kept.match(request));
  if (answer?.ok) await kept.put(request, answer.clone());
  return answer ?? Response.error();
}
