"""Batches of datagrams: received by one system call, answered, and sent by another.

The structures are those of 64-bit, little-endian Linux (`struct mmsghdr`, `struct iovec`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from skerry_dns.fast.asked import HEADER
from skerry_dns.fast.compiled import Bytes, Int64s, compiled, wide
from skerry_dns.fast.responding import (
    LARGEST,
    LEFT,
    PACKET,
    RECEIVED,
    SENT,
    SLOW,
    SLOW_LOST,
    SOCKADDR,
    UNSENT,
    Keys,
    Scratch,
    respond,
)
from skerry_dns.fast.table import Table
from skerry_dns.wire import MAX_QUERY

WIDTH = 64  # datagrams per system call
SLOT = PACKET + MAX_QUERY + 32  # bytes; a query that is longer than MAX_QUERY is seen to be
MSG_DONTWAIT, MSG_NOSIGNAL, MSG_WAITFORONE = 0x40, 0x4000, 0x10000
CLOCK_REALTIME = 0
FAILURE_PAUSE = 1000  # microseconds, when nothing came or a socket fails

# Words of a `struct mmsghdr`, and of a `struct iovec`.
NAME, NAME_LENGTH, VECTOR, VECTORS, CONTROL, CONTROL_LENGTH, FLAGS, LENGTH = range(8)
BASE, SIZE = range(2)
LOW = 0xFFFFFFFF  # 32-bit fields share their words with padding

# Words of `control`, which the event loop writes.
GENERATION, STOP = range(2)

_recvmmsg = types.ExternalFunction(
    "recvmmsg", types.int32(types.int32, types.intp, types.uint32, types.int32, types.intp)
)
_sendmmsg = types.ExternalFunction(
    "sendmmsg", types.int32(types.int32, types.intp, types.uint32, types.int32)
)
_send = types.ExternalFunction(
    "send", types.intp(types.int32, types.intp, types.uintp, types.int32)
)
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


class Sockets(NamedTuple):
    """File descriptors."""

    udp: int
    slow: int  # takes whole slots, for the event loop


class DatagramBatch(NamedTuple):
    """Buffers of one worker, and the structures that point into them."""

    slots: Bytes  # WIDTH by SLOT: sender and query
    outs: Bytes  # WIDTH by LARGEST
    receiving: Int64s  # WIDTH by 8
    receiving_vectors: Int64s  # WIDTH by 2
    sending: Int64s
    sending_vectors: Int64s
    clock: Int64s  # seconds and nanoseconds


def make_batch() -> DatagramBatch:
    """Write all that never changes, once."""
    slots, outs = np.zeros((WIDTH, SLOT), np.uint8), np.zeros((WIDTH, LARGEST), np.uint8)
    receiving, sending = np.zeros((WIDTH, 8), np.int64), np.zeros((WIDTH, 8), np.int64)
    receiving_vectors, sending_vectors = np.zeros((2, WIDTH, 2), np.int64)
    for i in range(WIDTH):
        receiving[i, NAME] = slots[i].ctypes.data
        receiving[i, NAME_LENGTH] = SOCKADDR
        receiving_vectors[i] = slots[i].ctypes.data + PACKET, SLOT - PACKET
        for headers, vectors in ((receiving, receiving_vectors), (sending, sending_vectors)):
            headers[i, VECTOR] = vectors[i].ctypes.data
            headers[i, VECTORS] = 1
    clock = np.zeros(2, np.int64)
    return DatagramBatch(slots, outs, receiving, receiving_vectors, sending, sending_vectors, clock)


@compiled
def serve(
    sockets: Sockets,
    batch: DatagramBatch,
    table: Table,
    keys: Keys,
    scratch: Scratch,
    control: Int64s,
    waiting: int,
) -> int:
    """Answer until there is another table or an end.

    `waiting` datagrams lie in the batch already; the number that lie there at the return. Within
    the receive timeout of the socket it sees what `control` says.
    """
    while True:
        if waiting == 0:
            waiting = _receive(sockets.udp, batch)
        if control[STOP] or control[GENERATION] != table.generation[0]:
            return waiting
        if waiting:
            _answer_all(sockets, batch, table, keys, scratch, waiting)
            waiting = 0


@compiled
def _receive(udp: int, batch: DatagramBatch) -> int:
    count = _recvmmsg(udp, batch.receiving.ctypes.data, WIDTH, MSG_WAITFORONE, 0)
    if count > 0:
        return wide(count)
    _usleep(FAILURE_PAUSE)
    return 0


@compiled
def _answer_all(
    sockets: Sockets, batch: DatagramBatch, table: Table, keys: Keys, scratch: Scratch, count: int
) -> None:
    _clock_gettime(CLOCK_REALTIME, batch.clock.ctypes.data)
    now = batch.clock[0] + batch.clock[1] * 1e-9
    counters = scratch.counters
    counters[RECEIVED] += count
    answers = 0
    for i in range(count):
        length = batch.receiving[i, LENGTH] & LOW
        out = batch.outs[answers]
        written = respond(batch.slots[i], length, table, keys, scratch, now, out)
        if written == LEFT:
            counters[SLOW] += 1
            # Where the event loop does not keep up, queries are lost, as in a full socket.
            flags = MSG_DONTWAIT | MSG_NOSIGNAL
            if _send(sockets.slow, batch.slots[i].ctypes.data, PACKET + length, flags) < 0:
                counters[SLOW_LOST] += 1
        elif written >= HEADER:
            batch.sending[answers, NAME] = batch.receiving[i, NAME]
            batch.sending[answers, NAME_LENGTH] = batch.receiving[i, NAME_LENGTH] & LOW
            batch.sending_vectors[answers, BASE] = out.ctypes.data
            batch.sending_vectors[answers, SIZE] = written
            answers += 1
        batch.receiving[i, NAME_LENGTH] = SOCKADDR  # again, as the kernel has written there
    _send_all(sockets.udp, batch, answers, counters)


@compiled
def _send_all(udp: int, batch: DatagramBatch, count: int, counters: Int64s) -> None:
    done = 0
    while done < count:
        sent = _sendmmsg(udp, batch.sending[done:].ctypes.data, count - done, MSG_NOSIGNAL)
        if sent > 0:
            done += sent
            counters[SENT] += sent
        else:  # this one cannot be sent (no route, a full device): the others can
            done += 1
            counters[UNSENT] += 1
