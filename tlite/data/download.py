"""Files from the network: into a folder, with a progress bar, checked by their SHA-256."""

import gzip
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
import zlib
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tlite.errors import UserError


def data_folder() -> Path:
    """`TLITE_DATA`, or `tlite` in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TLITE_DATA") or cache / "tlite")


def find_or_download(name: str, url: str, sha256: str) -> Path:
    """The file `name` (or `name`.gz) in the data folder; fetched from `url` if it isn't there."""
    path = data_folder() / name
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            return candidate
    download(url, path, sha256)
    return path


def download(url: str, path: Path, sha256: str) -> None:
    """Fetch `url` to `path`; the file appears there only whole and with the right SHA-256.

    Raises:
        UserError: no network, no space, or other content than expected.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            urllib.request.urlopen(url, timeout=30) as response,
            tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file,
            _progress() as progress,
        ):
            temporary = Path(file.name)
            length = int(response.headers.get("Content-Length") or 0) or None
            task = progress.add_task(path.name, total=length)
            digest = hashlib.sha256()
            while chunk := response.read(1 << 16):
                file.write(chunk)
                digest.update(chunk)
                progress.advance(task, len(chunk))
        if length and temporary.stat().st_size < length:
            raise ConnectionError("the connection broke off before the end")
        if digest.hexdigest() != sha256:
            raise UserError(
                f"{url} has the SHA-256 {digest.hexdigest()}, not {sha256}: it has changed since "
                f"tlite was written; look at it, and save it as {path} if it is what you want"
            )
        temporary.chmod(0o644)  # not only for this user, as a temporary file is
        temporary.replace(path)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"can't download {url} to {path} ({getattr(error, 'reason', None) or repr(error)}): "
            f"check the network, or put the file there yourself"
        ) from error
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)


def read_text(path: str | Path) -> str:
    """A UTF-8 text file, unpacked if its name ends in .gz; line ends become newlines.

    Raises:
        UserError: the file is missing, not UTF-8 (the byte is named), or not gzip.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start} can't be read") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is not a whole gzip file: {error}") from error
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from error


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    )
