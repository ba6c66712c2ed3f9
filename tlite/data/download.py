"""Files from the network: into a folder, with a progress bar, checked by their SHA-256."""

import hashlib
import http.client
import sys
import tempfile
import urllib.request
from pathlib import Path

from rich.progress import wrap_file

from tlite.data.reading import data_folder, is_there, pieces
from tlite.errors import UserError


def find_downloaded(name: str, folder: str = "") -> Path | None:
    """The file `name` (or `name`.gz) in a folder, the data folder unless given, if it is there."""
    path = Path(folder or data_folder()) / name
    return next(filter(is_there, (path, path.with_name(path.name + ".gz"))), None)


def find_or_download(name: str, url: str, sha256: str, folder: str = "") -> Path:
    """The same, fetched from `url` if it isn't there.

    One that is there is taken as it is, with a warning where it is not what a download must be.
    """
    if path := find_downloaded(name, folder):
        digest = hashlib.sha256()
        for piece in pieces(path, any_size=True):
            digest.update(piece)
        if digest.hexdigest() != sha256:
            print(
                f"warning: {path} is not the file that is published (its SHA-256 is "
                f"{digest.hexdigest()}, not {sha256}): results may differ",
                file=sys.stderr,
            )
        return path
    path = Path(folder or data_folder()) / name
    download(url, path, sha256)
    return path


def download(url: str, path: Path, sha256: str) -> None:
    """Fetch `url` to `path`; the file appears there only whole and with the right SHA-256.

    Raises:
        UserError: no network, no space, or other content than expected.
    """
    temporary, digest = None, hashlib.sha256()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            urllib.request.urlopen(url, timeout=30) as response,
            tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file,
        ):
            temporary, length = Path(file.name), response.length
            with wrap_file(response, length or 0, description=path.name) as body:
                while chunk := body.read(1 << 16):
                    file.write(chunk)
                    digest.update(chunk)
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
        reason = str(error).strip() or type(error).__name__
        raise UserError(
            f"can't download {url} to {path} ({reason}): check the network, or put the file there "
            "yourself"
        ) from error
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)
