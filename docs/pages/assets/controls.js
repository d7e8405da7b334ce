// Labelled controls.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A value as its control says it. */
export const worded = (value) => (value === null ? "none" : value === true ? "yes" : value === false ? "no" : `${value}`);

let numbered = 0;

/** A slider over a list of values, or a menu where they are words. Calls back with the position. */
export function choice(name, values, start, changed) {
  const id = `am-control-${(numbered += 1)}`;
  const label = element("label", { for: id }, name);
  const words = values.some((value) => typeof value === "string" || typeof value === "boolean");
  if (words) {
    const menu = element("select", { id, name }, ...values.map((value, at) => element("option", { value: at }, worded(value))));
    menu.value = start;
    menu.addEventListener("change", () => changed(Number(menu.value)));
    return element("div", { class: "am-control" }, label, menu);
  }
  const slider = element("input", { id, name, type: "range", min: 0, max: values.length - 1, step: 1, value: start });
  const output = element("output", { for: id }, worded(values[start]));
  slider.setAttribute("aria-valuetext", worded(values[start]));
  slider.addEventListener("input", () => {
    output.textContent = worded(values[slider.value]);
    slider.setAttribute("aria-valuetext", output.textContent);
    changed(Number(slider.value));
  });
  return element("div", { class: "am-control" }, label, slider, output);
}

/** Buttons of which one is on. Calls back with its name. */
export function toggle(label, names, start, changed) {
  const group = element("div", { class: "am-toggle", role: "group", "aria-label": label });
  for (const name of names) {
    const button = element("button", { type: "button", "aria-pressed": name === start }, name);
    button.addEventListener("click", () => {
      for (const other of group.children) other.setAttribute("aria-pressed", other === button);
      changed(name);
    });
    group.append(button);
  }
  return group;
}
