"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const kept = { get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
                 set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* not allowed here */ } } };
  const off = new Set();  // series that are hidden
  let view = null;        // the metric that is shown; null: as the page comes

  const theme = (name) => {
    if (name === "auto") root.removeAttribute("data-theme"); else root.dataset.theme = name;
    for (const button of document.querySelectorAll("[data-theme-of]"))
      button.setAttribute("aria-pressed", String(button.dataset.themeOf === name));
  };
  const apply = () => {
    for (const part of document.querySelectorAll(".series")) part.style.display = off.has(part.dataset.series) ? "none" : "";
    for (const button of document.querySelectorAll("[data-toggle]"))
      button.setAttribute("aria-pressed", String(!off.has(button.dataset.toggle)));
    const views = [...document.querySelectorAll("[data-view-of]")];
    if (!views.length) return;
    view ??= views[0].dataset.viewOf;
    for (const button of views) button.setAttribute("aria-pressed", String(button.dataset.viewOf === view));
    for (const part of document.querySelectorAll("[data-view]")) part.hidden = part.dataset.view !== view;
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.themeOf) { kept.set("bgtplanner-theme", button.dataset.themeOf); theme(button.dataset.themeOf); }
    if (button.dataset.toggle) { if (!off.delete(button.dataset.toggle)) off.add(button.dataset.toggle); apply(); }
    if (button.dataset.viewOf) { view = button.dataset.viewOf; apply(); }
  });
  theme(kept.get("bgtplanner-theme") ?? "auto");
  apply();

  const live = document.body.dataset.live;
  if (!live) return;
  const state = document.getElementById("live");
  const say = (text) => { if (state.textContent !== text) state.textContent = text; };
  const source = new EventSource(live);
  let last = document.querySelector("main").dataset.version, asked = 0, shown = 0;
  source.addEventListener("open", () => say("live"));
  source.addEventListener("error", () => say("not connected"));
  source.addEventListener("page", async (event) => {
    if (event.data === last) return;
    const turn = ++asked;
    const fresh = new DOMParser().parseFromString(await (await fetch(location.pathname)).text(), "text/html");
    if (turn < shown) return; // a newer one was quicker
    shown = turn;
    const open = [...document.querySelectorAll("details")].map((part) => part.open);
    document.querySelector("main").replaceWith(fresh.querySelector("main"));
    document.title = fresh.title;
    document.querySelectorAll("details").forEach((part, number) => { part.open = open[number] ?? false; });
    last = document.querySelector("main").dataset.version;
    apply();
  });
  source.addEventListener("done", () => { source.close(); say("finished"); });
})();
