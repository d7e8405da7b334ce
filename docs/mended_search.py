"""A hook of mkdocs: the site's search finds numbers.

lunr 2.3, which the theme bundles, tells the nodes of its automaton of words apart by a text of their letters and the
numbers of the nodes that those lead to, one after the other. With many digits among the letters two nodes get the same
text; then words are expected that no page has, and a search for any number fails. Here a comma ends each number.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

WORKERS = "assets/javascripts/workers/search.*.min.js"
AMBIGUOUS, PLAIN = "e=e+s+o.id}return e", 'e=e+s+o.id+","}return e'


def on_post_build(config: MkDocsConfig) -> None:
    """Mend the program of the search that was built.

    Raises:
        PluginError: It is not the program that this was written for.
    """
    found = list(Path(config.site_dir).glob(WORKERS))
    texts = [path.read_text(encoding="utf-8") for path in found]
    if len(found) != 1 or texts[0].count(AMBIGUOUS) != 1:
        raise PluginError(f"{__file__}: the theme's search is another; see whether it still needs mending")
    found[0].write_text(texts[0].replace(AMBIGUOUS, PLAIN), encoding="utf-8")
