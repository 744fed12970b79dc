"""Pages opened in a browser at several widths, as a script observes them."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)

needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")


def look(pages, widths, folder, *options, script="report/browser.js"):
    """Returns what the script observed, by page and width."""
    document = folder / "pages.html"
    code = (Path(__file__).parent / script).read_text()
    texts = json.dumps(pages).replace("<", "\\u003c")
    document.write_text(
        f"<body><script>const pages = {texts}, widths = {list(widths)};\n{code}</script></body>"
    )
    command = [
        str(BROWSER), "--headless", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage",
        "--window-size=1700,1000", "--hide-scrollbars", "--virtual-time-budget=30000",
        f"--user-data-dir={folder / 'home'}", *options, "--dump-dom", document.as_uri(),
    ]  # fmt: skip
    environment = os.environ | {"HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    body = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert body, done.stderr[-2000:]
    seen = json.loads(html.unescape(body[1]))
    assert "error" not in seen, seen
    return seen
