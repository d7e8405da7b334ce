// The filter of the index. What is asked for stands in the address: ?filter=...&tags=a,b (q is the site search's own).

/** Lower case, with hyphens, underscores and commas as spaces: "left-padded" is found as "left padded". */
const plain = (text) => text.toLowerCase().replace(/[-_,\s]+/g, " ");

export function startFilter(page, signal) {
  const form = page.querySelector(".am-filter");
  if (!form) return;
  const query = form.querySelector("input");
  const chips = [...form.querySelectorAll(".am-chip")];
  const cards = [...page.querySelectorAll(".am-card")];

  function read() {
    const asked = new URL(location.href).searchParams;
    query.value = asked.get("filter") ?? "";
    const tags = (asked.get("tags") ?? "").split(",");
    for (const chip of chips) chip.setAttribute("aria-pressed", tags.includes(chip.dataset.tag));
  }

  function chosen() {
    return chips.filter((chip) => chip.getAttribute("aria-pressed") === "true").map((chip) => chip.dataset.tag);
  }

  function write(keep) {
    const url = new URL(location.href);
    for (const [name, value] of [["filter", query.value.trim()], ["tags", chosen().join(",")]]) {
      if (value) url.searchParams.set(name, value);
      else url.searchParams.delete(name);
    }
    const address = url.href.replaceAll("%2C", ",");
    if (address === location.href) return;
    if (keep) history.pushState(null, "", address);
    else history.replaceState(history.state, "", address);
  }

  function show() {
    const words = plain(query.value).split(" ").filter(Boolean), tags = chosen();
    let count = 0;
    for (const card of cards) {
      const own = card.dataset.tags.split(" ");
      const text = plain(card.dataset.search);
      const matches = words.every((word) => text.includes(word)) && tags.every((tag) => own.includes(tag));
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
      write(true);
      show();
    });
  }
  query.addEventListener("input", () => {
    write(false);
    show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("popstate", () => {
    read();
    show();
  }, { signal });
  form.hidden = false;
  read();
  show();
}
