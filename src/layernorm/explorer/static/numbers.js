// SPDX-License-Identifier: MIT
// This file is the arithmetic of the page: norms in exact order, the narrow types bit by bit, and the ways to a variance.
"use strict";

const LN = {};

// -- types: a number of each is a JavaScript number that the type can hold --

LN.TYPES = {
  float64: { digits: 53, least: -1074, most: Number.MAX_VALUE },
  float32: { digits: 24, least: -149, most: 3.4028234663852886e38 },
  float16: { digits: 11, least: -24, most: 65504 },
  bfloat16: { digits: 8, least: -133, most: 3.3895313892515355e38 },
};

/** Round to the nearest number of a type, ties to even. */
LN.round = (x, type = "float64") => {
  if (type === "float64" || x === 0 || !Number.isFinite(x)) return x;
  if (type === "float32") return Math.fround(x);
  const { digits, least, most } = LN.TYPES[type];
  const exponent = Math.max(exponentOf(x) - digits + 1, least);
  const unit = 2 ** exponent;
  const rounded = evenly(x / unit) * unit;
  return Math.abs(rounded) > most ? Math.sign(x) * Infinity : rounded;
};

// Math.log2 rounds: just below a power of two it may give the power
function exponentOf(x) {
  const size = Math.abs(x);
  let exponent = Math.floor(Math.log2(size));
  if (2 ** exponent > size) exponent -= 1;
  if (2 ** (exponent + 1) <= size) exponent += 1;
  return exponent;
}

function evenly(x) {
  const floor = Math.floor(x), rest = x - floor;
  if (rest < 0.5) return floor;
  if (rest > 0.5) return floor + 1;
  return floor % 2 === 0 ? floor : floor + 1;
}

/** Give the number that sixteen bits of a half stand for. */
LN.halfOf = (bits) => {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1024 + fraction) * 2 ** (exponent - 25);
};

// -- sums --

/** Add numbers as if with twice the digits (Neumaier 1974); gives the sum and what rounding took from it. */
function summed(values) {
  let sum = 0, lost = 0;
  for (const v of values) {
    const next = sum + v;
    lost += Math.abs(sum) >= Math.abs(v) ? sum - next + v : v - next + sum;
    sum = next;
  }
  return Number.isFinite(sum + lost) ? [sum, lost] : [sum, 0];
}

LN.sum = (values) => {
  const [sum, lost] = summed(values);
  return sum + lost;
};

/** Say how far apart two rows are in any one place. */
LN.apart = (a, b) => Math.max(...a.map((v, i) => Math.abs(v - b[i])));

/** Give the mean and the variance of a row, and the row less its mean. */
LN.moments = (x) => {
  const [sum, lost] = summed(x), mean = (sum + lost) / x.length;
  // the mean was rounded once: the differences make up for it
  const off = LN.sum(x.map((v) => v - mean)) / x.length;
  const centered = x.map((v) => v - mean - off);
  return { mean: mean + off, variance: LN.sum(centered.map((d) => d * d)) / x.length, centered };
};

const at = (values, i, otherwise) => (values ? values[i % values.length] : otherwise);

/** Layer norm of one row, in float64. */
LN.layer = (x, { eps = 1e-5, gamma = null, beta = null } = {}) => {
  const { variance, centered } = LN.moments(x), root = Math.sqrt(variance + eps);
  return centered.map((d, i) => (d / root) * at(gamma, i, 1) + at(beta, i, 0));
};

/** RMS norm of one row, in float64. */
LN.rms = (x, { eps = 1e-6, gamma = null } = {}) => {
  const root = Math.sqrt(LN.sum(x.map((v) => v * v)) / x.length + eps);
  return x.map((v, i) => (v / root) * at(gamma, i, 1));
};

// -- norms over a tensor: {shape, values}, the last axis running fastest --

/** Say to which group each value belongs: `same(index)` gives what all values of a group share. */
LN.groups = (shape, same) => {
  const found = new Map(), of = [];
  const index = shape.map(() => 0);
  for (let k = 0; k < shape.reduce((a, b) => a * b, 1); k += 1) {
    const key = same(index).join(",");
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(k);
    of.push(key);
    for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
      index[axis] += 1;
      if (index[axis] < shape[axis]) break;
      index[axis] = 0;
    }
  }
  const order = [...found.keys()];
  return { members: [...found.values()], of: of.map((key) => order.indexOf(key)) };
};

/** What the values of one group of a norm have in common, by the index of a value (sample, token, feature). */
LN.SHARED = {
  layer: () => (i) => [i[0], i[1]],
  rms: () => (i) => [i[0], i[1]],
  "layer over tokens too": () => (i) => [i[0]],
  instance: () => (i) => [i[0], i[2]],
  group: (shape, groups = 2) => (i) => [i[0], Math.floor((i[2] * groups) / shape[2])],
  batch: () => (i) => [i[2]],
};

/** Normalize each group of a tensor. */
LN.overGroups = (values, members, { eps = 1e-5, centered = true } = {}) => {
  const out = new Array(values.length);
  for (const group of members) {
    const x = group.map((k) => values[k]), y = centered ? LN.layer(x, { eps }) : LN.rms(x, { eps });
    group.forEach((k, i) => { out[k] = y[i]; });
  }
  return out;
};

// -- the same in a narrow type, rounded after each step, as a framework that stays in the type does it --

const WIDER = { float64: "float64", float32: "float32", float16: "float32", bfloat16: "float32" };

/** Add up one after the other; 16-bit types are summed in float32, as NumPy, PyTorch and processors do. */
function added(values, type) {
  return values.reduce((sum, v) => LN.round(sum + v, WIDER[type]), 0);
}

/** The ways to a mean and a variance in a type; each gives {mean, variance}. */
LN.WAYS = {
  "two passes": (x, type) => {
    const r = (v) => LN.round(v, type), mean = r(added(x, type) / x.length);
    const squares = x.map((v) => r(r(v - mean) * r(v - mean)));
    return { mean, variance: r(added(squares, type) / x.length) };
  },
  "one pass": (x, type) => {
    const r = (v) => LN.round(v, type), mean = r(added(x, type) / x.length);
    return { mean, variance: r(r(added(x.map((v) => r(v * v)), type) / x.length) - r(mean * mean)) };
  },
  Welford: (x, type) => {
    const r = (v) => LN.round(v, type);
    let mean = 0, squares = 0;
    x.forEach((v, i) => {
      const d = r(v - mean);
      mean = r(mean + r(d / (i + 1)));
      squares = r(squares + r(d * r(v - mean)));
    });
    return { mean, variance: r(squares / x.length) };
  },
};

/** Layer norm in a type, by one of the ways; what epsilon and each value become in the type is part of it. */
LN.narrow = (x, { type = "float32", way = "two passes", eps = 1e-5 } = {}) => {
  const r = (v) => LN.round(v, type), held = x.map(r);
  const { mean, variance } = LN.WAYS[way](held, type), epsilon = r(eps);
  const root = r(Math.sqrt(r(variance + epsilon)));
  return { held, mean, variance, eps: epsilon, y: held.map((v) => r(r(v - mean) / root)) };
};

/** Layer norm as this library promises it: sums in float64 whatever the type, rounded once at the end. */
LN.exact = (x, { type = "float32", eps = 1e-5 } = {}) => {
  const held = x.map((v) => LN.round(v, type));
  return LN.layer(held, { eps }).map((y) => LN.round(y, type));
};

// -- random numbers that a link can carry --

/** Make a generator of uniform numbers in [0, 1) from a seed (mulberry32). */
LN.uniform = (seed) => {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
};

/** Make a generator of normal numbers (Box and Muller 1958). */
LN.normal = (seed) => {
  const next = LN.uniform(seed);
  return () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
};

/** Make a tensor of 2 examples, 3 tokens and 4 features of whole numbers from 1 to 9, for eyes to follow. */
LN.small = (seed) => {
  const next = LN.uniform(seed);
  return Array.from({ length: 24 }, () => 1 + Math.floor(9 * next()));
};

/** Fold a list of values into nested lists of a shape. */
LN.nested = (values, shape) => {
  if (shape.length < 2) return values;
  const each = values.length / shape[0];
  return Array.from({ length: shape[0] }, (_, i) => LN.nested(values.slice(i * each, (i + 1) * each), shape.slice(1)));
};
