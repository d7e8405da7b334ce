// Masks combined pixel by pixel, and what the tile calculus says of every operator from the states of its two sides.

import { pool, unpackBits } from "./frames.js";

export const PIXELS = { "&": (a, b) => a & b, "|": (a, b) => a | b, "-": (a, b) => a & (1 - b) };

/** The pixels of a term: a mask, or its complement. */
function pixelsOf(data, { mask, not }) {
  const own = unpackBits(data.masks[mask].frame, data.length ** 2);
  return not ? own.map((bit) => 1 - bit) : own;
}

/**
 * The operators in the order in which they are applied: {sign, pixels, claims, rows}. The left side of the first is a
 * mask's own states; that of a later one is only what the states said of all before, which may be unknown.
 */
export function steps(data, terms) {
  const { length, block, tables } = data;
  const statesOf = (pixels) => pool(pixels, length, length, block).codes;
  let pixels = pixelsOf(data, terms[0]);
  let known = statesOf(pixels);
  return terms.slice(1).map((term) => {
    const other = pixelsOf(data, term);
    const left = known, right = statesOf(other);
    pixels = pixels.map((bit, at) => PIXELS[term.sign](bit, other[at]));
    known = left.map((state, tile) => tables[term.sign][state][right[tile]]);
    return { sign: term.sign, pixels, claims: known, rows: met(left, right, known, statesOf(pixels)) };
  });
}

/** Every pair of states that met: {left, right, claim, blocks, truth}, truth counting blocks by their true state. */
function met(left, right, claims, truth) {
  const rows = new Map();
  truth.forEach((state, tile) => {
    const key = left[tile] * 4 + right[tile];
    if (!rows.has(key)) {
      rows.set(key, { left: left[tile], right: right[tile], claim: claims[tile], blocks: 0, truth: [0, 0, 0] });
    }
    const row = rows.get(key);
    row.blocks += 1;
    row.truth[state] += 1;
  });
  return [...rows].sort(([one], [other]) => one - other).map(([, row]) => row);
}
