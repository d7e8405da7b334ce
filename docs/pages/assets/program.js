// Python on a page, with the theme's own button to copy it.

import { element } from "./controls.js";

let numbered = 0;

export class Program {
  constructor() {
    const id = `am-program-${(numbered += 1)}`;
    this.code = element("code", { tabindex: "0" });
    // The theme's script answers a click on whatever names a target to copy, and reads the text at that moment.
    const copy = element("button", {
      type: "button",
      class: "md-code__button",
      title: "Copy to clipboard",
      "data-clipboard-target": `#${id} > code`,
      "data-md-type": "copy",
    });
    this.box = element("pre", { class: "am-code", id }, element("div", { class: "md-code__nav" }, copy), this.code);
  }

  /** Shows a program, or nothing where there is none. */
  show(text) {
    this.box.hidden = !text;
    this.code.textContent = text;
  }
}
