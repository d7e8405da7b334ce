// What an address asks for, and the words for what of it a page does not have.

import { element, worded } from "./controls.js";

/** Parameters that are the theme's: what its search looks for, and the words it marks on a page. */
const OF_THE_THEME = ["q", "h"];

const asked = () => [...new URL(location.href).searchParams].filter(([name]) => !OF_THE_THEME.includes(name));

/** Sentences about the parameters of the address that a page does not know, and about those given more than once. */
export function strangers(known) {
  const names = asked().map(([name]) => name);
  const repeated = names.filter((name, at) => known.includes(name) && names.indexOf(name) !== at);
  return [
    ...new Set(names.filter((name) => !known.includes(name)).map((name) => `“${name}” is nothing that can be set here`)),
    ...new Set(repeated.map((name) => `“${name}” is given more than once`)),
  ];
}

/** The options set as the address asks: each is {name, values, at}. Returns sentences about what cannot be set. */
export function readOptions(options) {
  const problems = strangers(options.map(({ name }) => name));
  for (const [name, text] of asked()) {
    const option = options.find((each) => each.name === name);
    if (!option) continue;
    const at = option.values.findIndex((value) => written(value) === text || (text.trim() && value === Number(text)));
    if (at >= 0) option.at = at;
    else problems.push(`${name} cannot be “${text}”, only ${option.values.map(written).join(", ")}`);
  }
  return problems;
}

/** The address names the options that were moved, and nothing else of its own. */
export function writeOptions(options) {
  write(options.filter(({ at, start }) => at !== start).map(({ name, values, at }) => [name, written(values[at])]));
}

/**
 * Replaces what the address asks for by pairs of a name and a text, empty ones left out; what is the theme's stays.
 * keep: the back button leads to the address as it was.
 */
export function write(pairs, keep = false) {
  const url = new URL(location.href);
  for (const [name] of asked()) url.searchParams.delete(name);
  for (const [name, text] of pairs) if (text) url.searchParams.set(name, text);
  const address = url.href.replaceAll("%2C", ",");
  if (address === location.href) return;
  if (keep) history.pushState(null, "", address);
  else history.replaceState(history.state, "", address);
}

/** A value as it stands in an address. */
export const written = (value) => worded(value).replaceAll(" ", "");

/** Says what of an address was ignored, until something is chosen. */
export class Notice {
  constructor() {
    this.box = element("p", { class: "am-notice", role: "status" });
  }

  say(problems, shown) {
    this.box.textContent = problems.length ? `Ignored in the address: ${problems.join("; ")}. Shown instead: ${shown}.` : "";
  }

  clear() {
    this.box.textContent = "";
  }
}
