// Starts what a page holds, each time one is shown: with instant navigation the script itself runs once.

import { startCompose } from "./compose.js";
import { startExplorers } from "./explorer.js";
import { startFilter } from "./gallery.js";

let ended = new AbortController();

/** The theme's search is a dialog without a name, which a screen reader needs. */
function nameTheSearch(page) {
  page.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
}

window.document$.subscribe(() => {
  ended.abort();
  ended = new AbortController();
  nameTheSearch(document);
  startFilter(document, ended.signal);
  startExplorers(document, ended.signal);
  startCompose(document, ended.signal);
});
