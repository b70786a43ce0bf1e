// The model file, read in the browser, and lists from it: mirrors published/file.py and published/model.py.

import { Table, RANKERS } from "./ranking.js";
import { reasonsOf } from "./reasons.js";

const VERSION = 1;
const READERS = { F32: Float32Array, U8: Uint8Array };

/** The model in these bytes; throws an Error with the key of a text if they are none, or damaged. */
export async function readModel(bytes) {
  let facts, header, body;
  try {
    const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, 8 + length));
    header = JSON.parse(text);
    const told = header.__metadata__;
    delete header.__metadata__;
    if (told.format !== "bgtplanner-model") throw new Error("format");
    if (Number(told.version) > VERSION) throw new Error("error.later");
    const blank = bytes.slice();
    for (const written of [told.signature, told.digest].filter(Boolean)) { // zeros when it was computed
      const before = new TextEncoder().encode(text.slice(0, text.indexOf(`"${written}"`) + 1)).length;
      blank.fill(48, 8 + before, 8 + before + written.length);
    }
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", blank));
    if ([...digest].map((of) => of.toString(16).padStart(2, "0")).join("") !== told.digest) throw new Error("digest");
    facts = JSON.parse(told.model, exact);
    body = bytes.subarray(8 + length);
  } catch (error) {
    throw new Error(error.message === "error.later" ? error.message : "error.damaged");
  }
  return new Model(facts, arrayOf(header.features, body), arrayOf(header.released, body));
}

/** Integers that are too large for a number stay as they are written: they are labels. */
function exact(_, value, context) {
  return Number.isInteger(value) && !Number.isSafeInteger(value) ? (context?.source ?? String(value)) : value;
}

function arrayOf({ dtype, shape: [rows, width], data_offsets: [begin, end] }, body) {
  const numbers = new READERS[dtype](body.slice(begin, end).buffer); // little-endian, as browsers are
  if (numbers.length !== rows * width || !numbers.every(Number.isFinite)) throw new Error("error.damaged");
  return new Table(rows, width, Float64Array.from(numbers));
}

/** What a training has released, and what is public. A history is a Map from labels to ratings, or to null. */
class Model {
  constructor(facts, features, released) {
    Object.assign(this, facts, { features, released });
    this.labels = this.items.map(String);
    this.place = new Map(this.labels.map((label, at) => [label, at]));
    const fits = [features.rows, released.rows, this.place.size].every((of) => of === this.items.length);
    if (!Object.hasOwn(RANKERS, this.ranker)) throw new Error("error.later");
    if (!fits || features.width !== this.names.length || !(this.low < this.high)) throw new Error("error.damaged");
    this.rank = new RANKERS[this.ranker](released, features, this.settings, this.implicit);
    this.where = this.rank.places();
    this.empty = !this.learned && !features.data.length; // there is nothing to rank items by
  }
  title(at) { return this.titles?.[at] ?? this.labels[at]; }
  /** Items and ratings from 0 to 1 of a history; what the model does not know is left out. */
  history(mine) {
    const fits = (of) => this.implicit || of === null || (of >= this.low && of <= this.high);
    const known = [...mine].filter(([label, of]) => this.place.has(label) && fits(of));
    const scaled = (of) => (this.implicit || of === null ? NaN : (of - this.low) / (this.high - this.low));
    return { item: known.map(([label]) => this.place.get(label)), value: known.map(([, of]) => scaled(of)) };
  }
  /** The best items for a history, with the ranking; only those with a feature, if one is given. */
  recommend(mine, { top = 10, only = -1, explain = true } = {}) {
    const people = this.history(mine), ranked = this.rank.ranked(people), taken = new Set(people.item);
    const allowed = (at) => !taken.has(at) && (only < 0 || this.features.row(at)[only] > 0);
    const best = this.labels.map((_, at) => at).filter(allowed);
    best.sort((one, other) => ranked.scores[other] - ranked.scores[one] || one - other).splice(top);
    const reasons = explain ? reasonsOf(this, people, ranked, best) : [];
    const raw = (at) => (ranked.predicted ? this.low + (this.high - this.low) * ranked.predicted[at] : null);
    const rows = best.map((at, line) => ({ at, item: this.items[at], score: ranked.scores[at], predicted: raw(at), reason: reasons[line] }));
    return { rows, ranked, known: people.item.length };
  }
}
