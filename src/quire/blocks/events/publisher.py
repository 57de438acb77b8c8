"""Publishes batches of events over ZeroMQ, from a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from quire.blocks.events.config import KVEventsConfig, is_listened_on
from quire.blocks.events.events import BlockEvent, BlockEvents
from quire.blocks.events.wire import Wire
from quire.core.errors import ConfigError
from quire.core.memory import KV, KeptState, Window
from quire.core.scheduling import Capability, Hooks, Scheduler

logger = logging.getLogger(__name__)

_LAST = (-1).to_bytes(8, "big", signed=True)  # in place of a number: the replay is over
_MOST_RECEIVED = 4096  # bytes of a frame: a number, or a topic that somebody subscribes to
_LINGER = 1.0  # seconds for subscribers to receive what is left at the end


class EventPublisher(Capability):
    """Publishes numbered batches of events; subscribers may ask for missed ones again.

    Made before a model is loaded, so that an address in use is an error at once.

    The publisher never waits. A batch that finds too many others waiting is dropped, and
    subscribers see the gap in the numbers. A slow subscriber misses batches above ``hwm``, which is
    as many as ZeroMQ keeps for each.

    endpoint, replay_endpoint: of its rank. num_published, num_dropped: batches.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        import zmq

        self._zmq = zmq
        self._as_arrays = config.event_encoding == "array"
        self._topic = config.topic.encode()
        self.rank = config.data_parallel_rank
        self.endpoint, self.replay_endpoint = config.addresses
        self._most_waiting = config.max_queue_size
        self.num_published = self.num_dropped = 0
        self._waiting: deque[tuple[int, float, Sequence[BlockEvent]]] = deque()
        self._sent: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps)
        self._closing = False
        self._events: BlockEvents | None = None
        self._context = zmq.Context()
        try:
            self._subscribers = self._socket(zmq.PUB, config.hwm, "endpoint", self.endpoint)
            self._askers: Any = None
            if self.replay_endpoint is not None:
                most = config.buffer_steps + 1
                self._askers = self._socket(
                    zmq.ROUTER, most, "replay_endpoint", self.replay_endpoint
                )
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        self._bell, self._rings = socket.socketpair()  # wakes the thread
        self._bell.setblocking(False)
        self._rings.setblocking(False)
        self._thread: threading.Thread | None = None

    def start(self, block_size: int, kept: Sequence[KV | Window | KeptState]) -> None:
        """Begin to publish. kept: what the engine's KV groups keep of a text."""
        wire = Wire(block_size, kept, self.rank, as_arrays=self._as_arrays)
        name = "quire-events"
        self._thread = threading.Thread(target=self._run, args=[wire], name=name, daemon=True)
        self._thread.start()

    def engine_begins(self, scheduler: Scheduler, hooks: Hooks) -> None:
        """Hear of this scheduler's prefix cache from now on."""
        self._events = BlockEvents.of(scheduler)

    def contents_change(self, scheduler: Scheduler) -> None:
        """Publish what has happened since the call before."""
        if self._events is not None:
            self.publish(self._events.take())

    def publish(self, events: Sequence[BlockEvent]) -> None:
        """Hand events over to the thread, if there are any. Called by one thread."""
        if not events:
            return
        number = self.num_published + self.num_dropped
        if len(self._waiting) >= self._most_waiting:
            if not self.num_dropped:
                logger.warning("more than %d batches of KV events wait to be sent: dropped from "
                               "batch %d on", self._most_waiting, number)  # fmt: skip
            self.num_dropped += 1
            return
        self.num_published += 1
        self._waiting.append((number, time.time(), events))
        self._ring()

    def close(self) -> None:
        """Send what waits, and end."""
        self._closing = True
        self._ring()
        if self._thread is not None:
            self._thread.join(_LINGER)
            if self._thread.is_alive():  # it may still use the sockets
                return
        self._context.destroy(linger=int(_LINGER * 1000))
        self._bell.close()
        self._rings.close()
        if self.num_dropped:
            logger.warning("%d batches of KV events were dropped", self.num_dropped)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # its socket is full, or closed
            self._bell.send(b"\0")

    def _socket(self, kind: int, most: int, name: str, address: str) -> Any:
        """A socket that keeps ``most`` messages for each slow subscriber."""
        zmq = self._zmq
        made = self._context.socket(kind)
        made.setsockopt(zmq.SNDHWM, most)
        made.setsockopt(zmq.MAXMSGSIZE, _MOST_RECEIVED)
        try:
            if kind == zmq.PUB and not is_listened_on(address):
                made.connect(address)
            else:
                made.bind(address)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"kv_events_config: {name} {address} cannot be used: {error.strerror}"
            ) from error
        return made

    # -- in its thread -------------------------------------------------------------------------

    def _run(self, wire: Wire) -> None:
        poller = self._zmq.Poller()
        poller.register(self._rings, self._zmq.POLLIN)
        if self._askers is not None:
            poller.register(self._askers, self._zmq.POLLIN)
        try:
            while not (self._closing and not self._waiting):
                ready = dict(poller.poll())
                if self._askers is not None and self._askers in ready:
                    self._replay()
                if self._rings.fileno() in ready:
                    self._rings.recv(4096)
                    self._send(wire)
        except Exception:  # requests are served without events
            logger.exception("KV events are no longer published")
            self._most_waiting = 0

    def _send(self, wire: Wire) -> None:
        while self._waiting:
            number, seconds, events = self._waiting.popleft()
            counted, payload = number.to_bytes(8, "big"), wire.batch(seconds, events)
            self._sent.append((counted, payload))
            self._subscribers.send_multipart((self._topic, counted, payload))

    def _replay(self) -> None:
        """Send a subscriber all batches that are kept, from the number that it asks for."""
        asker, *question = self._askers.recv_multipart()
        if len(question) != 2 or question[0] or len(question[1]) != 8:
            logger.warning("a request to replay KV events is an empty frame and 8 bytes")
            return
        for counted, payload in self._sent:
            if counted >= question[1]:
                self._askers.send_multipart((asker, b"", self._topic, counted, payload))
        self._askers.send_multipart((asker, b"", b"", _LAST, b""))
