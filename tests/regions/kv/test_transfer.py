"""KV transfer without sockets: exact bytes across any split, loss and damage."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from skerry_regions.kv.frames import (
    MAX_SEGMENT_BYTES,
    Ack,
    Checksum,
    Commit,
    Committed,
    Copied,
    Frame,
    KVFrameDecoder,
    Need,
    Offer,
    Segment,
    TransferError,
    TransferRefused,
    encode,
    on_host,
)
from skerry_regions.kv.receiver import Arrived, TransferReceiver
from skerry_regions.kv.sender import TransferSender

LAYERS = 4
BLOCK = LAYERS * 32
TOKEN = b"secret of this transfer"


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def block(number: int) -> bytes:
    return random.Random(number).randbytes(BLOCK)


def offer(count: int, *, build: str = "b1", token: bytes = TOKEN) -> Offer:
    return Offer(
        transfer=7, token=token, request_id="r", epoch=1, numeric_build=build, kv_dtype="float16",
        block_bytes=BLOCK, num_layers=LAYERS, digests=[digest(i) for i in range(count)],
    )  # fmt: skip


def receiver(*, budget_blocks: int = 64, credit_blocks: int = 2) -> TransferReceiver:
    result = TransferReceiver(
        numeric_build="b1", block_elements=BLOCK // 2,
        budget_bytes=budget_blocks * BLOCK, credit_bytes=credit_blocks * BLOCK,
    )  # fmt: skip
    result.reserve(7, TOKEN)
    return result


def wire(frames: list[Frame], cuts: random.Random) -> list[Frame]:
    """Encode, split at random places, decode."""
    data = b"".join(bytes(part) for frame in frames for part in encode(frame))
    decoder, received = KVFrameDecoder(), []
    while data:
        size = cuts.randint(1, len(data))
        received += list(decoder.feed(data[:size]))
        data = data[size:]
    return received


def exchange(
    sender: TransferSender,
    to: TransferReceiver,
    cuts: random.Random,
    *,
    held: set[bytes],
    lose_after: int = 10**9,
) -> Arrived | None:
    """One connection: until nothing moves, or until `lose_after` frames reached the receiver."""
    arrived: Arrived | None = None
    outgoing: list[Frame] = [sender.reconnect()]
    delivered = 0
    while outgoing:
        for frame in wire(outgoing, cuts):
            if delivered >= lose_after:
                return arrived
            delivered += 1
            answers: list[Frame] = []
            for answer in to.receive(frame, held):
                if isinstance(answer, Arrived):
                    arrived = answer
                    answers.append(Committed(7))
                else:
                    answers.append(answer)
            for reply in wire(answers, cuts):
                sender.receive(reply)
        outgoing = list(sender.ready())
    return arrived


@settings(max_examples=examples(60), deadline=None)
@given(
    count=st.integers(1, 9),
    held=st.sets(st.integers(0, 8)),
    seed=st.integers(0, 2**32),
    losses=st.lists(st.integers(0, 6), max_size=4),
)
def test_every_block_arrives_exactly_once_over_any_number_of_lost_connections(
    count: int, held: set[int], seed: int, losses: list[int]
) -> None:
    cuts = random.Random(seed)
    have = {digest(i) for i in held if i < count}
    sender, to = TransferSender(offer(count)), receiver()
    for i in range(count):
        sender.seal(digest(i), block(i), None if i % 2 else 2**64 - 1 - i)
    sender.finish()
    for lose_after in losses:
        exchange(sender, to, cuts, held=have, lose_after=lose_after)
        if sender.outcome is not None:
            break
    arrived = exchange(sender, to, cuts, held=have) if sender.outcome is None else None
    if arrived is not None:
        wanted = [(digest(i), block(i)) for i in range(count) if digest(i) not in have]
        assert [(d, bytes(on_host(b))) for d, b in arrived.blocks] == wanted
        told = {digest(i): 2**64 - 1 - i for i in range(0, count, 2) if digest(i) not in have}
        assert arrived.checksums == told
    assert isinstance(sender.outcome, Committed)


def test_blocks_travel_while_later_ones_are_still_computed() -> None:
    sender, to = TransferSender(offer(3)), receiver(credit_blocks=8)
    [need] = to.receive(sender.offer)
    assert isinstance(need, Need)
    assert need == Need(7, [0, 1, 2], 8 * BLOCK)
    sender.receive(need)
    sender.seal(digest(0), block(0))
    assert [type(f) for f in sender.ready()] == [Segment]
    assert list(sender.ready()) == []
    sender.seal(digest(1), block(1))
    sender.seal(digest(2), block(2))
    sender.finish()
    assert len(list(sender.ready())) == 2
    assert list(sender.ready()) == [], "the commit waits for the acknowledgements"


def test_credit_bounds_what_is_under_way() -> None:
    sender, to = TransferSender(offer(5)), receiver(credit_blocks=2)
    sender.receive(to.receive(sender.offer)[0])  # type: ignore[arg-type]
    for i in range(5):
        sender.seal(digest(i), block(i))
    first = list(sender.ready())
    assert len(first) == 2
    sender.receive(Ack(7, digest(0)))
    assert len(list(sender.ready())) == 1


def test_a_block_in_layer_pieces_is_whole_only_at_the_last() -> None:
    to = receiver()
    to.receive(offer(1))
    whole = block(0)
    half = BLOCK // 2
    assert to.receive(Segment(7, digest(0), 2, 2, whole[half:])) == []
    assert to.receive(Segment(7, digest(0), 0, 2, whole[:half])) == [Ack(7, digest(0))]
    [arrived] = to.receive(Commit(7))
    assert isinstance(arrived, Arrived)
    assert arrived.blocks == [(digest(0), bytearray(whole))]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (offer(1, token=b"guess"), "wrong token"),
        (offer(1, build="b2"), "built by b2, this node takes b1"),
    ],
)
def test_an_offer_that_does_not_fit_is_refused(bad: Offer, reason: str) -> None:
    assert receiver().receive(bad) == [TransferRefused(7, reason)]


@pytest.mark.parametrize("other", [offer(3), offer(2, build="b2")])
def test_an_offer_cannot_change(other: Offer) -> None:
    to = receiver()
    to.reserve(7, TOKEN, any_build=True)
    assert to.receive(offer(2)) == to.receive(offer(2)) == [Need(7, [0, 1], 2 * BLOCK)]
    assert to.receive(other) == [TransferRefused(7, "a transfer cannot change what it offers")]


def test_a_copy_of_another_build_is_taken_when_the_request_says_so() -> None:
    to = receiver()
    to.reserve(7, TOKEN, any_build=True)
    assert to.receive(offer(1, build="b2")) == [Need(7, [0], 2 * BLOCK)]
    to.receive(Segment(7, digest(0), 0, LAYERS, block(0)))
    [arrived] = to.receive(Commit(7))
    assert isinstance(arrived, Arrived)
    assert arrived.numeric_build == "b2"


def test_a_commit_with_blocks_missing_is_refused() -> None:
    to = receiver()
    to.receive(offer(2))
    to.receive(Segment(7, digest(0), 0, LAYERS, block(0)))
    assert to.receive(Commit(7)) == [TransferRefused(7, "committed with 1 blocks missing")]


def test_staging_is_bounded_over_all_transfers() -> None:
    to = receiver(budget_blocks=1)
    to.receive(offer(2))
    assert to.receive(Segment(7, digest(0), 0, LAYERS, block(0))) == [Ack(7, digest(0))]
    answer = to.receive(Segment(7, digest(1), 0, LAYERS, block(1)))
    assert answer == [TransferRefused(7, "no staging memory left")]


def test_a_release_frees_staging_and_refuses_what_comes_late() -> None:
    to = receiver()
    to.receive(offer(1))
    to.receive(Segment(7, digest(0), 0, LAYERS, block(0)))
    assert to.staged_bytes == BLOCK
    to.release(7)
    assert to.staged_bytes == 0
    assert to.receive(Commit(7)) == [TransferRefused(7, "no such transfer, or its lease lapsed")]


def test_a_checksum_of_what_was_not_offered_is_refused() -> None:
    to = receiver()
    to.receive(offer(1))
    assert to.receive(Checksum(7, digest(1), 5)) == [
        TransferRefused(7, "a checksum of what was not offered")
    ]


def test_a_flipped_bit_is_found() -> None:
    header, payload = encode(Segment(7, digest(0), 0, LAYERS, block(0)))
    damaged = bytearray(payload)
    damaged[3] ^= 1
    with pytest.raises(TransferError, match="checksum mismatch in transfer 7"):
        list(KVFrameDecoder().feed(header + bytes(damaged)))


def test_a_length_is_believed_only_up_to_its_bound() -> None:
    header = bytearray(encode(Segment(7, digest(0), 0, LAYERS, block(0)))[0])
    header[36:40] = (MAX_SEGMENT_BYTES + 1).to_bytes(4, "little")
    with pytest.raises(TransferError, match="exceeds the limit"):
        list(KVFrameDecoder().feed(bytes(header)))


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=300), st.integers(0, 60))
def test_hostile_bytes_raise_nothing_but_transfer_errors(noise: bytes, keep: int) -> None:
    good = b"".join(bytes(part) for part in encode(Commit(7)))
    decoder = KVFrameDecoder()
    try:
        for frame in decoder.feed(good[:keep] + noise):
            assert isinstance(frame, Commit)
    except TransferError:
        pass


def test_a_page_is_nothing_without_the_checksum_that_its_engine_looks_at() -> None:
    to, page = receiver(), Copied(7, digest(0), block(0))
    refused = [TransferRefused(7, "a page without its checksum")]
    assert to.receive(page) == refused
    to.reserve(7, TOKEN)
    to.receive(offer(2))
    to.receive(Checksum(7, digest(1), 5))
    assert to.receive(page) == refused


def test_a_page_is_a_whole_block() -> None:
    to = receiver()
    to.receive(offer(1))
    to.receive(Checksum(7, digest(0), 5))
    assert to.receive(Copied(7, digest(0), block(0))) == [Ack(7, digest(0))]
    [arrived] = to.receive(Commit(7))
    assert isinstance(arrived, Arrived)
    assert (arrived.blocks, arrived.checksums) == ([(digest(0), block(0))], {digest(0): 5})
    to = receiver()
    to.receive(offer(1))
    to.receive(Checksum(7, digest(0), 5))
    short = Copied(7, digest(0), block(0)[:-1])
    assert to.receive(short) == [TransferRefused(7, "a segment that does not fit its block")]


def test_a_sender_whose_transfer_is_over_holds_nothing() -> None:
    sender, to = TransferSender(offer(2)), receiver()
    sender.receive(to.receive(sender.offer)[0])  # type: ignore[arg-type]
    sender.seal(digest(0), block(0))
    sender.close()
    sender.seal(digest(1), block(1))
    assert list(sender.ready()) == []
