"""The page in a real browser, which `TXPORT_CHROMIUM` names: not in each run, since it waits by a clock of its own."""

import html
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from serving import PAIR, serving

pytest.importorskip("uvicorn", reason="needs a server: pip install 'txport[serve]'")

if TYPE_CHECKING:
    from txport.runtime.translator import Translator

CHROMIUM = os.environ.get("TXPORT_CHROMIUM")


def test_the_page_translates_in_a_browser(tmp_path: Path, toy: "Translator") -> None:
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt install chromium; TXPORT_CHROMIUM=chromium")
    cat, dog = (each.text for each in toy.translate(["the cat", "a dog"]))
    with serving(PAIR) as server:
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
        address = f"http://127.0.0.1:{server.port}/#q=the%20cat%0Aa%20dog"
        command += ["--virtual-time-budget=4000", "--dump-dom", address]
        for _ in range(8):  # its clock may be ahead of the stream, and end before it
            done = subprocess.run(command, capture_output=True, text=True, timeout=500)
            shown = re.search(r"<output[^>]*>(.*?)</output>", done.stdout, re.DOTALL)
            assert shown is not None, done.stderr
            if html.unescape(shown[1]) == f"{cat}\n{dog}":
                break
        else:
            pytest.fail(f"the page shows {shown[1]!r}")
        paths = [line["path"] for line in server.logs if line["event"] == "request"]
    assert set(paths) == {"/", "/frontend/settings", "/translate"}
