// Reads what the recipe computed: matrices packed into text when the site was made. No rule of any mask is in here.

export const EMPTY = 0, FULL = 1, MIXED = 2, UNKNOWN = 3;
export const STATE_NAMES = ["empty", "full", "mixed", "unknown"];
export const LEVELS = 15;

function bytesOf(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** A matrix of 0 and 1, row by row, of one bit a pair. */
export function unpackBits(text, length) {
  const bytes = bytesOf(text);
  return Uint8Array.from({ length }, (_, at) => (bytes[at >> 3] >> (7 - (at & 7))) & 1);
}

/** A matrix of levels from 0 to LEVELS, row by row, of four bits a pair. */
export function unpackLevels(text, length) {
  const bytes = bytesOf(text);
  return Uint8Array.from({ length }, (_, at) => (at & 1 ? bytes[at >> 1] & 15 : bytes[at >> 1] >> 4));
}

/** The state of every tile, counted from its pixels: {rows, columns, codes}. */
export function pool(pixels, rows, columns, block) {
  const down = Math.ceil(rows / block), across = Math.ceil(columns / block);
  const kept = new Uint32Array(down * across), all = new Uint32Array(down * across);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const tile = Math.floor(row / block) * across + Math.floor(column / block);
      all[tile] += 1;
      kept[tile] += pixels[row * columns + column];
    }
  }
  const codes = kept.map((count, tile) => (count === 0 ? EMPTY : count === all[tile] ? FULL : MIXED));
  return { rows: down, columns: across, codes };
}

/** Positions that hold a value, as words: "3-5, 9". */
export function runs(row, wanted) {
  const parts = [];
  for (let start = 0; start < row.length; start++) {
    if (row[start] !== wanted) continue;
    let end = start;
    while (end + 1 < row.length && row[end + 1] === wanted) end += 1;
    parts.push(start === end ? `${start}` : `${start}-${end}`);
    start = end;
  }
  return parts;
}

/** "key 3", "keys 3-5", or the first few of many. */
export function keys(parts) {
  const most = 6;
  const shown = parts.slice(0, most).join(", ") + (parts.length > most ? ` and ${parts.length - most} more runs` : "");
  return `${parts.length === 1 && !parts[0].includes("-") ? "key" : "keys"} ${shown}`;
}

export async function load(url) {
  const answer = await fetch(new URL(url, location.href));
  if (!answer.ok) throw new Error(`${url}: ${answer.status}`);
  return answer.json();
}
