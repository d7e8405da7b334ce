// The picture of a matrix on a canvas, with a row that is followed by pointer and arrow keys.

import { EMPTY, FULL, load } from "./frames.js";
import { element } from "./controls.js";

const MIXED_OPACITY = 0.4;

export class Stage {
  /** describe(row) gives the words for a row. */
  constructor(label, describe) {
    this.describe = describe;
    this.row = null;
    this.canvas = element("canvas", { class: "am-canvas", tabindex: "0", role: "img", "aria-label": label });
    this.marker = element("div", { class: "am-marker", hidden: "" });
    this.words = element("p", { class: "am-words", "aria-live": "polite" });
    this.box = element("div", { class: "am-scroll" }, element("div", { class: "am-layers" }, this.canvas, this.marker));
    this.canvas.addEventListener("pointermove", (event) => this.point(Math.floor(event.offsetY / this.zoom)));
    this.canvas.addEventListener("pointerdown", (event) => this.point(Math.floor(event.offsetY / this.zoom)));
    this.canvas.addEventListener("keydown", (event) => this.step(event));
  }

  step(event) {
    const last = this.rows - 1, now = this.row ?? -1;
    const next = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.point(Math.min(last, Math.max(0, next)));
  }

  point(row) {
    if (row < 0 || row >= this.rows) return;
    this.row = row;
    this.marker.hidden = false;
    this.marker.style.transform = `translateY(${row * this.zoom}px)`;
    this.marker.style.height = `${this.zoom}px`;
    this.words.textContent = this.describe(row);
  }

  /** Opacities between 0 and 1, one a pair; a gap of one pixel where squares are large enough to be told apart. */
  draw(opacities, rows, columns, zoom, lines, gap = zoom >= 6 ? 1 : 0) {
    Object.assign(this, { rows, columns, zoom });
    this.canvas.width = columns * zoom;
    this.canvas.height = rows * zoom;
    this.canvas.dataset.zoom = zoom;
    const context = this.canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = getComputedStyle(this.canvas).color;
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const opacity = opacities[row * columns + column];
        if (opacity === 0) continue;
        context.globalAlpha = opacity;
        context.fillRect(column * zoom, row * zoom, zoom - gap, zoom - gap);
      }
    }
    context.globalAlpha = 1;
    this.canvas.style.setProperty("--am-line", lines ? `${lines * zoom}px` : "0px");
    if (this.row !== null) this.point(Math.min(this.row, rows - 1));
  }

  drawPixels(pixels, rows, columns, zoom, lines, most = 1) {
    this.draw(Float32Array.from(pixels, (value) => value / most), rows, columns, zoom, lines);
  }

  drawTiles(tiles, rows, columns, zoom, block) {
    const opacities = new Float32Array(rows * columns);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const code = tiles.codes[Math.floor(row / block) * tiles.columns + Math.floor(column / block)];
        opacities[row * columns + column] = code === EMPTY ? 0 : code === FULL ? 1 : MIXED_OPACITY;
      }
    }
    this.draw(opacities, rows, columns, zoom, block, 0);
  }
}

/** Loads the frames of what a page holds and draws it, anew when the palette changes; make(data) has a show(). */
export async function start(root, signal, make) {
  try {
    const data = await load(root.dataset.frames);
    if (signal.aborted) return;
    const made = make(data);
    const watcher = new MutationObserver(() => made.show());
    watcher.observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
    signal.addEventListener("abort", () => watcher.disconnect());
  } catch (error) {
    root.append(element("p", { class: "am-legend" }, `The frames could not be loaded (${error.message}).`));
  }
}
