"""The built site, served on this machine under a path prefix as a project's site usually is."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PREFIX = "/attn_mods/"


class UnderPrefix(SimpleHTTPRequestHandler):
    """Files of a folder below the prefix; nothing above it."""

    def translate_path(self, path: str) -> str:
        if not path.startswith(PREFIX):
            return str(Path(self.directory) / "outside-of-the-prefix")
        return super().translate_path("/" + path.removeprefix(PREFIX))

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[int]:
    """The port at which the folder is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(UnderPrefix, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
