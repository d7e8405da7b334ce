// The explorer of a recipe: replays the frames that the Python recipe computed.

import { choice, element, toggle } from "./controls.js";
import { keys, LEVELS, pool, runs, unpackBits, unpackLevels } from "./frames.js";
import { Stage, start } from "./stage.js";

const BLOCKS = [4, 8, 16];
const ZOOMS = [3, 4, 5, 6, 8, 10, 12, 16, 20, 24];
const WIDEST = 400;
const EMPTY_MARK = "am-mark-empty", MIXED_MARK = "am-mark-mixed", FULL_MARK = "am-mark-full";

class Explorer {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.mask = data.kind === "mask";
    this.setting = data.axes.map((axis) => axis.start);
    this.length = data.lengths.length - 1 > 0 ? 1 : 0;
    this.block = 8;
    this.view = "tokens";
    this.stage = new Stage(`${data.name}: queries from top to bottom, keys from left to right`, (row) => this.describe(row));
    this.legend = element("p", { class: "am-legend", "aria-live": "polite" });
    this.program = element("pre", { class: "am-code", tabindex: "0", hidden: "" }, element("code"));
    this.zoom = ZOOMS.indexOf(this.fittingZoom());
    root.append(
      element("div", { class: "am-stage" }, this.stage.box, this.stage.words, this.legend),
      this.controls(),
      this.program,
    );
    this.show();
  }

  controls() {
    const sizes = this.data.lengths.map(({ q_len, kv_len }) => (q_len === kv_len ? q_len : `${q_len} x ${kv_len}`));
    const set = (change) => (at) => {
      change(at);
      this.show();
    };
    const controls = this.data.axes.map((axis, number) =>
      choice(axis.name, axis.values, axis.start, set((at) => (this.setting[number] = at))),
    );
    if (sizes.length > 1) controls.push(choice("length", sizes, this.length, set((at) => (this.length = at))));
    controls.push(choice("zoom", ZOOMS, this.zoom, set((at) => (this.zoom = at))));
    if (this.mask) {
      controls.push(choice("block size", BLOCKS, BLOCKS.indexOf(this.block), set((at) => (this.block = BLOCKS[at]))));
      controls.unshift(toggle("View", ["tokens", "blocks"], this.view, set((name) => (this.view = name))));
    }
    const form = element("form", { class: "am-controls", "aria-label": "Explorer" }, ...controls);
    form.addEventListener("submit", (event) => event.preventDefault());
    return form;
  }

  fittingZoom() {
    const { kv_len } = this.data.lengths[this.length];
    const room = Math.min(WIDEST, this.root.clientWidth - 2);
    return [...ZOOMS].reverse().find((zoom) => zoom * kv_len <= room) ?? ZOOMS[0];
  }

  /** The position of the frame: the last axis moves fastest. */
  frame() {
    const at = this.data.axes.reduce((sum, axis, number) => sum * axis.values.length + this.setting[number], 0);
    return this.data.lengths[this.length].frames[at];
  }

  show() {
    const { q_len, kv_len } = this.data.lengths[this.length];
    const frame = this.frame();
    this.possible = frame >= 0;
    const count = q_len * kv_len;
    const unpack = this.mask ? unpackBits : unpackLevels;
    this.pixels = this.possible ? unpack(this.data.frames[frame], count) : new Uint8Array(count);
    this.columns = kv_len;
    const zoom = ZOOMS[this.zoom];
    if (this.mask && this.view === "blocks") {
      this.stage.drawTiles(pool(this.pixels, q_len, kv_len, this.block), q_len, kv_len, zoom, this.block);
    } else {
      this.stage.drawPixels(this.pixels, q_len, kv_len, zoom, this.block, this.mask ? 1 : LEVELS);
    }
    this.explain(frame, q_len, kv_len);
    this.tell();
    this.root.dataset.shown = JSON.stringify({ setting: this.setting, length: this.length, view: this.view });
  }

  explain(frame, q_len, kv_len) {
    this.legend.replaceChildren();
    if (!this.possible) {
      this.legend.textContent = "The recipe refuses these values together, or has no such head or sample.";
    } else if (this.mask) {
      const { codes } = pool(this.pixels, q_len, kv_len, this.block);
      const kept = this.pixels.reduce((sum, bit) => sum + bit, 0);
      const count = (code) => codes.filter((each) => each === code).length;
      const mark = (name, text) => element("span", { class: name }, text);
      this.legend.append(
        mark(EMPTY_MARK, `${count(0)} empty, `), mark(MIXED_MARK, `${count(2)} mixed, `), mark(FULL_MARK, `${count(1)} full`),
        ` of ${codes.length} blocks. ${kept} of ${q_len * kv_len} pairs kept, ${((100 * kept) / (q_len * kv_len)).toFixed(1)} %.`,
      );
    } else {
      const [low, high] = this.data.ranges[frame];
      this.legend.append(
        low === high ? `${low} at every pair.` : `From ${low} (blank) to ${high} (solid), in ${LEVELS + 1} steps.`,
      );
    }
    if (this.stage.row !== null) this.stage.words.textContent = this.describe(this.stage.row);
  }

  /** The parameters of a case, which its name does not say, as Python for the length shown first. */
  tell() {
    const at = this.data.axes.findIndex((axis) => axis.programs);
    const text = at < 0 ? "" : this.data.axes[at].programs[this.setting[at]];
    this.program.hidden = !text;
    this.program.firstChild.textContent = text;
  }

  describe(row) {
    if (!this.possible) return "";
    const values = this.pixels.subarray(row * this.columns, (row + 1) * this.columns);
    if (this.mask) {
      const seen = runs(values, 1);
      return seen.length ? `row ${row} sees ${keys(seen)}` : `row ${row} sees no key`;
    }
    const low = Math.min(...values), high = Math.max(...values);
    if (low === high) return `row ${row}: the same at every key`;
    return `row ${row}: highest at ${keys(runs(values, high))}, lowest at ${keys(runs(values, low))}`;
  }
}

export async function startExplorers(page, signal) {
  for (const root of page.querySelectorAll(".am-explorer")) {
    if (root.dataset.shown) continue;
    await start(root, signal, (data) => new Explorer(root, data));
  }
}
