"""Downloads: a file appears whole and right, or not at all. The server is on this machine."""

import gzip
import hashlib
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tlite.data.download import Download, download
from tlite.data.reading import data_folder
from tlite.errors import UserError

BODY = b"To be, or not to be.\n" * 9999
SHA256 = hashlib.sha256(BODY).hexdigest()


@dataclass(frozen=True)
class Text(Download):
    """A text that is fetched once, into the data folder."""

    url: str
    file: str = "texts/a.txt"
    folder: str = ""
    sha256: str = SHA256


class Handler(BaseHTTPRequestHandler):
    """The body at /whole; cut short, in two ways, elsewhere."""

    def do_GET(self):
        self.server.requests += 1
        if self.path == "/missing":
            return self.send_error(404)
        if self.path == "/nonsense":
            return self.wfile.write(b"nonsense\r\n\r\n")
        self.send_response(200)
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            head = f"{len(BODY):x}\r\n".encode()
        else:
            self.send_header("Content-Length", str(len(BODY)))
            head = b""
        self.end_headers()
        self.wfile.write(head + (BODY if self.path == "/whole" else BODY[:-1000]))

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


def files(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def failure(url, folder):
    """What a download that fails says; it must be one line and leave no file."""
    with pytest.raises(UserError) as caught:
        download(url, folder / "new" / "a.txt", SHA256)
    assert files(folder) == []
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_another_checksum_names_both_and_leaves_nothing(server, tmp_path):
    with pytest.raises(UserError, match=f"{SHA256}, not {'0' * 64}"):
        download(f"{server.url}/whole", tmp_path / "a.txt", "0" * 64)
    assert files(tmp_path) == []


REASONS = {
    "short": "the connection broke off before the end",
    "chunked": "IncompleteRead",
    "missing": "HTTP Error 404: Not Found",
    "nonsense": "nonsense",
}


@pytest.mark.parametrize("path", REASONS)
def test_a_failed_answer_says_what_to_do_and_leaves_nothing(server, tmp_path, path):
    message = failure(f"{server.url}/{path}", tmp_path)
    assert "check the network, or put the file there yourself" in message
    assert f"({REASONS[path]}" in message


@pytest.mark.parametrize("content", [BODY, b"mine"], ids=["the same", "another"])
@pytest.mark.parametrize(("name", "pack"), [("a.txt", bytes), ("a.txt.gz", gzip.compress)])
def test_a_file_that_is_there_is_taken_without_a_request(
    server, tmp_path, monkeypatch, capsys, name, pack, content
):
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / name).write_bytes(pack(content))
    text = Text(f"{server.url}/whole")
    assert text.reads("training") == [str(tmp_path / "texts" / name)]
    assert text.load() == content.decode()
    assert server.requests == 0
    told = f"warning: {tmp_path / 'texts' / name} is not the file that is published"
    out, err = capsys.readouterr()
    assert (out, err[: len(told)]) == ("", told if content != BODY else "")
    assert err.count("\n") == (content != BODY)


def test_a_file_that_is_not_there_is_fetched_once(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TLITE_DATA", str(tmp_path))
    for _ in range(2):
        assert Text(f"{server.url}/whole").load() == BODY.decode()
    assert server.requests == 1


def test_data_lies_in_the_cache_unless_told(tmp_path, monkeypatch):
    monkeypatch.delenv("TLITE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "tlite"
