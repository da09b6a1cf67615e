"""What breaks in a world: nodes, regions, and the ways between them; and what becomes whole again.

A node that dies is noticed at once, as its connection breaks; one that freezes, a region and a way
after `NOTICE_SECONDS` without an answer. Streams go on elsewhere, their tokens so far as part of
the prompt; those of a region's own edges break off with it, and its clients call another region
once DNS says so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from skerry_regions.routing.fast.compiled import Int64s
from skerry_regions.twin.kernel import state
from skerry_regions.twin.kernel.entries import push_event
from skerry_regions.twin.scenario import Failure
from skerry_regions.twin.world import Built, edges_of

NOTICE_SECONDS = 2.0  # without an answer to pings
BREAK_SECONDS = 0.05  # until a broken connection's requests are elsewhere


class Breaking:
    """Has a scenario's failures happen."""

    def __init__(self, built: Built, at: Callable[[float, Callable[[float], None]], None]) -> None:
        """`at` has something called at a time of the virtual clock."""
        self._built, self._at = built, at
        self._places = {name: number for number, name in enumerate(built.scenario.names)}
        for failure in built.scenario.failures:
            at(failure.at, lambda now, each=failure: self._begin(each, now))  # type: ignore[misc]

    def _begin(self, failure: Failure, now: float) -> None:
        over = now + failure.seconds
        if failure.node is not None:
            slot = self._built.names.index(failure.node)
            if not self._built.world.nodes.up[slot]:
                return
            self._built.break_down(slot)
            if failure.freezes:
                self._at(now + NOTICE_SECONDS, lambda then: self._lose(slot, then))
            else:
                self._lose(slot, now)
                self._built.forget_blocks(slot)
            self._at(max(over, now + NOTICE_SECONDS), lambda _: self._restore(slot))
        elif failure.region is not None:
            self._region_down(self._places[failure.region], now, over)
        elif failure.partition is not None:
            a, b = (self._places[name] for name in failure.partition)
            self._part(a, b, now)
            self._at(over, lambda _: self._built.reunite(a, b))

    # ── nodes ───────────────────────────────────────────────────────────────────────────────────

    def _restore(self, slot: int) -> None:
        self._built.repair(slot)
        self._built.mark_regions()

    def _lose(self, slot: int, now: float) -> None:
        """Have edges go on elsewhere with all that a node had."""
        self._built.mark(slot, False)
        self._built.mark_regions()
        requests = self._built.world.requests
        phase = requests.phase
        at_prefill = (phase == state.QUEUED) & (requests.prefill == slot)
        moving = (phase == state.MOVING) & ((requests.prefill == slot) | (requests.decode == slot))
        decoding = (phase == state.DECODING) & (requests.decode == slot)
        self._go_on(np.flatnonzero(at_prefill | moving | decoding), now + BREAK_SECONDS)

    def _go_on(self, numbers: Int64s, then: float) -> None:
        """Take requests off their nodes, and have their edges place them once more."""
        world = self._built.world
        requests = world.requests
        for x in numbers:
            made = self._take_off(int(x))
            requests.prompt[x] += made
            requests.left[x] = max(int(requests.left[x]) - made, 1)
            requests.attempt[x] += 1
            requests.phase[x] = state.ON_ITS_WAY
            requests.since[x] = then
            while int(world.clock.length[0]) + 8 >= len(world.clock.events.times):
                self._built.grow()
                world = self._built.world
            push_event(world.clock, then, state.AGAIN, int(x), int(requests.attempt[x]))

    def _take_off(self, x: int) -> int:
        """Remove a request from its nodes' queues and batches; return the tokens it made there."""
        world = self._built.world
        requests, nodes = world.requests, world.nodes
        phase, made = int(requests.phase[x]), 0
        if requests.edge[x] >= 0 and phase in (state.QUEUED, state.MOVING, state.DECODING):
            world.rows.active[requests.edge[x], requests.decode[x]] -= 1
        if phase == state.QUEUED:
            self._unqueue(x)
        if phase != state.DECODING:
            return 0
        v = int(requests.decode[x])
        count = int(nodes.num_streams[v])
        kept = [j for j in range(count) if nodes.streams[v, j] != x]
        if len(kept) < count:
            j = next(j for j in range(count) if nodes.streams[v, j] == x)
            made = int(requests.left[x] - (nodes.keys[v, j] - nodes.steps[v]))
            order = sorted(kept, key=lambda j: int(nodes.keys[v, j]))  # sorted, so a heap
            keys, streams = nodes.keys[v, order].copy(), nodes.streams[v, order].copy()
            nodes.keys[v, : len(order)], nodes.streams[v, : len(order)] = keys, streams
            nodes.num_streams[v] = len(order)
            nodes.context[v] -= requests.context[x] + made - 1
        else:
            self._unjoin(v, x)
            made = 1
        return max(made, 1)

    def _unqueue(self, x: int) -> None:
        """Take a prompt out of its queue, and out of the step that runs."""
        world = self._built.world
        requests, nodes = world.requests, world.nodes
        v = int(requests.prefill[x])
        chunks = nodes.chunks[v, : nodes.num_chunks[v]]
        if x in chunks:
            keep = chunks != x
            tokens = nodes.chunk_tokens[v, : len(chunks)][keep].copy()
            left = chunks[keep].copy()
            nodes.chunks[v, : len(left)], nodes.chunk_tokens[v, : len(left)] = left, tokens
            nodes.num_chunks[v] = len(left)
        before, after = int(requests.previous[x]), int(requests.next[x])
        if before == state.NONE:
            nodes.head[v] = after
        else:
            requests.next[before] = after
        if after == state.NONE:
            nodes.tail[v] = before
        else:
            requests.previous[after] = before
        nodes.num_waiting[v] -= 1
        tokens_left = float(requests.assumed[x])
        if requests.cached[x] >= 0:
            tokens_left = float(requests.prompt[x] - requests.cached[x] - requests.computed[x])
        nodes.waiting[v, 0] -= tokens_left
        nodes.waiting[v, 1] -= tokens_left * (
            float(requests.prompt[x]) - tokens_left + (tokens_left + 1) / 2
        )
        if nodes.num_waiting[v] == 0:
            nodes.waiting[v] = 0.0

    def _unjoin(self, v: int, x: int) -> None:
        world = self._built.world
        requests, nodes = world.requests, world.nodes
        line, at = [], int(nodes.join_head[v])
        for _ in range(int(nodes.num_joining[v])):
            line.append(at)
            at = int(requests.next[at])
        if x not in line:
            return
        line.remove(x)
        for one, other in zip(line, [*line[1:], state.NONE], strict=True):
            requests.next[one] = other
        nodes.join_head[v] = line[0] if line else state.NONE
        nodes.join_tail[v] = line[-1] if line else state.NONE
        nodes.num_joining[v] = len(line)
        nodes.joining_context[v] = float(requests.context[line].sum()) if line else 0.0

    # ── regions ─────────────────────────────────────────────────────────────────────────────────

    def _region_down(self, region: int, now: float, over: float) -> None:
        world = self._built.world
        requests = world.requests
        slots = range(*edges_of(world.regions.first_slot, region))
        edges = range(*edges_of(world.regions.first_edge, region))
        were_up = [slot for slot in slots if world.nodes.up[slot]]
        phase = requests.phase
        running = (phase > state.COMING) & (phase < state.DONE)
        own = running & (requests.region == region)
        for x in np.flatnonzero(own):  # their edge is gone
            self._take_off(int(x))
            requests.attempt[x] += 1
            requests.phase[x] = state.FAILED
        at_nodes = running & ~own & (requests.edge >= edges.start) & (requests.edge < edges.stop)
        at_nodes &= phase >= state.QUEUED
        self._go_on(np.flatnonzero(at_nodes), now + NOTICE_SECONDS)
        for slot in slots:
            self._built.break_down(slot)
        for slot in were_up:
            self._built.mark(slot, False)
            self._built.forget_blocks(slot)
        self._at(now + NOTICE_SECONDS, lambda _: self._built.mark_regions())
        rtts = self._built.ways.rtts[region].copy()
        rtts[region] = np.inf
        down = [r for r, home in enumerate(world.regions.home[:-1]) if home != r]
        rtts[down] = np.inf
        nearest = int(np.argmin(rtts))
        is_any = bool(np.isfinite(rtts[nearest]))
        world.regions.home[region] = nearest if is_any else state.NONE
        dns = self._built.scenario.dns_seconds
        world.regions.moved_at[region] = now + dns
        for slot in slots:
            self._at(over, lambda _, each=slot: self._restore(each))  # type: ignore[misc]
        self._at(over + dns, lambda _: world.regions.home.__setitem__(region, region))

    def _part(self, a: int, b: int, now: float) -> None:
        """Cut the way between two regions."""
        self._built.part(a, b)
        world = self._built.world
        requests, nodes = world.requests, world.nodes
        running = (requests.phase >= state.QUEUED) & (requests.phase < state.DONE)
        served = nodes.region[requests.prefill]
        across = ((requests.region == a) & (served == b)) | ((requests.region == b) & (served == a))
        self._go_on(np.flatnonzero(running & across), now + NOTICE_SECONDS)
