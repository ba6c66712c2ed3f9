"""Files from the network: into a folder, with a progress bar, checked by their SHA-256."""

import dataclasses
import hashlib
import http.client
import os
import sys
import tempfile
import urllib.request
from pathlib import Path

from rich.progress import wrap_file

from tlite.data.reading import data_folder, is_there, pieces, read_text
from tlite.data.tables import Part
from tlite.errors import UserError


class Download:
    """What a text that is fetched once does: `folder`, `file`, `url` and `sha256` are its own."""

    def reads(self, part: Part) -> list[str]:
        """The file that every part is read from, or the address that it comes from."""
        return [str(self._there() or self.url)]

    def located(self) -> "Download":
        """The same, from whatever folder it is read."""
        folder = self.folder if self.folder and self._there() else os.path.abspath(data_folder())
        return dataclasses.replace(self, folder=folder)

    def load(self) -> str:
        """The text, fetched if it isn't there.

        One that is there is taken as it is, with a warning where it is not what a download must be.
        """
        if path := self._there():
            digest = hashlib.sha256()
            for piece in pieces(path):
                digest.update(piece)
            if digest.hexdigest() != self.sha256:
                print(
                    f"warning: {path} is not the file that is published (its SHA-256 is "
                    f"{digest.hexdigest()}, not {self.sha256}): results may differ",
                    file=sys.stderr,
                )
            return read_text(path)
        path = Path(self.folder or data_folder(), self.file)
        download(self.url, path, self.sha256)
        return read_text(path)

    def _there(self) -> Path | None:
        """The file, packed or not, if it is there."""
        path = Path(self.folder or data_folder(), self.file)
        return next(filter(is_there, (path, path.with_name(path.name + ".gz"))), None)


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
