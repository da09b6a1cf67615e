"""From one key of a zone to the next: at every moment every validator can follow."""

from __future__ import annotations

import shutil
from pathlib import Path

import dns.dnssec
import dns.rrset
import pytest
from tests.clock import Clock
from tests.dns.example import NOW, ORIGIN, responder, zone
from tests.dns.signing.test_dnssec import ask, query

from skerry_cli.home.errors import CannotStart
from skerry_cli.home.state import Home
from skerry_cli.roles.dns_keys import keys as command
from skerry_dns.server.responder import Responder
from skerry_dns.signing.rollover import PUBLISH_SECONDS, RETIRE_SECONDS, Stage
from skerry_dns.signing.signed_zone import SignedZone
from skerry_dns.signing.zone_key import KeyUnusable, ZoneKey
from skerry_dns.signing.zone_keys import KeyFiles

START = NOW


@pytest.fixture
def files(tmp_path: Path) -> KeyFiles:
    """With one key."""
    path = tmp_path / "dns" / "example.test.key"
    ZoneKey.create(path)
    return KeyFiles(path)


def server_at(files: KeyFiles, now: float) -> Responder:
    """A server that is started, or has looked at its keys, just now."""
    keys = files.at(now)
    assert keys is not None
    clock = Clock(NOW)
    clock.now = now
    return responder(
        clock, signed=SignedZone(zone(*keys.records(ORIGIN)), keys.signing, keys.beside)
    )


def check(
    files: KeyFiles, now: float, *, trusted: ZoneKey, cached: list[dns.rrset.RRset]
) -> dns.rrset.RRset:
    """Whoever trusts `trusted` (by the parent's DS record) validates the keys, and with these, as
    with any set of keys that may still be `cached`, the records. Returns the set of keys."""
    server = server_at(files, now)
    for rdtype in ("DNSKEY", "CDS", "CDNSKEY"):
        rrset, signatures = ask(server, query("@", rdtype)).answer
        anchor = {ORIGIN: dns.rrset.from_rdata(ORIGIN, 3600, trusted.dnskey).to_rdataset()}
        dns.dnssec.validate(rrset, signatures, anchor, now=now)
    keys, _ = ask(server, query("@", "DNSKEY")).answer
    for name in ("static", "ai"):
        rrset, signatures = ask(server, query(name, "A")).answer
        for known in (keys, *cached):
            dns.dnssec.validate(rrset, signatures, {ORIGIN: known.to_rdataset()}, now=now)
    return keys


def asked_of_parent(files: KeyFiles, now: float) -> list[int]:
    """Key tags of the CDS records."""
    answer = ask(server_at(files, now), query("@", "CDS"))
    return [int(record.to_text().split()[0]) for record in answer.answer[0]]


def tag(key: ZoneKey) -> int:
    return dns.dnssec.key_id(key.dnskey)


def test_every_validator_can_follow(files: KeyFiles) -> None:
    old = ZoneKey.load(files.path)
    before = check(files, START, trusted=old, cached=[])
    assert (len(before), asked_of_parent(files, START)) == (1, [tag(old)])

    new = files.roll(START)
    both = check(files, START, trusted=old, cached=[before])
    assert len(both) == 2
    last = START + PUBLISH_SECONDS - 1
    check(files, last, trusted=old, cached=[before, both])
    assert asked_of_parent(files, last) == [tag(old)]

    signing = START + PUBLISH_SECONDS  # sets of one key have left every cache by now
    check(files, signing, trusted=old, cached=[both])
    check(files, signing, trusted=new, cached=[both])
    assert asked_of_parent(files, signing) == [tag(new)]
    check(files, signing + 365 * 86_400, trusted=old, cached=[both])  # not before it is confirmed

    confirmed = signing + 1000
    files.confirm(confirmed)
    last = confirmed + RETIRE_SECONDS - 1
    check(files, last, trusted=old, cached=[both])
    check(files, last, trusted=new, cached=[both])

    done = confirmed + RETIRE_SECONDS
    after = check(files, done, trusted=new, cached=[both])
    assert list(after) == [new.dnskey]
    files.finish(done)
    assert files.stage(done) is Stage.ALONE
    assert check(files, done, trusted=new, cached=[both]) == after
    assert not files.next_path.exists()


def test_only_sets_of_keys_have_two_signatures(files: KeyFiles) -> None:
    files.roll(START)
    server = server_at(files, START)
    counts = {
        (name, rdtype): len(ask(server, query(name, rdtype)).answer[1])
        for name, rdtype in (("@", "DNSKEY"), ("@", "CDS"), ("@", "SOA"), ("ai", "A"))
    }
    assert list(counts.values()) == [2, 2, 1, 1]


def test_steps_out_of_turn_are_refused(files: KeyFiles) -> None:
    with pytest.raises(KeyUnusable, match="no key is on its way"):
        files.confirm(START)
    with pytest.raises(KeyUnusable, match="still needed: the new one is alone"):
        files.finish(START)
    files.roll(START)
    with pytest.raises(KeyUnusable, match="on its way already"):
        files.roll(START)
    with pytest.raises(KeyUnusable, match="not in every cache yet"):
        files.confirm(START + PUBLISH_SECONDS - 1)
    files.confirm(START + PUBLISH_SECONDS)
    first = files.rollover()
    files.confirm(START + 2 * PUBLISH_SECONDS)  # again changes nothing
    assert files.rollover() == first
    with pytest.raises(KeyUnusable, match="still needed: the new one is signing"):
        files.finish(START + PUBLISH_SECONDS)


def test_what_was_cut_off_can_be_run_again(files: KeyFiles) -> None:
    ZoneKey.create(files.next_path)  # and not noted: nobody has seen it
    new = files.roll(START)
    files.confirm(START + PUBLISH_SECONDS)
    done = START + PUBLISH_SECONDS + RETIRE_SECONDS
    files.next_path.replace(files.path)  # `finish` got so far
    keys = files.at(done)
    assert keys is not None
    assert (keys.stage, keys.signing.dnskey) == (Stage.DONE, new.dnskey)
    files.finish(done)
    assert files.stage(done) is Stage.ALONE


def test_files_that_come_one_by_one_from_another_server(files: KeyFiles, tmp_path: Path) -> None:
    """Nothing changes until all are there, and never by keys of different rollovers."""
    other = KeyFiles(tmp_path / "other" / "example.test.key")
    other.path.parent.mkdir()
    shutil.copy(files.path, other.path)
    files.roll(START)
    shutil.copy(files.rollover_path, other.rollover_path)
    with pytest.raises(KeyUnusable, match=r"cannot read .*\.next"):
        other.at(START)
    shutil.copy(files.next_path, other.next_path)
    published = other.at(START)
    assert published is not None
    assert published.tags == (ZoneKey.load(files.path).tag, ZoneKey.load(files.next_path).tag)

    confirmed = START + PUBLISH_SECONDS
    done = confirmed + RETIRE_SECONDS
    files.confirm(confirmed)
    shutil.copy(files.rollover_path, other.rollover_path)
    files.finish(done)
    second = files.roll(done)  # and nobody has run `finish` there
    for path, copied in (
        (files.next_path, other.next_path),
        (files.rollover_path, other.rollover_path),
    ):
        shutil.copy(path, copied)
        with pytest.raises(KeyUnusable, match="copy all key files"):
            other.at(done)
    shutil.copy(files.path, other.path)
    held = other.at(done)
    assert held is not None
    assert held.beside is not None
    assert (held.stage, held.beside.dnskey) == (Stage.PUBLISHED, second.dnskey)


def test_a_damaged_note_is_told(files: KeyFiles) -> None:
    files.rollover_path.write_text("{}")
    with pytest.raises(KeyUnusable, match="published_at"):
        files.at(START)


def test_commands(tmp_path: Path, files: KeyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path)
    old = ZoneKey.load(files.path)

    def told(step: str, now: float) -> tuple[str, str]:
        command(step, "example.test", home, now)
        captured = capsys.readouterr()
        return captured.out, captured.err

    assert told("show", START) == (old.ds(ORIGIN) + "\n", "")
    out, err = told("roll", START)
    assert out == ""
    assert f"The next key is in {files.next_path}" in err
    assert "signs from 2027-01-16 08:00 UTC on" in err
    new = ZoneKey.load(files.next_path)
    out, err = told("show", START + PUBLISH_SECONDS)
    assert (out, "keys confirm`" in err) == (new.ds(ORIGIN) + "\n", True)
    assert "needed until 2027-01-24 08:00 UTC" in told("confirm", START + PUBLISH_SECONDS)[1]
    done = START + PUBLISH_SECONDS + RETIRE_SECONDS
    assert "keys finish`" in told("show", done)[1]
    assert told("finish", done)[0] == new.ds(ORIGIN) + "\n"
    with pytest.raises(CannotStart, match="no key is on its way"):
        command("confirm", "example.test", home, done)
    with pytest.raises(CannotStart, match="has no key"):
        command("show", "other.test", home, done)
