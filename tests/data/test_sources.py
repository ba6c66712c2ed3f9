"""Sources of text: content, errors of files, and downloads from a local server."""

import gzip
import hashlib
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.helpers.complaints import complaint
from tlite.data import TextFile, TinyShakespeare
from tlite.data.sources import Download, download


def test_tiny_shakespeare_has_its_known_size(data_folder, monkeypatch):
    monkeypatch.setenv("TLITE_DATA", str(data_folder))
    text = TinyShakespeare().load()
    assert len(text) == 1_115_394
    assert len(set(text)) == 65


BODY = b"To be, or not to be.\n" * 9999
SHA256 = hashlib.sha256(BODY).hexdigest()


@dataclass(frozen=True)
class Text(Download):
    """A text that is downloaded into the data folder."""

    url: str
    file: str = "texts/a.txt"
    folder: str = ""
    sha256: str = SHA256


class Handler(BaseHTTPRequestHandler):
    """Send the body at /complete, a part of it at /short."""

    def do_GET(self):
        self.server.requests += 1
        if self.path == "/missing":
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY if self.path == "/complete" else BODY[:-1000])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests = 0
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("path", "reason"), [("short", "IncompleteRead"), ("missing", "HTTP Error 404: Not Found")]
)
def test_failed_download_is_an_error_and_leaves_no_file(server, tmp_path, path, reason):
    message = complaint(download, f"{server.url}/{path}", tmp_path / "new" / "a.txt", SHA256)
    assert "check the network, or put the file there" in message
    assert f"({reason}" in message
    digest = "0" * 64
    message = complaint(download, f"{server.url}/complete", tmp_path / "a.txt", digest)
    assert f"{SHA256}, not {digest}" in message
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("content", [BODY, b"mine"], ids=["the same", "another"])
@pytest.mark.parametrize(("name", "pack"), [("a.txt", bytes), ("a.txt.gz", gzip.compress)])
def test_existing_file_is_used_without_a_request(
    server, tmp_path, monkeypatch, capsys, name, pack, content
):
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / name).write_bytes(pack(content))
    text = Text(f"{server.url}/complete")
    assert text.input_paths("training") == [str(tmp_path / "texts" / name)]
    assert text.load() == content.decode()
    assert server.requests == 0
    message = f"warning: {tmp_path / 'texts' / name} differs from the published file"
    out, err = capsys.readouterr()
    assert (out, err[: len(message)]) == ("", message if content != BODY else "")
    assert err.count("\n") == (content != BODY)


def test_missing_file_is_downloaded_once(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    text = Text(f"{server.url}/complete")
    assert text.input_paths("training") == [text.url]
    for _ in range(2):
        assert text.load() == BODY.decode()
    assert server.requests == 1
    assert "--path" in complaint(TextFile().load)
