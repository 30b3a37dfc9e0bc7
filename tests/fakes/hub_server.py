"""A server on the loopback address with the part of the Hub's protocol that huggingface_hub needs."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

COMMIT = hashlib.sha1(b"a commit").hexdigest()
_FILE = re.compile(r"/(?P<repository>[\w.-]+/[\w.-]+)/resolve/(?P<revision>[^/]+)/(?P<name>.+)")
_UPLOAD = re.compile(r"/api/models/(?P<repository>[\w.-]+/[\w.-]+)/(?P<what>preupload|commit)/")
_API = re.compile(r"/api/models/(?P<repository>[\w.-]+/[\w.-]+)/(?P<what>revision|tree)/(?P<revision>[^/?]+)")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Hub:
    """Repositories and the requests for them.

    Attributes:
        root: a directory for each owner, which contains one for each repository.
        url: URL of the server.
        elsewhere: the server under another host name, since the Hub has large files on another host.
        requests: method, path and range of each request.
        cut: returns the number of bytes after which the connection is closed; None for the whole file.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = ""
        self.elsewhere = ""
        self.requests: list[tuple[str, str, str | None]] = []
        self.cut: Callable[[str], int | None] = lambda name: None

    def ranges(self, file: str) -> list[str | None]:
        """Return the requested ranges of a file; None for the whole file."""
        return [part for method, path, part in self.requests if (method, path) == ("GET", f"/data/{file}")]


class _Handler(BaseHTTPRequestHandler):
    """The handler of one connection."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        match = _UPLOAD.match(self.path)
        answer: dict[str, Any] = {"errors": [], "warnings": []}
        if match is None:
            answer["url"] = f"{self.hub.url}/someone/new"  # of a repository
        elif match["what"] == "preupload":
            paths = [file["path"] for file in json.loads(data)["files"]]
            answer["files"] = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
        else:
            answer |= self._commit(match["repository"], data)
        self._send(200, json.dumps(answer).encode(), {})

    def _commit(self, repository: str, data: bytes) -> dict[str, Any]:
        for line in map(json.loads, data.splitlines()):
            if line["key"] == "file":
                file = self.hub.root / repository / line["value"]["path"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(base64.b64decode(line["value"]["content"]))
        return {"success": True, "commitOid": COMMIT, "commitUrl": f"{self.hub.url}/{repository}/commit/{COMMIT}"}

    def _answer(self, body: bool) -> None:
        self.hub.requests.append((self.command, self.path, self.headers.get("Range")))
        if match := _API.match(self.path):
            return self._facts(match["repository"], match["revision"], tree=match["what"] == "tree")
        if match := _FILE.match(self.path):
            return self._redirect(match["repository"], match["revision"], match["name"])
        if self.path.startswith("/data/"):
            return self._file(self.path.removeprefix("/data/"), body)
        return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _facts(self, repository: str, revision: str, tree: bool) -> None:
        directory = self.hub.root / repository
        if not directory.is_dir():
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if (directory / "gated").exists():
            return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if revision not in ("main", "v1", COMMIT):
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        names = {str(path.relative_to(directory)): path for path in files}
        if tree:
            value: Any = [
                {"type": "file", "path": name, "size": path.stat().st_size, "oid": _digest(path)}
                for name, path in names.items()
            ]
        else:
            value = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
        return self._send(200, json.dumps(value).encode(), {})

    def _redirect(self, repository: str, revision: str, name: str) -> None:
        file = self.hub.root / repository / name
        if not file.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        headers = {
            "Location": f"{self.hub.elsewhere}/data/{repository}/{name}",
            "X-Repo-Commit": COMMIT,
            "X-Linked-ETag": f'"{_digest(file)}"',
            "X-Linked-Size": str(file.stat().st_size),
        }
        return self._send(302, b"", headers)

    def _file(self, name: str, body: bool) -> None:
        data = (self.hub.root / name).read_bytes()
        first = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        size = len(data)
        headers = {"ETag": f'"{_digest(self.hub.root / name)}"', "Accept-Ranges": "bytes"}
        if first:
            headers["Content-Range"] = f"bytes {first}-{size - 1}/{size}"
        end = self.hub.cut(name) if body else None
        self._send(206 if first else 200, data[first:], headers, None if end is None else max(0, end - first))
        if end is not None:
            self.close_connection = True
            self.connection.close()

    def _send(self, code: int, data: bytes, headers: dict[str, str], most: int | None = None) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:most])

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def hub(root: Path) -> Iterator[Hub]:
    """Serve the repositories below a directory."""
    state = Hub(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": state}))
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    state.elsewhere = f"http://localhost:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
