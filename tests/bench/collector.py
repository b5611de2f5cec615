"""A collector of OTLP profiles that keeps the data that shows whether a sample is
complete.

It needs grpcio and opentelemetry-proto. Requests are decoded only on demand, so that
the collector takes little CPU from the profiler on the same CPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import NamedTuple

import grpc
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

SERVICE = "opentelemetry.proto.collector.profiles.v1development.ProfilesService"


class Stack(NamedTuple):
    """The name of the outermost Ruby frame, or an empty string, and the number of
    frames."""

    root: str
    frames: int

    @classmethod
    def of(cls, names: Sequence[str]) -> Stack:
        """names: outermost first"""
        return cls(names[0] if names else "", len(names))


class Sample(NamedTuple):
    """A sample. ``time`` is Unix time in ns."""

    pid: int
    time: int
    stack: Stack


class Collector:
    """A gRPC server with its own port that collects until it is closed."""

    def __init__(self) -> None:
        self._requests: SimpleQueue[bytes] = SimpleQueue()
        self._samples: list[Sample] = []
        self._end = 0
        # Without a deserializer, a handler gets bytes. An empty answer has no bytes.
        handler = grpc.unary_unary_rpc_method_handler(self._take)
        service = grpc.method_handlers_generic_handler(SERVICE, {"Export": handler})
        options = [("grpc.max_receive_message_length", -1)]
        self._server = grpc.server(ThreadPoolExecutor(1), options=options)
        self._server.add_generic_rpc_handlers((service,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()

    def has_all_until(self, time: int) -> bool:
        """Return whether profiles that end at or after a Unix time (ns) have
        arrived."""
        while True:
            try:
                request = self._requests.get_nowait()
            except Empty:
                return self._end >= time
            self._decode(request)

    def stacks(self, pid: int, begin: int, end: int) -> Counter[Stack]:
        """Return the stacks of a process between two Unix times (ns)."""
        return Counter(
            sample.stack
            for sample in self._samples
            if sample.pid == pid and begin <= sample.time < end
        )

    def _take(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        self._requests.put(request)
        return b""

    def _decode(self, request: bytes) -> None:
        found = profiles_service_pb2.ExportProfilesServiceRequest.FromString(request)
        table = found.dictionary
        stacks = [Stack.of(list(_names(table, one))) for one in table.stack_table]
        for resource in found.resource_profiles:
            values = {one.key: one.value for one in resource.resource.attributes}
            pid = values["process.pid"].int_value
            for scope in resource.scope_profiles:
                for profile in scope.profiles:
                    end = profile.time_unix_nano + profile.duration_nano
                    self._end = max(self._end, end)
                    self._samples += (
                        Sample(pid, time, stacks[sample.stack_index])
                        for sample in profile.samples
                        for time in sample.timestamps_unix_nano
                    )


def _names(table, stack) -> Iterator[str]:
    """Return the names of a stack's Ruby frames, outermost first. A missing name is
    empty."""
    strings = table.string_table
    for index in reversed(stack.location_indices):
        location = table.location_table[index]
        for number in location.attribute_indices:
            attribute = table.attribute_table[number]
            if (
                strings[attribute.key_strindex] == "profile.frame.type"
                and attribute.value.string_value == "ruby"
            ):
                lines = location.lines
                function = lines[0].function_index if lines else 0
                yield strings[table.function_table[function].name_strindex]
