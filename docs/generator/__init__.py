"""Makes the gallery's pages from the registry: plain Markdown and data, before the site is built."""
