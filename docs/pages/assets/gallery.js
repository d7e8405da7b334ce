// The filter of the index. What is asked for stands in the address: ?filter=...&tags=a,b (q is the site search's own).

import { Notice, strangers, write } from "./address.js";

/** The words of a text in lower case; of window_size both, while 2310.06825 stays whole. */
const words = (text) => text.toLowerCase().split(/[^\p{L}\p{N}.]+|\.(?!\d)/u).filter(Boolean);

export function startFilter(page, signal) {
  const form = page.querySelector(".am-filter");
  if (!form) return;
  const query = form.querySelector("input");
  const chips = [...form.querySelectorAll(".am-chip")];
  const cards = [...page.querySelectorAll(".am-card")];
  const wordsOf = new Map(cards.map((card) => [card, words(card.dataset.search)]));
  const notice = new Notice();
  form.append(notice.box);

  function read() {
    const asked = new URL(location.href).searchParams;
    query.value = asked.get("filter") ?? "";
    const tags = (asked.get("tags") ?? "").split(",").filter(Boolean);
    for (const chip of chips) chip.setAttribute("aria-pressed", tags.includes(chip.dataset.tag));
    const unknown = tags.filter((tag) => !chips.some((chip) => chip.dataset.tag === tag));
    notice.say([...unknown.map((tag) => `no tag is called “${tag}”`), ...strangers(["filter", "tags"])], asWords());
  }

  /** What is shown, in words. */
  function asWords() {
    const text = query.value.trim(), tags = chosen().join(", ");
    const parts = [text && `match “${text}”`, tags && `are tagged ${tags}`].filter(Boolean);
    return parts.length ? `recipes that ${parts.join(" and ")}` : "all recipes";
  }

  function chosen() {
    return chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.tag);
  }

  /** Shows what was chosen, which is what the address says from here on. */
  function choose(keep) {
    write([["filter", query.value.trim()], ["tags", chosen().join(",")]], keep);
    notice.clear();
    show();
  }

  function show() {
    const asked = words(query.value), tags = chosen();
    const isWordless = asked.length === 0 && query.value.trim() !== "";
    let count = 0;
    for (const card of cards) {
      const own = card.dataset.tags.split(" ");
      const begins = (start) => wordsOf.get(card).some((word) => word.startsWith(start));
      const matches = !isWordless && asked.every(begins) && tags.every((tag) => own.includes(tag));
      card.parentElement.hidden = !matches;
      count += matches;
    }
    for (const group of page.querySelectorAll(".am-group")) group.hidden = !group.querySelector("li:not([hidden])");
    page.querySelector(".am-none").hidden = count > 0;
    form.querySelector(".am-count").textContent = `${count} of ${cards.length} recipes`;
  }

  for (const chip of chips) {
    chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", chip.getAttribute("aria-pressed") !== "true");
      choose(true);
    });
  }
  query.addEventListener("input", () => choose(false));
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("popstate", () => {
    read();
    show();
  }, { signal });
  form.hidden = false;
  read();
  show();
}
