"""Output of code in a process, passed on as it arrives."""

from __future__ import annotations

import codecs
from typing import TextIO

from rbtrace_py.cli.common.output import Output, cannot_write
from rbtrace_py.report.terminal.inside import shown


class StreamedOutput:
    """Output that is passed on as it arrives: bytes to a file, text to a terminal."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last = b"\n"
        self._write = self._text if output.stream.isatty() else self._bytes_to
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def __call__(self, data: bytes) -> None:
        if data:
            self._last = data[-1:]
            self._write(data)
            self._output.flush()

    def end(self) -> None:
        """Start a new line for the following output."""
        if self._last != b"\n":
            self(b"\n")

    def _text(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        self._output.write(shown(text, self._output.style))

    def _bytes_to(self, data: bytes) -> None:
        stream: TextIO = self._output.stream
        try:
            stream.buffer.write(data)
        except OSError as error:
            raise cannot_write(self._output.name, error) from error
