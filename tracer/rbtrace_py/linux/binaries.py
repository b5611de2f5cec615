"""Executable files of a process, opened in whatever root directory it has.

A mapping identifies its file by device, inode, and a path, which may be valid only in
the root of the process. Several paths may lead to the file. Each opened file is checked
against the device and inode.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from rbtrace_py.errors import BadElf, NoSuchTarget, NotPermitted, TooManyFiles
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.kernel import missing_of
from rbtrace_py.linux.maps import Mapping, mappings
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.procfs import read_file
from rbtrace_py.model.probes import Binary

_MAX_DESCRIPTORS = 65536
"""Maximum number of the target's descriptors that are searched for a file."""


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file with at least one executable mapping, and all its mappings."""

    binary: Binary
    mappings: tuple[Mapping, ...]

    @property
    def executable(self) -> tuple[Mapping, ...]:
        return tuple(m for m in self.mappings if m.is_executable)


class OpenBinary(Closing):
    """A file held open for reading; uprobes are attached through ``fd_path``."""

    def __init__(self, fd: int, file: MappedFile) -> None:
        self.fd = fd
        self.file = file
        self.binary = file.binary
        self.mappings = file.mappings

    @property
    def fd_path(self) -> str:
        """A path to the open file, valid only in this process and until ``close``."""
        return f"/proc/self/fd/{self.fd}"

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def group_files(all_mappings: list[Mapping]) -> list[MappedFile]:
    """Group mappings by file, omitting files without an executable mapping."""
    groups: dict[tuple[int, int], list[Mapping]] = {}
    for mapping in all_mappings:
        if mapping.is_file:
            groups.setdefault(mapping.key, []).append(mapping)
    return [
        MappedFile(Binary(key[0], key[1], group[0].shown_path), tuple(group))
        for key, group in groups.items()
        if any(mapping.is_executable for mapping in group)
    ]


def mapped_files(process: Process) -> list[MappedFile]:
    """Return the files that ``process`` executes code from, by lowest address."""
    return group_files(mappings(process))


def open_binary(process: Process, binary: Binary) -> OpenBinary:
    """Open the file ``binary`` that ``process`` has mapped; the caller closes it.

    Raises:
        NoSuchTarget: The file is no longer mapped, or the process has ended.
        NotPermitted, BadElf: As in ``open_mapped``.
    """
    for file in mapped_files(process):
        if file.binary.key == binary.key:
            opened = open_mapped(process, file)
            opened.binary = binary
            return opened
    raise NoSuchTarget(f"process {process.pid} has not mapped {binary.path} (any more)")


def open_mapped(process: Process, file: MappedFile) -> OpenBinary:
    """Open a mapped file; the caller closes it.

    Raises:
        NotPermitted: The kernel denied permission.
        BadElf: The file was not found, or it is not a regular file.
        NoSuchTarget: The process has ended.
    """
    refused = False
    for path, authoritative in _ways(process, file):
        try:
            fd = _open_if(process, file.binary, path, authoritative)
        except PermissionError:
            refused = True
            continue
        if fd is not None:
            return OpenBinary(fd, file)
    if not process.alive():
        raise NoSuchTarget(f"process {process.pid} has ended")
    if refused:
        raise _not_permitted(process, file)
    raise BadElf(
        f"cannot find the file that {process.pid} maps as {file.binary.path}, or"
        " it is not a regular file"
    )


def _not_permitted(process: Process, file: MappedFile) -> NotPermitted:
    """Build the error. ``map_files`` and ``fd`` belong to the process's user."""
    wanted = {"CAP_CHECKPOINT_RESTORE"}
    if process.uid != os.geteuid():
        wanted.add("CAP_DAC_READ_SEARCH")
    missing = missing_of(wanted)
    return NotPermitted(
        f"not allowed to open {file.binary.path}, mapped by {process.pid}"
        f"{missing and f', without {missing}'}",
        f"Run as root{missing and f', or with {missing}'}",
        root_helps=True,
    )


def _ways(process: Process, file: MappedFile) -> Iterator[tuple[bytes, bool]]:
    """Yield paths that may lead to the file, and whether each is authoritative.

    A link in ``map_files`` is the mapping itself, so its device number may differ: on
    overlayfs and btrfs, ``stat`` and ``maps`` report different device numbers.
    """
    root = os.fsencode(f"/proc/{process.pid}")
    for mapping in file.executable[:4]:
        yield b"%s/map_files/%x-%x" % (root, mapping.start, mapping.end), True
    path = file.executable[0].raw_path
    if path.startswith(b"/"):
        for name in {path, file.executable[0].path}:
            yield root + b"/root" + name, False
            yield name, False
    yield root + b"/exe", False
    if file.executable[0].is_deleted:
        for number in _descriptors(process):
            yield root + b"/fd/" + os.fsencode(number), False


def _descriptors(process: Process) -> list[str]:
    with suppress(OSError):
        return os.listdir(f"/proc/{process.pid}/fd")[:_MAX_DESCRIPTORS]
    return []


def _open_if(
    process: Process, binary: Binary, path: bytes, authoritative: bool
) -> int | None:
    """Open ``path`` if it is ``binary``, else return None; PermissionError propagates.

    The path is opened with O_PATH first, because opening a FIFO blocks and opening a
    device may have side effects. The descriptor that was checked is then reopened.
    """
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        _raise_if_refused(error, binary)
        return None
    try:
        if not _is(process, binary, handle, authoritative):
            return None
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/self/fd/{handle}", flags)
    except OSError as error:
        _raise_if_refused(error, binary)
        return None
    finally:
        os.close(handle)


def _raise_if_refused(error: OSError, binary: Binary) -> None:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise TooManyFiles(binary.path) from error
    if error.errno in (errno.EACCES, errno.EPERM):
        raise PermissionError(error.errno, os.strerror(error.errno)) from error


def _is(process: Process, binary: Binary, fd: int, authoritative: bool) -> bool:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        return False
    if authoritative or (status.st_dev, status.st_ino) == binary.key:
        return True
    return status.st_ino == binary.inode and binary.device in _mount_devices(
        process, fd
    )


def _mount_devices(process: Process, fd: int) -> set[int]:
    """Return the device numbers that ``mountinfo`` shows for the mount of ``fd``.

    On btrfs, ``maps`` and ``mountinfo`` show the superblock's device number, and
    ``stat`` shows the subvolume's.
    """
    mount = _mount_id(fd)
    devices: set[int] = set()
    for path in ("/proc/self/mountinfo", f"/proc/{process.pid}/mountinfo"):
        with suppress(OSError, ValueError):
            for line in read_file(path).split(b"\n"):
                fields = line.split(None, 3)
                if mount is not None and len(fields) > 3 and fields[0] == mount:
                    major, minor = fields[2].split(b":")
                    devices.add(os.makedev(int(major), int(minor)))
    return devices


def _mount_id(fd: int) -> bytes | None:
    for line in read_file(f"/proc/self/fdinfo/{fd}").split(b"\n"):
        if line.startswith(b"mnt_id:"):
            return line.split()[1]
    return None
