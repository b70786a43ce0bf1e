// The page: what a person rates, and the list that follows. It asks the network for the model (on one's own machine, for what is one's own), and then for nothing.

import { readModel } from "./model.js";
import { OFTEN, plainName, short, verdictOf } from "./reasons.js";
import { LANGUAGE, OWN, text } from "./texts.js";

const STORE = `bgtplanner:${new URL(".", location).pathname}`;
const TOP = 10, AT_ONCE = 6, FOUND = 8;
const mine = new Map(); // ratings by label, the last one last; null if it was only picked
let model, newcomers, steps, length = TOP, begin = 0;

const place = (id) => document.getElementById(id);
const plain = (words) => words.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();

/** An element with attributes, listeners (on...) and children; text is never read as HTML. */
function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** The ratings that can be given: whole numbers, halves if the scale has them, or ten of a wide one. */
function stepsOf({ low, high }) {
  const by = high - low > 10 ? (high - low) / 10 : Number.isInteger(low) ? 1 : 0.5;
  const all = Array.from({ length: Math.floor((high - low) / by + 1e-9) + 1 }, (_, at) => low + at * by);
  return all[0] === 0 && all.length > 2 ? all.slice(1) : all;
}

/** What an item is rated with: stars or numbers, one stop of the Tab key, moved within by arrows. */
function rater(at) {
  const label = model.labels[at], now = mine.get(label), title = model.title(at);
  if (model.implicit) {
    const named = { "aria-pressed": String(mine.has(label)), "aria-label": `${text("rate.pick")}: ${title}` };
    const onclick = () => rate(at, mine.has(label) ? undefined : null);
    return make("button", { type: "button", "data-item": at, ...named, onclick }, text("rate.pick"));
  }
  const chosen = Math.max(steps.indexOf(now), 0), stars = steps.length <= 5;
  const buttons = steps.map((value, step) => make("button", {
    type: "button", role: "radio", "aria-checked": String(value === now), tabindex: step === chosen ? 0 : -1,
    class: value <= now ? "full" : "", "aria-label": text("rate.value", { value, high: model.high }),
    onclick: () => rate(at, value === now ? undefined : value),
  }, stars ? (value <= now ? "★" : "☆") : String(value)));
  const onkeydown = (event) => {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const from = buttons.indexOf(document.activeElement), to = Math.min(Math.max(from + by, 0), buttons.length - 1);
    buttons.forEach((button, step) => { button.tabIndex = step === to ? 0 : -1; });
    buttons[to].focus();
  };
  const group = { role: "radiogroup", "data-item": at, "aria-label": text("rate.of", { title }), onkeydown };
  return make("span", { ...group, class: stars ? "stars" : "stars numbers" }, ...buttons);
}

/** An item with what it is rated with. */
function line(at, ...more) {
  return make("li", {}, make("div", { class: "what" }, make("span", { class: "title" }, model.title(at)), ...more), rater(at));
}

/** Takes in a rating, or takes it away; the focus stays where the person is. */
function rate(at, value) {
  const label = model.labels[at], inside = document.activeElement?.closest("li");
  const where = inside?.parentElement, row = where && [...where.children].indexOf(inside);
  mine.delete(label);
  if (value !== undefined) mine.set(label, value);
  for (const old of document.querySelectorAll(`#results [data-item="${at}"]`)) old.replaceWith(rater(at));
  keep();
  refresh();
  const next = where && (where.children[Math.min(row, where.children.length - 1)] ?? where.closest("section"));
  (next?.querySelector('[tabindex="0"], button') ?? next)?.focus({ preventScroll: true });
}

/** Stores the ratings in this browser. */
function keep() {
  if (OWN) return;
  try {
    localStorage.setItem(STORE, JSON.stringify([...mine]));
  } catch {
    place("told").textContent = text("mine.full");
  }
}

/** Reads the ratings of this browser. */
function remember() {
  mine.clear();
  try {
    for (const [label, value] of JSON.parse(localStorage.getItem(STORE) ?? "[]")) mine.set(label, value);
  } catch { /* nothing can be read: there are none */ }
}

/** Takes in what is the person's own: asked for with the token of the address, which works once, then with this tab's secret. */
async function own() {
  const token = /^#token=(.+)/.exec(location.hash)?.[1] ?? sessionStorage.getItem(STORE);
  history.replaceState(null, "", location.pathname);
  const answer = await fetch("mine", { method: "POST", headers: { authorization: `Bearer ${token}` } }).catch(() => ({ ok: false }));
  if (!answer.ok) throw new Error(answer.status === 403 ? "error.token" : "error.own");
  const { secret, ratings, spent } = await answer.json();
  sessionStorage.setItem(STORE, secret);
  for (const [label, value] of Object.entries(ratings)) mine.set(label, value);
  tell(spent);
}

/** Shows what was spent of the person's budget, when, and what it means. */
function tell({ rows, epsilon, delta, spent, left, guesses, neighbours }) {
  const share = (of, maximumFractionDigits = 1, roundingMode = "floor") => of.toLocaleString(LANGUAGE, { style: "percent", maximumFractionDigits, roundingMode });
  const most = (of) => (of * (1 - 1e-9)).toLocaleString(LANGUAGE, { maximumSignificantDigits: 3, roundingMode: "ceil" });
  const date = (time) => (time ? new Date(time).toLocaleString(LANGUAGE, { dateStyle: "medium", timeStyle: "short" }) : text("spent.unknown"));
  const runs = [...new Set(rows.map((of) => of.run).filter(Boolean))], [now, whole] = guesses.map((of) => share(of, 2, "ceil"));
  const values = { n: rows.length, epsilon, delta, spent: most(spent), left: share(left), now, whole };
  const keys = ["spent.so", ...(rows.length ? [`spent.means.${neighbours}`] : []), "spent.promise"];
  place("said").replaceChildren(...keys.map((key) => make("p", {}, text(key, values))));
  place("rounds").replaceChildren(...rows.reverse().map((of) => {
    const words = { run: runs.indexOf(of.run) + 1, round: of.round + 1, charge: most(of.charge_most), spent: most(of.epsilon), left: share(of.left) };
    return make("li", {}, make("div", { class: "what" }, make("span", { class: "title" }, date(of.time)), make("p", { class: "reason" }, text(`spent.${of.kind}`, words))));
  }));
  for (const of of document.querySelectorAll('main, #spent, [href="#spent"]')) of.hidden = false;
}

/** Shows what is searched for, or some to begin with. */
function search() {
  const phrase = plain(place("search").value).trim(), words = phrase.split(/\s+/), asked = phrase !== "";
  const far = (at) => (model.plain[at].startsWith(phrase) ? 0 : model.plain[at].includes(phrase) ? 1 : 2);
  const fits = (at) => (asked ? words.every((word) => model.plain[at].includes(word)) : !mine.has(model.labels[at]));
  const fitting = newcomers.map(({ at }) => at).filter(fits);
  if (asked) fitting.sort((one, other) => far(one) - far(other));
  begin = begin < fitting.length ? begin : 0;
  const shown = asked ? fitting.slice(0, FOUND) : fitting.slice(begin, begin + AT_ONCE), n = fitting.length;
  place("found").textContent = asked ? text(n > FOUND ? "rate.first" : "rate.found", { n, shown: FOUND }) : text("rate.hint");
  place("results").replaceChildren(...shown.map((at) => line(at)));
  place("others").hidden = asked || n <= AT_ONCE;
}

/** Shows everything that follows from the ratings. */
function refresh() {
  const only = Number(place("only").value), { rows, ranked, known } = model.recommend(mine, { top: length + 1, only });
  const unknown = mine.size - known, digits = model.high - model.low < 20 ? 1 : 0;
  const shown = (of) => of.toLocaleString(LANGUAGE, { minimumFractionDigits: digits, maximumFractionDigits: digits });
  place("lines").replaceChildren(...rows.slice(0, length).map(({ at, predicted, reason }) => {
    const about = predicted === null ? [] : [make("span", { class: "predicted" }, text("list.predicted", { value: shown(predicted) }))];
    return line(at, ...about, make("p", { class: "reason" }, reason ?? ""));
  }));
  place("more").hidden = rows.length <= length;
  place("note").textContent = rows.length ? (known ? "" : text("list.new")) : text("list.empty");
  place("changed").textContent = rows.length ? text("list.changed", { title: model.title(rows[0].at) }) : "";
  place("mine").querySelector("summary").textContent = text("mine.title", { n: mine.size });
  place("unknown").textContent = unknown ? text("mine.unknown", { n: unknown }) : "";
  const places = [...mine.keys()].reverse().map((label) => model.place.get(label)).filter((at) => at !== undefined);
  place("rated").replaceChildren(...places.map((at) => line(at)));
  place("personal").replaceChildren(...personal(rows, ranked, known).map((words) => make("li", {}, words)));
}

/** What of the list is the person's own, in sentences. */
function personal(rows, { why }, known) {
  const first = new Set(newcomers.slice(0, TOP).map(({ at }) => at)), top = Math.min(TOP, rows.length);
  const same = rows.slice(0, TOP).filter(({ at }) => first.has(at)).length;
  const said = [text("rests.mine", { n: known })];
  if (known && place("only").value === "-1") said.push(text("rests.same", { n: same, top }));
  const liked = model.names.map((name, at) => [plainName(name), why.interest?.[at] ?? 0]).filter(([what, often]) => what && often >= OFTEN);
  for (const [what, often] of known ? liked.sort((one, other) => other[1] - one[1]).slice(0, 3) : []) {
    said.push(text("rests.often", { what, often: short(Math.exp(often)), whom: text(model.learned ? "whom.others" : "whom.chance") }));
  }
  return said;
}

/** Shows what does not change: what the model is worth, and what it promises. */
function state() {
  const { guarantee } = model;
  place("verdict").replaceChildren(...verdictOf(model).map((words) => make("li", {}, words)));
  const { people, epsilon, delta, trust } = guarantee;
  const first = make("p", guarantee.private ? {} : { class: "warning" }, text(guarantee.private ? "promise.plain" : "promise.open", { people }));
  const sentences = guarantee.sentences ?? [text("promise.none")];
  place("sentences").replaceChildren(first, ...sentences.map((words) => make("p", {}, words)));
  place("promise").classList.toggle("open", !guarantee.private);
  const facts = Object.entries({ people, epsilon, delta, trust, items: model.items.length, model: model.ranker });
  for (const [name, value] of facts.filter(([, of]) => of !== undefined && of !== null)) {
    place("facts").append(make("dt", {}, text(`fact.${name}`)), make("dd", {}, String(value)));
  }
  const named = model.names.map((name, at) => [plainName(name), at]).filter(([name]) => name);
  place("only").replaceChildren(make("option", { value: -1 }, text("list.all")), ...named.map(([name, at]) => make("option", { value: at }, name)));
  place("only").closest("label").hidden = !named.length;
}

/** Ratings in a file: JSON, or lines with an item and a rating; throws an Error with the key of a text. */
function ratingsIn(content) {
  let found;
  try {
    const read = JSON.parse(content);
    found = Array.isArray(read) ? read.map((label) => [String(label), null]) : Object.entries(read);
  } catch {
    const cells = content.split(/\r?\n/).filter((row) => row.trim()).map((row) => /^\s*"?(.*?)"?\s*(?:,\s*"?([^",]*)"?\s*)?$/.exec(row).slice(1));
    if (cells.length && cells[0][1] && Number.isNaN(Number(cells[0][1]))) cells.shift(); // names
    found = cells.map(([label, value]) => [label, value === undefined ? null : Number(value)]);
  }
  const numbers = found.map(([, value]) => value).filter((value) => value !== null);
  if (!found.length || !numbers.every(Number.isFinite)) throw new Error("mine.bad");
  if (!model.implicit && !numbers.every((of) => of >= model.low && of <= model.high)) throw new Error("mine.scale");
  return found;
}

const changed = () => { keep(); search(); refresh(); };

async function load(event) {
  const told = place("told"), [file] = event.target.files;
  try {
    const found = ratingsIn((await file.text()).replace(/^\ufeff/, ""));
    for (const [label, value] of found) mine.set(label, value);
    told.textContent = text("mine.loaded", { n: found.length });
    changed();
  } catch (error) {
    told.textContent = text(error.message === "mine.scale" ? "mine.scale" : "mine.bad", { low: model.low, high: model.high, example: '{"42": 5}' });
  }
  event.target.value = "";
}

function save() {
  const content = model.implicit ? [...mine.keys()] : Object.fromEntries(mine);
  const address = URL.createObjectURL(new Blob([JSON.stringify(content, null, 1)], { type: "application/json" }));
  make("a", { href: address, download: "my-ratings.json" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

function clear() {
  if (!confirm(text("mine.sure"))) return;
  mine.clear();
  changed();
}

function listen() {
  place("search").addEventListener("input", search);
  place("others").addEventListener("click", () => { begin += AT_ONCE; search(); });
  place("more").addEventListener("click", () => { length += TOP; refresh(); });
  place("only").addEventListener("change", refresh);
  place("import").addEventListener("change", load);
  place("export").addEventListener("click", save);
  place("clear").addEventListener("click", clear);
  addEventListener("storage", (event) => { if (!OWN && event.key === STORE) { remember(); search(); refresh(); } });
}

async function start() {
  document.documentElement.lang = LANGUAGE;
  document.title = text("page.title");
  for (const of of document.querySelectorAll("[data-text]")) of.textContent = text(of.dataset.text);
  for (const of of document.querySelectorAll("[data-label]")) of.setAttribute("aria-label", text(of.dataset.label));
  if (!isSecureContext) throw new Error("error.insecure");
  await (OWN ? own() : remember());
  const answer = await fetch("public.model").catch(() => ({ ok: false }));
  if (!answer.ok) throw new Error("error.load");
  model = await readModel(new Uint8Array(await answer.arrayBuffer()));
  if (model.empty) throw new Error("list.nothing");
  model.plain = model.labels.map((_, at) => plain(model.title(at)));
  steps = stepsOf(model);
  newcomers = model.recommend(new Map(), { top: model.items.length, explain: false }).rows;
  state();
  listen();
  search();
  refresh();
  for (const of of document.querySelectorAll("nav, main")) of.hidden = false;
  if (!OWN) await navigator.serviceWorker?.register("worker.js").catch(() => null); // without it, it needs the network to open
}

start().catch((error) => {
  place("problem").textContent = text(/^(error|list)\./.test(error.message) ? error.message : "error.damaged");
  place("problem").hidden = false;
});
