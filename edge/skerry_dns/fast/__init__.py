"""The batched fast path of the DNS server: queries answered in compiled code, without the GIL.

    responder ──▶ compiling ──▶ Table ─────────┐ (immutable; swapped, never locked)
                                               ▼
    UDP socket ──▶ serving: recvmmsg ─▶ responding ─▶ sendmmsg
                                               │ anything unusual
                                               ▼
                                       the server's event loop (Responder)

Answers are those of `Responder`, which renders every one of them ahead; here they are found,
completed with what the query decides (id, flags, EDNS) and sent. Needs numba and 64-bit Linux.
"""
