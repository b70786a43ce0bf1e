// A person's own part of a model, solved from the person's history.
// It mirrors published/ranking.py function by function: what changes there has to change here. Arrays that
// are float32 there are Float32Array here, so that both come to the same scores.

const RARE = 0.02; // of popularity, relative to the mean item
const LIKED = 0.75, UNSURE = 0.2; // a rating that is liked, and how far predictions are off
const USUAL = 0.7; // a usual rating
const STRENGTHS = [0.1, 0.3, 1.0, 3.0]; // prior variances of interests, with many items
const FIRST = 4; // times as much, over the number of items: what is picked first suits most
const USED = 0.25; // squared length of an axis above which it is used
const STEPS = 1 << 10; // how likely an item is liked is computed at so many ratings from 0 to 1
const LIKELY = Float64Array.from({ length: STEPS + 2 }, (_, step) => logLiked(step / STEPS));
const SLOPE = Float32Array.from({ length: STEPS + 1 }, (_, step) => LIKELY[step + 1] - LIKELY[step]);
const OFFSET = Float32Array.from(SLOPE, (_, step) => LIKELY[step] - (LIKELY[step + 1] - LIKELY[step]) * step);

/** The logarithm of how likely an item is liked, by its predicted rating. */
function logLiked(predicted) {
  const x = (LIKED - predicted) / UNSURE / Math.SQRT2;
  let term = x, sum = x;
  for (let n = 1; Math.abs(term) > 1e-18 && n < 200; n++) sum += term *= (2 * x * x) / (2 * n + 1);
  return Math.log((1 - (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum) / 2); // erfc / 2
}

/** A table of numbers: one row after the other. */
export class Table {
  constructor(rows, width, data = new Float64Array(rows * width)) {
    Object.assign(this, { rows, width, data });
  }
  /** A table whose rows are filled one by one. */
  static filled(rows, width, fill) {
    const found = new Table(rows, width);
    for (let at = 0; at < rows; at++) fill(found.row(at), at);
    return found;
  }
  row(at) { return this.data.subarray(at * this.width, (at + 1) * this.width); }
  column(at) { return Float64Array.from({ length: this.rows }, (_, row) => this.data[row * this.width + at]); }
  single() { return new Table(this.rows, this.width, Float32Array.from(this.data)); }
  /** The columns from one up to another. */
  columns(begin, end = this.width) { return Table.filled(this.rows, end - begin, (row, at) => row.set(this.row(at).subarray(begin, end))); }
  /** This table times another. */
  times(other) {
    const add = (to) => (number, by) => number && other.row(by).forEach((of, column) => { to[column] += number * of; });
    return Table.filled(this.rows, other.width, (to, at) => this.row(at).forEach(add(to)));
  }
  /** The sum of the rows' outer products with themselves, each with its weight. */
  squared(weight = () => 1) {
    const found = new Table(this.width, this.width);
    for (let at = 0; at < this.rows; at++) {
      const row = this.row(at), by = weight(at);
      row.forEach((number, to) => number && found.row(to).forEach((_, column, sums) => { sums[column] += by * number * row[column]; }));
    }
    return found;
  }
  /** The same table with something added to or multiplied with each column. */
  each(change) { return new Table(this.rows, this.width, this.data.map((of, at) => change(of, at % this.width))); }
}

export const dot = (one, other) => { let sum = 0; for (let at = 0; at < one.length; at++) sum += one[at] * other[at]; return sum; };

/** Tables beside each other. */
function beside(...tables) {
  const begins = tables.map((_, at) => tables.slice(0, at).reduce((sum, of) => sum + of.width, 0));
  const width = tables.reduce((sum, of) => sum + of.width, 0);
  return Table.filled(tables[0].rows, width, (row, at) => tables.forEach((of, by) => row.set(of.row(at), begins[by])));
}

/** Solves a system whose table is symmetric and positive, by Cholesky's factors. */
function solved(normal, right) {
  const size = right.length, own = Float64Array.from(right);
  for (let at = 0; at < size; at++) {
    const row = normal.row(at);
    for (let by = 0; by <= at; by++) {
      const above = normal.row(by);
      const rest = row[by] - dot(row.subarray(0, by), above.subarray(0, by));
      row[by] = by === at ? Math.sqrt(rest) : rest / above[by];
    }
    own[at] = (own[at] - dot(row.subarray(0, at), own.subarray(0, at))) / row[at];
  }
  for (let at = size - 1; at >= 0; at--) {
    for (let below = at + 1; below < size; below++) own[at] -= normal.row(below)[at] * own[below];
    own[at] /= normal.row(at)[at];
  }
  return own;
}

/** Eigenvalues and the turn to the eigenvectors, its columns, of a symmetric table: Jacobi's rotations. */
function turned(symmetric) {
  const size = symmetric.width, a = symmetric.data, turn = new Table(size, size), v = turn.data;
  for (let at = 0; at < size; at++) v[at * size + at] = 1;
  for (let sweep = 0; sweep < 30; sweep++) { // far more than are needed: what has become diagonal is passed over
    for (let p = 0; p < size; p++) for (let q = p + 1; q < size; q++) rotate(a, v, size, p, q);
  }
  return { variance: Float64Array.from({ length: size }, (_, at) => a[at * size + at]), turn };
}

function rotate(a, v, size, p, q) {
  const off = a[p * size + q];
  if (Math.abs(off) <= 1e-17 * Math.sqrt(Math.abs(a[p * size + p] * a[q * size + q]))) return;
  const half = (a[q * size + q] - a[p * size + p]) / (2 * off);
  const t = (half < 0 ? -1 : 1) / (Math.abs(half) + Math.hypot(half, 1));
  const c = 1 / Math.hypot(t, 1), s = t * c;
  const mix = (data, i, j) => { const x = data[i], y = data[j]; data[i] = c * x - s * y; data[j] = s * x + c * y; };
  for (let k = 0; k < size; k++) mix(a, k * size + p, k * size + q);
  for (let k = 0; k < size; k++) mix(a, p * size + k, q * size + k);
  for (let k = 0; k < size; k++) mix(v, k * size + p, k * size + q);
}

/** What makes rankings from what was released; one for each kind of model. A history has `item` and `value`. */
class Ranker {
  constructor(released, features, settings, implicit) {
    Object.assign(this, { released, features, settings, implicit });
    this.quality = released.column(0);
    this.base = this.quality.map((of) => settings.mean + of); // before anything of the person
    [this.table, this.penalty] = this.responses();
    this.singles = { base: Float32Array.from(this.base), table: this.table.single() };
  }
  /** A person's responses: (X'X + diag(penalty)) w = X'y of their own ratings; NaN is no rating. */
  own({ item, value }) {
    const width = this.table.width, normal = new Table(width, width), right = new Float64Array(width);
    this.penalty.forEach((of, at) => { normal.row(at)[at] = of; });
    item.forEach((of, at) => {
      if (Number.isNaN(value[at])) return;
      const row = this.table.row(of), target = value[at] - this.base[of];
      row.forEach((number, to) => {
        right[to] += number * target;
        const sums = normal.row(to);
        for (let by = 0; by < width; by++) sums[by] += number * row[by];
      });
    });
    return solved(normal, right);
  }
  /** Predicted ratings of all items from 0 to 1. */
  predicted(own) {
    const { base, table } = this.singles, single = Float32Array.from(own);
    return base.map((of, at) => Math.min(Math.max(Math.fround(dot(single, table.row(at))) + of, 0), 1));
  }
  /** The ranking of all items for a person: by predicted rating. */
  ranked(history) {
    const predicted = this.predicted(this.own(history));
    return { scores: predicted, predicted, why: {}, because: null };
  }
  /** Where items lie: those that the same people like are near each other. */
  places() { return this.table.columns(1); }
}

/** Level, popularity and quality; released: quality, popularity, and how sure they are. */
class BiasRanker extends Ranker {
  responses() {
    const { released, settings } = this;
    const table = Table.filled(released.rows, 3, (row, at) => row.set([1, released.row(at)[1], released.row(at)[0]]));
    return [table, ["level", "popularity", "quality"].map((name) => settings[`${name}_shrinkage`])];
  }
}

/** Biases and factors of the items; a person's factors are solved from the history. */
class FactorRanker extends Ranker {
  responses() {
    const { released, settings } = this, factors = released.columns(1);
    const ones = new Table(released.rows, 1).each(() => 1);
    return [beside(ones, factors), [settings.bias_shrinkage, ...new Array(factors.width).fill(settings.factor_shrinkage)]];
  }
}

/** Biases, leanings, axes of taste; released: those of the biases, share, one more, axes. */
class TasteRanker extends BiasRanker {
  responses() {
    const { settings, released } = this;
    const counted = released.column(3).map((of) => Math.max(of, 0) + 1e-30); // all alike if none was counted
    const total = counted.reduce((sum, of) => sum + of, 0);
    this.share = counted.map((of) => of / total);
    const share = new Table(1, released.rows, this.share);
    const centred = (table) => { const mean = share.times(table).data; return table.each((of, column) => of - mean[column]); };
    const squares = (table, weight) => table.squared(weight).data.filter((_, at) => at % (table.width + 1) === 0);
    const features = centred(this.features), raw = released.columns(5);
    const strength = squares(raw).map((of) => Math.min(Math.max((of - USED) / (1 - USED), 0), 1));
    let axes = centred(raw);
    const spread = squares(axes, (at) => this.share[at]).map(Math.sqrt);
    axes = axes.each((of, column) => (spread[column] > 1e-9 ? (of / spread[column]) * strength[column] ** 0.5 : 0));
    this.axes = axes.width;
    const scale = (name) => settings[`${name}_shrinkage`] ** -0.5;
    this.featureScale = scale("interest");
    this.moved = beside(axes.each((of) => of * scale("taste")), features.each((of) => of * this.featureScale));
    Object.assign(this, turned(this.moved.squared((at) => this.share[at])));
    this.interests = this.moved.times(this.turn);
    this.interestsSingle = this.interests.single();
    const weight = Math.fround(settings.popularity_weight), mean = 1 / released.rows;
    this.popular = Float32Array.from(this.share, (of) => Math.fround(Math.log(of + RARE * mean)) * weight);
    this.popularity = this.share.map((of) => Math.log(of * released.rows + RARE));
    const [base, penalty] = super.responses();
    const same = (times, name) => new Array(times).fill(settings[`${name}_shrinkage`]);
    return [beside(base, axes, features), [...penalty, ...same(axes.width, "axis"), ...same(features.width, "feature")]];
  }
  /** The person's weights of the interests, the gain of each, and each entry's weight. */
  drawn({ item, value }) {
    const weight = value.map((of) => (this.implicit ? 1 : (Number.isNaN(of) ? USUAL : of) / USUAL));
    const total = new Float64Array(this.interests.width), squares = total.slice();
    const sum = weight.reduce((one, of) => one + of, 0), each = weight.reduce((one, of) => one + of * of, 0) / Math.max(sum, 1e-12);
    item.forEach((of, at) => this.interests.row(of).forEach((number, to) => {
      total[to] += weight[at] * number;
      squares[to] += (weight[at] * number) ** 2;
    }));
    const variance = this.variance.map((of) => Math.max(of, 0));
    const strengths = STRENGTHS.map((of) => of * (1 + FIRST / Math.max(sum, USUAL)));
    const likely = strengths.map((strength) => variance.reduce((one, of, at) => {
      const gain = 1 / ((sum - each) * of + 1 / strength), others = (sum - 2 * each) * total[at] ** 2 + each * squares[at];
      return one + gain * (total[at] ** 2 - squares[at]) - 0.5 * of * gain ** 2 * others;
    }, 0));
    const best = Math.max(...likely), odds = likely.map((of) => Math.exp(of - best));
    const all = odds.reduce((one, of) => one + of, 0);
    const gain = variance.map((of) => odds.reduce((one, odd, at) => one + odd / all / (sum * of + 1 / strengths[at]), 0));
    return { weights: total.map((of, at) => of * gain[at]), gain, weight };
  }
  /** How likely the person is to pick each item and to like it, as a logarithm. */
  ranked(history) {
    const bold = this.settings.boldness, { weights, gain, weight } = this.drawn(history);
    const single = Float32Array.from(weights, (of) => bold * of);
    const scores = this.popular.map((of, at) => Math.fround(dot(single, this.interestsSingle.row(at))) + of);
    const own = this.implicit ? null : this.own(history), predicted = own && this.predicted(own);
    predicted?.forEach((of, at) => {
      const step = Math.trunc(of * STEPS);
      scores[at] += Math.fround(of * STEPS * SLOPE[step]);
      scores[at] += OFFSET[step];
    });
    const pulls = Float64Array.from({ length: this.moved.width }, (_, at) => bold * dot(this.turn.row(at), weights));
    const taste = pulls.subarray(0, this.axes);
    const why = {
      popularity: this.popularity, quality: this.implicit ? null : this.quality,
      leaning: own && own.subarray(3 + this.axes), interest: pulls.subarray(this.axes).map((of) => of * this.featureScale),
      tastes: this.axes ? (at) => dot(taste, this.moved.row(at)) : null,
    };
    const because = history.item.map((of, at) => this.interests.row(of).map((number, by) => weight[at] * number * bold * gain[by]));
    return { scores, predicted, why, because };
  }
  /** Where items lie: by axes and features, as people's interests weigh them. */
  places() { return this.interests; }
}

export const RANKERS = { biases: BiasRanker, factorization: FactorRanker, tastes: TasteRanker };
