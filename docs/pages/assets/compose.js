// The page on which masks are combined: controls, picture, program, and what the states of blocks tell.

import { Notice, strangers, write } from "./address.js";
import { PIXELS, steps } from "./composition.js";
import { choice, element } from "./controls.js";
import { keys, runs, STATE_NAMES, UNKNOWN } from "./frames.js";
import { Program } from "./program.js";
import { Stage, start } from "./stage.js";
import { MOST, readTerms, WORDS, writeTerms } from "./terms.js";

const SIGNS = Object.keys(PIXELS);
const LETTERS = "abcd";

class Compose {
  constructor(root, data, signal) {
    Object.assign(this, { root, data, names: data.masks.map(({ name }) => name) });
    this.notice = new Notice();
    this.form = element("form", { class: "am-controls am-terms", "aria-label": "Masks to combine" });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.stage = new Stage("The combined mask: queries from top to bottom, keys from left to right", (row) => this.describe(row));
    this.legend = element("p", { class: "am-legend", "aria-live": "polite" });
    this.program = new Program();
    this.tables = element("div", { class: "am-table" });
    root.append(
      this.notice.box,
      this.form,
      element("div", { class: "am-stage" }, this.stage.box, this.stage.words, this.legend),
      this.program.box,
      this.tables,
    );
    this.read();
    this.build();
    this.show();
    window.addEventListener("resize", () => this.zoom() === this.stage.zoom || this.show(), { signal });
  }

  read() {
    const { terms, problems } = readTerms(new URL(location.href).searchParams.get("terms"), this.names);
    this.terms = terms;
    this.notice.say([...problems, ...strangers(["terms"])], this.expressions((at) => this.names[this.terms[at].mask]).at(-1));
  }

  /** Draws what was chosen, which is what the address says from here on. */
  chosen() {
    write([["terms", writeTerms(this.terms, this.names)]]);
    this.notice.clear();
    this.show();
  }

  build() {
    this.form.replaceChildren(...this.terms.map((term, number) => this.row(term, number)));
    const add = () => this.terms.push({ sign: "&", not: false, mask: 0 });
    if (this.terms.length < MOST) this.form.append(this.button("Add a mask", add, ".am-term:last-of-type select"));
    const take = () => this.terms.pop();
    if (this.terms.length > 2) this.form.append(this.button("Take the last one away", take, ".am-chip:last-of-type"));
  }

  row(term, number) {
    const titles = this.data.masks.map(({ title }) => title), signs = SIGNS.map((sign) => `${sign}  ${WORDS[sign]}`);
    const changed = (change) => (at) => {
      change(at);
      this.chosen();
    };
    const row = element("fieldset", { class: "am-term" }, element("legend", {}, LETTERS[number]));
    if (number) row.append(choice("operator", signs, SIGNS.indexOf(term.sign), changed((at) => (term.sign = SIGNS[at]))));
    row.append(choice("mask", titles, term.mask, changed((at) => (term.mask = at))));
    row.append(choice("complement ~", [false, true], Number(term.not), changed((at) => (term.not = at === 1))));
    return row;
  }

  /** A button that changes how many masks there are; the controls are made anew, so focus goes on to one of them. */
  button(text, act, next) {
    const made = element("button", { type: "button", class: "am-chip" }, text);
    made.addEventListener("click", () => {
      act();
      this.build();
      this.form.querySelector(next).focus();
      this.chosen();
    });
    return made;
  }

  zoom() {
    return Math.max(3, Math.min(6, Math.floor((this.root.clientWidth - 2) / this.data.length)));
  }

  show() {
    const { length, block } = this.data;
    const applied = steps(this.data, this.terms);
    this.joined = applied.at(-1).pixels;
    this.stage.drawPixels(this.joined, length, length, this.zoom(), block);
    const kept = this.joined.reduce((sum, bit) => sum + bit, 0);
    this.legend.textContent = `${kept} of ${length ** 2} pairs kept, ${((100 * kept) / length ** 2).toFixed(1)} %. Lines every ${block} tokens.`;
    this.program.show(this.python());
    const expressions = this.expressions((at) => LETTERS[at]);
    this.tables.replaceChildren(...applied.flatMap((step, at) => this.told(step, expressions[at], expressions[at + 1], at + 1)));
    if (this.stage.row !== null) this.stage.words.textContent = this.describe(this.stage.row);
    this.root.dataset.shown = this.terms.map(({ sign, not, mask }) => `${sign}${not ? "~" : ""}${mask}`).join(" ");
  }

  describe(row) {
    const { length } = this.data;
    const seen = runs(this.joined.subarray(row * length, (row + 1) * length), 1);
    return seen.length ? `row ${row} sees ${keys(seen)}` : `row ${row} sees no key`;
  }

  operand(at, called) {
    return (this.terms[at].not ? "~" : "") + called(at);
  }

  /** The expression after no operator, after the first, and so on; called(at) names a mask. */
  expressions(called) {
    const found = [this.operand(0, called)];
    for (let at = 1; at < this.terms.length; at++) {
      const left = at > 1 ? `(${found.at(-1)})` : found[0];
      found.push(`${left} ${this.terms[at].sign} ${this.operand(at, called)}`);
    }
    return found;
  }

  python() {
    const lines = this.terms.map((term, at) => `${LETTERS[at]} = ${this.data.masks[term.mask].code}`);
    const joined = this.expressions((at) => LETTERS[at]).at(-1);
    return ["import attn_mods as am", "from attn_mods import masks", "", ...lines, `mask = ${joined}`].join("\n");
  }

  /** What the states say of one operator: a sentence, and how often each pair of states met. */
  told({ claims, rows }, before, whole, at) {
    const settled = claims.filter((claim) => claim !== UNKNOWN).length;
    const caption = `${whole}: the states alone settle ${settled} of ${claims.length} blocks of ${this.data.block} x ${this.data.block}.`;
    const head = [before, this.operand(at, (each) => LETTERS[each]), "blocks", "the states say", "true"];
    const body = rows.map(({ left, right, claim, blocks, truth }) => {
      const found = truth.map((number, state) => (number ? `${number} ${STATE_NAMES[state]}` : "")).filter(Boolean).join(", ");
      return [STATE_NAMES[left], STATE_NAMES[right], `${blocks}`, STATE_NAMES[claim], found];
    });
    const line = (tag, cells, attributes) => element("tr", {}, ...cells.map((text) => element(tag, attributes, text)));
    const table = element("table", { class: "am-states" },
      element("thead", {}, line("th", head, { scope: "col" })),
      element("tbody", {}, ...body.map((cells) => line("td", cells, {}))),
    );
    const region = { class: "am-scroll", tabindex: "0", role: "region", "aria-label": `States of blocks of ${whole}` };
    return [element("p", { class: "am-legend" }, caption), element("div", region, table)];
  }
}

export async function startCompose(page, signal) {
  const root = page.querySelector(".am-compose");
  if (!root || root.dataset.shown) return;
  await start(root, signal, (data) => new Compose(root, data, signal));
}
