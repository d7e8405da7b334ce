// Starts what a page holds, each time one is shown: with instant navigation the script itself runs once.

import { startCompose } from "./compose.js";
import { startExplorers } from "./explorer.js";
import { startFilter } from "./gallery.js";

let ended = new AbortController();

/** The theme's search is a dialog without a name, which a screen reader needs. */
function nameTheSearch(page) {
  page.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
}

/** What scrolls sideways can be reached with the keyboard: wide tables and code, also where they open or shrink later. */
function letKeysScroll(page, signal) {
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
  });
  const scrolling = ".md-typeset__scrollwrap, .md-typeset pre > code, .tabbed-labels";
  for (const each of page.querySelectorAll(scrolling)) observer.observe(each);
  signal.addEventListener("abort", () => observer.disconnect());
}

/** What is said of the things that scripts make. */
function uncoverWhatIsSaidOfScripts(page) {
  for (const each of page.querySelectorAll(".am-scripted")) each.hidden = false;
}

/** A link to a part of this page keeps what was chosen: the theme wrote the address of that time into it. */
function keepWhatWasChosen(event) {
  const link = event.target.closest?.("a[href]");
  const leadsHere = link && link.hash && link.origin === location.origin && link.pathname === location.pathname;
  if (leadsHere && !link.closest(".md-search")) link.search = location.search;
}

document.addEventListener("click", keepWhatWasChosen, { capture: true });

window.document$.subscribe(() => {
  ended.abort();
  ended = new AbortController();
  nameTheSearch(document);
  uncoverWhatIsSaidOfScripts(document);
  letKeysScroll(document, ended.signal);
  startFilter(document, ended.signal);
  startExplorers(document, ended.signal);
  startCompose(document, ended.signal);
});
