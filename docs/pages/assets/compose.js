// Masks combined pixel by pixel, and what the tile calculus knows of the combination from states alone.

import { choice, element } from "./controls.js";
import { pool, runs, keys, STATE_NAMES, unpackBits, UNKNOWN } from "./frames.js";
import { Stage, start } from "./stage.js";

export const PIXELS = { "&": (a, b) => a & b, "|": (a, b) => a | b, "-": (a, b) => a & (1 - b) };
const WORDS = { "&": "and", "|": "or", "-": "minus" };
const MOST = 4;
const LETTERS = "abcd";

class Compose {
  constructor(root, data) {
    Object.assign(this, { root, data });
    this.terms = this.read();
    this.form = element("form", { class: "am-controls am-terms", "aria-label": "Masks to combine" });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.stage = new Stage("The combined mask: queries from top to bottom, keys from left to right", (row) => this.describe(row));
    this.legend = element("p", { class: "am-legend", "aria-live": "polite" });
    this.code = element("code");
    this.table = element("div", { class: "am-table" });
    root.append(
      this.form,
      element("div", { class: "am-stage" }, this.stage.box, this.stage.words, this.legend),
      element("pre", { class: "am-code", tabindex: "0" }, this.code),
      this.table,
    );
    this.build();
    this.show();
  }

  /** The terms in the address, ?terms=sliding_window.and.document, else two to start with. */
  read() {
    const parts = (new URL(location.href).searchParams.get("terms") ?? "").split(".");
    const terms = [];
    for (let at = 0; at < parts.length && terms.length < MOST; at += 2) {
      const not = parts[at].startsWith("not-");
      const mask = this.data.masks.findIndex(({ name }) => name === parts[at].replace("not-", ""));
      const sign = Object.keys(WORDS).find((each) => WORDS[each] === parts[at - 1]) ?? "&";
      if (mask >= 0) terms.push({ sign, not, mask });
    }
    const named = (name) => this.data.masks.findIndex((each) => each.name === name);
    if (terms.length > 1) return terms;
    return [{ sign: "&", not: false, mask: named("sliding_window") }, { sign: "&", not: false, mask: named("document") }];
  }

  write() {
    const part = ({ not, mask }) => (not ? "not-" : "") + this.data.masks[mask].name;
    const text = this.terms.map((term, at) => (at ? `.${WORDS[term.sign]}.` : "") + part(term)).join("");
    history.replaceState(history.state, "", `${location.pathname}?terms=${text}${location.hash}`);
  }

  build() {
    const names = this.data.masks.map(({ title }) => title);
    const changed = (change) => (at) => {
      change(at);
      this.write();
      this.show();
    };
    this.form.replaceChildren();
    this.terms.forEach((term, number) => {
      const row = element("fieldset", { class: "am-term" }, element("legend", {}, LETTERS[number]));
      if (number) {
        const signs = Object.keys(PIXELS);
        row.append(choice("operator", signs.map((sign) => `${sign}  ${WORDS[sign]}`), signs.indexOf(term.sign), changed((at) => (term.sign = signs[at]))));
      }
      row.append(choice("mask", names, term.mask, changed((at) => (term.mask = at))));
      row.append(choice("complement ~", [false, true], Number(term.not), changed((at) => (term.not = at === 1))));
      this.form.append(row);
    });
    const button = (text, act) => {
      const made = element("button", { type: "button", class: "am-chip" }, text);
      made.addEventListener("click", () => {
        act();
        this.build();
        this.write();
        this.show();
      });
      this.form.append(made);
    };
    if (this.terms.length < MOST) button("Add a mask", () => this.terms.push({ sign: "&", not: false, mask: 0 }));
    if (this.terms.length > 2) button("Take the last one away", () => this.terms.pop());
  }

  pixels({ mask, not }) {
    const own = unpackBits(this.data.masks[mask].frame, this.data.length ** 2);
    return not ? own.map((bit) => 1 - bit) : own;
  }

  show() {
    const { length, block } = this.data;
    let left, right;
    let joined = this.pixels(this.terms[0]);
    for (const term of this.terms.slice(1)) {
      [left, right] = [joined, this.pixels(term)];
      joined = left.map((bit, at) => PIXELS[term.sign](bit, right[at]));
    }
    this.joined = joined;
    const zoom = Math.max(3, Math.min(6, Math.floor((this.root.clientWidth - 2) / length)));
    this.stage.drawPixels(joined, length, length, zoom, block);
    const kept = joined.reduce((sum, bit) => sum + bit, 0);
    this.legend.textContent = `${kept} of ${length ** 2} pairs kept, ${((100 * kept) / length ** 2).toFixed(1)} %. Lines every ${block} tokens.`;
    this.code.textContent = this.program();
    this.tell(...[left, right, joined].map((pixels) => pool(pixels, length, length, block).codes));
    if (this.stage.row !== null) this.stage.words.textContent = this.describe(this.stage.row);
    this.root.dataset.shown = this.terms.map(({ sign, not, mask }) => `${sign}${not ? "~" : ""}${mask}`).join(" ");
  }

  describe(row) {
    const { length } = this.data;
    const seen = runs(this.joined.subarray(row * length, (row + 1) * length), 1);
    return seen.length ? `row ${row} sees ${keys(seen)}` : `row ${row} sees no key`;
  }

  operand(at) {
    return (this.terms[at].not ? "~" : "") + LETTERS[at];
  }

  program() {
    const lines = ["import attn_mods as am", "from attn_mods import masks", ""];
    let joined = this.operand(0);
    this.terms.forEach((term, at) => {
      lines.push(`${LETTERS[at]} = ${this.data.masks[term.mask].code}`);
      if (at) joined = `${at > 1 ? `(${joined})` : joined} ${term.sign} ${this.operand(at)}`;
    });
    return [...lines, `mask = ${joined}`].join("\n");
  }

  /** How often each pair of states met, what the calculus makes of them, and what is true. */
  tell(left, right, joined) {
    const sign = this.terms.at(-1).sign;
    const rows = new Map();
    joined.forEach((state, tile) => {
      const key = left[tile] * 4 + right[tile];
      const row = rows.get(key) ?? { count: 0, truth: [0, 0, 0] };
      row.count += 1;
      row.truth[state] += 1;
      rows.set(key, row);
    });
    let settled = 0;
    const body = [...rows].sort((one, other) => one[0] - other[0]).map(([key, { count, truth }]) => {
      const claim = this.data.tables[sign][key >> 2][key & 3];
      if (claim !== UNKNOWN) settled += count;
      const found = truth.map((number, state) => (number ? `${number} ${STATE_NAMES[state]}` : "")).filter(Boolean).join(", ");
      const cells = [STATE_NAMES[key >> 2], STATE_NAMES[key & 3], count, STATE_NAMES[claim], found];
      return element("tr", {}, ...cells.map((text) => element("td", {}, `${text}`)));
    });
    const before = this.terms.length > 2 ? "all before" : this.operand(0), last = this.operand(this.terms.length - 1);
    const titles = [before, last, "blocks", "the states say", "true"].map((text) => element("th", { scope: "col" }, text));
    const caption = `${before} ${sign} ${last}: the states alone settle ${settled} of ${joined.length} blocks of ${this.data.block} x ${this.data.block}.`;
    this.table.replaceChildren(
      element("p", { class: "am-legend" }, caption),
      element("div", { class: "am-scroll", tabindex: "0", role: "region", "aria-label": "States of blocks" },
        element("table", { class: "am-states" }, element("thead", {}, element("tr", {}, ...titles)), element("tbody", {}, ...body))),
    );
  }
}

export async function startCompose(page, signal) {
  const root = page.querySelector(".am-compose");
  if (!root || root.dataset.shown) return;
  await start(root, signal, (data) => new Compose(root, data));
}
