"""Requests to a server behind a UNIX socket."""

from __future__ import annotations

import socket
from pathlib import Path

from processes import TIMEOUT


def answer_of(place: Path, path: str = "/") -> str:
    """Return the body of the answer to one request to the server's socket ``place``."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT)
        connection.connect(str(place))
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        with connection.makefile("rb") as file:
            return file.read().rpartition(b"\r\n")[2].decode()
