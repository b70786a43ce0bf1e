// Why an item is on a person's list, in words, and what lists are worth: mirrors published/reasons.py and verdict.py.

import { dot } from "./ranking.js";
import { text } from "./texts.js";

const TENTH = 0.1; // a rating so much higher counts as an item that is about three times as likely
const HIGHER = 0.02; // on the scale of 0 to 1: what is less is not worth a word
export const OFTEN = Math.log(1.5);
const POPULAR = Math.log(2.0);
const DRAWN = 0.3; // how much the history must add to the logarithm of how likely an item is picked
const CARRIES = 0.05; // and how much of that an item of the history that is named
const HIGH = 0.7; // the least rating that is called high, if the person's own mean is not higher
const CLASS = /^(-?\d[\d.e+-]*) to (-?\d[\d.e+-]*)$/;
const YEARS = /^(\d{4}(?:\.\d+)?) to (\d{4}(?:\.\d+)?)$/;
const DATE = /year|date|released|published/i;
const HASHED = /^(words )?\d+$/;

/** A reason for each item of a person's list; null where there is none. */
export function reasonsOf(model, people, ranked, items) {
  const { why } = ranked, stars = model.low >= 0 && model.high >= 3 && model.high <= 10;
  const names = model.names.map(plainName), whom = text(model.learned ? "whom.others" : "whom.chance");
  const history = ofHistory(model, people, ranked);
  return items.map((item) => {
    const kind = (why.popularity?.[item] >= POPULAR) + 2 * (why.quality?.[item] >= HIGHER);
    const [leaning, leaned] = ofFeatures(model.features.row(item), names, why.leaning);
    const [interest, picked] = ofFeatures(model.features.row(item), names, why.interest);
    const [drawn, said] = history(item), own = [leaning >= HIGHER ? leaning / TENTH : 0, 0, drawn >= DRAWN ? drawn : 0];
    if (interest >= OFTEN && interest >= 2 * own[2]) own[1] = interest; // or else the history says it as well
    const clauses = [
      () => {
        const higher = why.leaning[leaned] * (model.high - model.low);
        return text(stars ? "leaning.stars" : "leaning.points", { what: names[leaned], much: stars ? higher.toFixed(1) : short(higher) });
      },
      () => text("interest", { what: names[picked], often: short(Math.exp(why.interest[picked])), whom }),
      () => said,
    ];
    const most = Math.max(...own), found = most > 0 ? [clauses[own.indexOf(most)]()] : kind ? [text(`liked.${kind}`)] : [];
    if (!people.item.length) found.push(text("new"));
    return found.length ? found.join("; ") : null;
  });
}

/** Two digits that say something. */
export const short = (number) => String(Number(number.toPrecision(2)));

/** How far a person's history moved an item up, and in words what of it did. */
function ofHistory(model, { item, value }, ranked) {
  const tastes = ranked.why.tastes ?? (() => 0), plain = text("like.you");
  if (!ranked.because || !model.titles || !item.length) return (at) => [tastes(at), plain];
  const rated = value.map((of) => of || 0);
  const usual = Math.max(rated.reduce((sum, of) => sum + of, 0) / rated.length, HIGH);
  return (at) => {
    let together = 0, most = -Infinity, first = 0;
    ranked.because.forEach((row, by) => {
      const added = dot(row, model.where.row(at));
      together += added;
      if (!(value[by] < usual) && added > most) [most, first] = [added, by];
    });
    if (most < CARRIES || together < DRAWN) return [tastes(at), plain];
    return [together, text(rated[first] > 0 ? "because.rated" : "because.picked", { title: model.titles[item[first]] })];
  };
}

/** How far a feature with a name moved an item up at most, and which; no further than all together did. */
function ofFeatures(row, names, values) {
  if (!values || !row.length) return [0, 0];
  let most = -Infinity, which = 0;
  row.forEach((of, at) => {
    const added = names[at] === null ? 0 : of * values[at];
    if (added > most) [most, which] = [added, at];
  });
  return [Math.min(most, dot(row, values)), which];
}

/** A feature as people would call it; null for hashed words and embeddings. */
export function plainName(name) {
  const colon = name.indexOf(": ");
  if (colon < 0) return name.replaceAll("_", " ");
  const column = name.slice(0, colon), part = name.slice(colon + 2);
  if (HASHED.test(part)) return null;
  const years = DATE.test(column) ? YEARS.exec(part) : null;
  if (!years) return CLASS.test(part) ? text("class", { column, part }) : part;
  const [first, end] = years.slice(1).map((of) => Math.ceil(Number(of)));
  const last = Math.max(first, end - 1), decade = first - (first % 10); // the end begins the next class
  if (last - decade > 9) return text("years", { first, last });
  const third = last - first < 6 ? Math.trunc((first + last - 2 * decade) / 7) : 3;
  const named = decade >= 1920 && decade < 2000;
  return text(`decade.${third}`, { decade: named ? text(`decade.name.${decade}`) : text("decade.other", { decade }) });
}

/** What to expect of lists from a model: a headline and the reasons for it, as far as the file can tell. */
export function verdictOf({ evidence, guarantee, learned }) {
  const axes = Math.trunc(evidence.axes ?? 0), features = Math.trunc(evidence.features ?? 0);
  const more = text(guarantee.private ?? true ? "verdict.more" : "verdict.more.people");
  if (!learned) return [text(features ? "verdict.features" : "verdict.nothing"), more];
  const said = [text("verdict.axes", { n: axes })];
  const known = evidence.popularity;
  if (known !== undefined) said.unshift(text(known >= 0.8 ? "verdict.well" : known >= 0.3 ? "verdict.roughly" : "verdict.hardly"));
  if (features) said.push(text("verdict.helped", { features }));
  if (axes >= 3 || (axes && features)) return [text("verdict.clearly"), ...said];
  return [text(axes || features ? "verdict.somewhat" : "verdict.popularity"), ...said, more];
}
