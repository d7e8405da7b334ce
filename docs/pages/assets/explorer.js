// The explorer of a recipe: replays the frames that the Python recipe computed.

import { Notice, readOptions, writeOptions, written } from "./address.js";
import { choice, element, toggle } from "./controls.js";
import { keys, LEVELS, pool, runs, unpackBits, unpackLevels } from "./frames.js";
import { Program } from "./program.js";
import { Stage, start } from "./stage.js";

const BLOCKS = [4, 8, 16];
const VIEWS = ["tokens", "blocks"];
const ZOOMS = [3, 4, 5, 6, 8, 10, 12, 16, 20, 24];
const AUTOMATIC = "automatic";
const WIDEST = 400;
const EMPTY_MARK = "am-mark-empty", MIXED_MARK = "am-mark-mixed", FULL_MARK = "am-mark-full";

/** What can be chosen, and stands in the address under this name, which is the label with hyphens. */
const option = (label, values, start) => ({ label, name: label.replaceAll(" ", "-"), values, start, at: start });

class Explorer {
  constructor(root, data, signal) {
    Object.assign(this, { root, data, mask: data.kind === "mask" });
    this.axes = data.axes.map(({ name, values, start }) => option(name, values, start));
    const sizes = data.lengths.map(({ q_len, kv_len }) => (q_len === kv_len ? q_len : `${q_len} x ${kv_len}`));
    this.length = option("length", sizes, sizes.length > 1 ? 1 : 0);
    this.block = option("block size", BLOCKS, BLOCKS.indexOf(8));
    this.view = option("view", VIEWS, 0);
    this.zooming = option("zoom", [AUTOMATIC, ...ZOOMS], 0);
    this.options = [...this.axes, this.length, ...(this.mask ? [this.view, this.block] : []), this.zooming];
    this.notice = new Notice();
    this.stage = new Stage(`${data.name}: queries from top to bottom, keys from left to right`, (row) => this.describe(row));
    this.legend = element("p", { class: "am-legend", "aria-live": "polite" });
    this.program = new Program();
    const problems = readOptions(this.options);
    root.append(
      this.notice.box,
      element("div", { class: "am-stage" }, this.stage.box, this.stage.words, this.legend),
      this.controls(),
      this.program.box,
    );
    this.show();
    this.notice.say(problems, this.options.map(({ label, values, at }) => `${label} ${written(values[at])}`).join(", "));
    window.addEventListener("resize", () => this.zoom() === this.stage.zoom || this.show(), { signal });
  }

  controls() {
    const set = (moved) => (at) => {
      moved.at = at;
      writeOptions(this.options);
      this.notice.clear();
      this.show();
    };
    const several = [...this.axes, this.length, this.zooming].filter(({ values }) => values.length > 1);
    const controls = several.map((each) => choice(each.label, each.values, each.at, set(each)));
    if (this.mask) {
      controls.push(choice(this.block.label, BLOCKS, this.block.at, set(this.block)));
      controls.unshift(toggle("View", VIEWS, VIEWS[this.view.at], (name) => set(this.view)(VIEWS.indexOf(name))));
    }
    const form = element("form", { class: "am-controls", "aria-label": "Explorer" }, ...controls);
    form.addEventListener("submit", (event) => event.preventDefault());
    return form;
  }

  /** Pixels a token: as chosen, else as many as fit the page as it is. */
  zoom() {
    const { kv_len } = this.shown();
    const room = Math.min(WIDEST, this.root.clientWidth - 2);
    const { values, at } = this.zooming;
    return values[at] !== AUTOMATIC ? values[at] : [...ZOOMS].reverse().find((zoom) => zoom * kv_len <= room) ?? ZOOMS[0];
  }

  /** The frames of the length that is shown. */
  shown() {
    return this.data.lengths[this.length.at];
  }

  /** The number of the frame: the last axis moves fastest. */
  number() {
    return this.shown().frames[this.axes.reduce((sum, { values, at }) => sum * values.length + at, 0)];
  }

  show() {
    const { q_len, kv_len } = this.shown();
    const number = this.number(), block = BLOCKS[this.block.at];
    this.possible = number >= 0;
    const count = q_len * kv_len;
    const unpack = this.mask ? unpackBits : unpackLevels;
    this.pixels = this.possible ? unpack(this.data.frames[number], count) : new Uint8Array(count);
    if (this.mask && VIEWS[this.view.at] === "blocks") {
      this.stage.drawTiles(pool(this.pixels, q_len, kv_len, block), q_len, kv_len, this.zoom(), block);
    } else {
      this.stage.drawPixels(this.pixels, q_len, kv_len, this.zoom(), block, this.mask ? 1 : LEVELS);
    }
    this.explain(number, q_len, kv_len, block);
    this.program.show(this.python());
    this.root.dataset.shown = JSON.stringify(this.options.map(({ at }) => at));
  }

  explain(number, q_len, kv_len, block) {
    this.legend.replaceChildren();
    if (!this.possible) {
      this.legend.textContent = "The recipe refuses these values together, or has no such head or sample.";
    } else if (this.mask) {
      const { codes } = pool(this.pixels, q_len, kv_len, block);
      const kept = this.pixels.reduce((sum, bit) => sum + bit, 0);
      const count = (code) => codes.filter((each) => each === code).length;
      const mark = (name, text) => element("span", { class: name }, text);
      this.legend.append(
        mark(EMPTY_MARK, `${count(0)} empty, `), mark(MIXED_MARK, `${count(2)} mixed, `), mark(FULL_MARK, `${count(1)} full`),
        ` of ${codes.length} blocks. ${kept} of ${q_len * kv_len} pairs kept, ${((100 * kept) / (q_len * kv_len)).toFixed(1)} %.`,
      );
    } else {
      const [low, high] = this.data.ranges[number];
      this.legend.append(
        low === high ? `${low} at every pair.` : `From ${low} (blank) to ${high} (solid), in ${LEVELS + 1} steps.`,
      );
    }
    if (this.stage.row !== null) this.stage.words.textContent = this.describe(this.stage.row);
  }

  /** What makes this mask or score, of a recipe whose cases do not say it by their names. */
  python() {
    const cases = this.axes.find(({ name }) => name === "case");
    return cases ? this.shown().programs[cases.at] : "";
  }

  describe(row) {
    if (!this.possible) return "";
    return this.mask ? this.seenFrom(row) : this.extremesOf(row);
  }

  seenFrom(row) {
    const { kv_len } = this.shown();
    const seen = runs(this.pixels.subarray(row * kv_len, (row + 1) * kv_len), 1);
    return seen.length ? `row ${row} sees ${keys(seen)}` : `row ${row} sees no key`;
  }

  /** By the values themselves: the picture's steps do not tell close ones apart. */
  extremesOf(row) {
    const told = this.data.extremes[this.data.extremes_of_frame[this.number()]][row];
    if (!told) return `row ${row}: the same at every key`;
    const [highest, lowest] = told.split(";").map((positions) => keys(positions.split(",")));
    return `row ${row}: highest at ${highest}, lowest at ${lowest}`;
  }
}

export async function startExplorers(page, signal) {
  for (const root of page.querySelectorAll(".am-explorer")) {
    if (root.dataset.shown) continue;
    await start(root, signal, (data) => new Explorer(root, data, signal));
  }
}
