"""Looks at the built pages in headless Chromium: ``python -m bench.site SITE [--shots FOLDER]``.

Of home, guides, API pages and a notebook, 1280 and 400 px wide: nothing on the console, nothing
wider than the window, text that stands out from what is behind it by a ratio of 4.5 (3 where it is large), words for
pictures; and of all pages that links lead to pages and places that there are. Needs chromedriver.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import html.parser
import http.client
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

PAGES = (
    "",
    "train-your-own-model/",
    "command-line/",
    "api/calibrate/",
    "api/top/",
    "notebooks/quickstart/",
)
WIDTHS = (1280, 400)
FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"),
    *("disable-component-update", "disable-sync", "hide-scrollbars", "force-color-profile=srgb"),
)

FAULTS = pathlib.Path(__file__).with_suffix(".js").read_text()


class Driver:
    """Chromedriver, and one window."""

    def __init__(self, port: int, profile: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        options = {"args": [*(f"--{flag}" for flag in FLAGS), f"--user-data-dir={profile}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.path = ""
        self.path = f"/{self('POST', 'session', capabilities={'alwaysMatch': wanted})['sessionId']}"

    def __call__(self, method: str, path: str, **body: Any) -> Any:
        where = path if path == "session" else f"session{self.path}/{path}".rstrip("/")
        self.connection.request(method, f"/{where}", json.dumps(body) if method == "POST" else None)
        answer = json.loads(self.connection.getresponse().read())["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(answer["message"])
        return answer

    def run(self, script: str) -> Any:
        """Returns what a script in the page returns."""
        return self("POST", "execute/sync", script=script, args=[])

    def command(self, name: str, **params: Any) -> Any:
        """Sends a command of the DevTools protocol."""
        return self("POST", "goog/cdp/execute", cmd=name, params=params)


@contextlib.contextmanager
def browser() -> Iterator[Driver]:
    """A browser without a past."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if "successfully on port" in line)
            driver = Driver(int(line.rstrip(". \n").split()[-1]), profile)
            try:
                yield driver
            finally:
                driver("DELETE", "")
        finally:
            process.terminate()
            process.wait()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that says nothing, and has the icon that browsers ask every site for."""

    def do_GET(self) -> None:
        """Serves a file."""
        self.path = "/assets/images/favicon.png" if self.path == "/favicon.ico" else self.path
        super().do_GET()

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


def looked_at(site: pathlib.Path, shots: pathlib.Path | None) -> list[str]:
    """Returns what is wrong with the pages in a browser."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found = []
    with browser() as driver:
        for width in WIDTHS:
            for page in PAGES:
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                driver.command("Emulation.setDeviceMetricsOverride", **size)
                driver("POST", "url", url=f"http://127.0.0.1:{server.server_port}/{page}")
                faults = driver.run(FAULTS)
                faults += [f"console: {entry['message']}" for entry in driver("POST", "se/log", type="browser")]
                found += [f"/{page} at {width} px: {fault}" for fault in dict.fromkeys(faults)]
                if shots is not None:
                    shots.mkdir(parents=True, exist_ok=True)
                    name = page.strip("/").replace("/", "-").removesuffix(".html") or "home"
                    shots.joinpath(f"{name}-{width}.png").write_bytes(base64.b64decode(driver("GET", "screenshot")))
    server.shutdown()
    return found


class Links(html.parser.HTMLParser):
    """A page's links, and the places that links may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes a link, a picture or a place."""
        found = dict(attrs)
        self.links |= {found[name] or "" for name in ("href", "src") if name in found}
        self.places |= {found[name] or "" for name in ("id", "name") if name in found}


def broken(site: pathlib.Path) -> list[str]:
    """Returns the links within the site that lead nowhere."""
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        for link in sorted(page.links):
            scheme, host, where, _, place = urllib.parse.urlsplit(link)
            if scheme or host:
                continue
            target = (path.parent / urllib.parse.unquote(where)).resolve() if where else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{path.relative_to(site)}: no page {link}")
            elif place and target in pages and urllib.parse.unquote(place) not in pages[target].places:
                found.append(f"{path.relative_to(site)}: no place {link}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.site", description=__doc__.splitlines()[0])
    parser.add_argument("site", type=pathlib.Path, help="folder that mkdocs build wrote")
    parser.add_argument("--shots", type=pathlib.Path, metavar="FOLDER", help="where pictures of the windows go")
    arguments = parser.parse_args()
    if shutil.which("chromedriver") is None:
        parser.error("chromedriver is missing: apt-get install chromium-driver.")
    site = arguments.site.resolve()
    faults = broken(site) + looked_at(site, arguments.shots)
    print("\n".join(faults) or f"{len(PAGES)} pages at {WIDTHS} px, and all links: nothing is wrong")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
