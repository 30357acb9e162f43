"""Every byte of the output arrives once and in order, whatever happens to the server; secrets never do."""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import sys
import urllib.parse

from hypothesis import given
from hypothesis import strategies as st

from oarlock.agent.protocol import blanking, stream

AWAIT_GO = "for _ in $(seq 6000); do [ -e $OUTSIDE/go ] && break; sleep 0.05; done"
PRINTER = """
import os, sys, time
until = os.environ['OUTSIDE'] + '/go'
n = 0
while n < 600000 and not os.path.exists(until) or n % 1000:
    n += 1
    os.write(1, b'%d %s\\n' % (n, b'x' * (n % 97)))
    if n % 50 == 0: time.sleep(0.005)
os.write(2, b'%d\\n' % n)
"""


def expected(count: int) -> bytes:
    return b"".join(b"%d %s\n" % (n, b"x" * (n % 97)) for n in range(1, count + 1))


def test_lines_that_the_server_has_lost_are_sent_again_though_none_is_new(rig):
    rig.begin(f"echo one; echo two; echo > $OUTSIDE/said; {AWAIT_GO}; echo three")
    rig.server.wait_for(lambda: rig.server.logs["stdout.0"] == b"one\ntwo\n")
    with rig.server.changed:
        del rig.server.logs["stdout.0"][2:]
        rig.server.cut_logs = {"stdout.0"}
    rig.server.wait_for(lambda: rig.server.logs["stdout.0"] == b"one\ntwo\n")
    (rig.outside / "go").touch()
    rig.finish()
    assert rig.server.logs["stdout.0"] == b"one\ntwo\nthree\n"


def test_bytes_arrive_once_and_in_order_across_outages(rig):
    (rig.outside / "printer.py").write_text(PRINTER)
    rig.server.forget_answers = 3
    rig.begin('exec "$PYTHON" $OUTSIDE/printer.py')
    for _ in range(4):
        before = len(rig.server.logs["stdout.0"])
        rig.server.wait_for(lambda before=before: len(rig.server.logs["stdout.0"]) > before + 2000)
        rig.server.stop()
        rig.server.forget_answers = 1
        rig.server.start()
    (rig.outside / "go").touch()
    record = rig.finish()
    assert record["code"] == 0
    count = int(rig.server.logs["stderr.0"])
    assert rig.server.logs["stdout.0"] == expected(count)
    assert rig.server.forget_answers == 0, "no acknowledgement was lost: this test tested nothing"


def test_a_server_that_has_less_or_more_than_was_acknowledged_is_followed(rig):
    """A batch is stored in part, and once an answer is late: the server's length counts."""
    text = b"".join(b"line %d\n" % n for n in range(20000))
    (rig.outside / "text").write_bytes(text)
    rig.begin(f"cat $OUTSIDE/text; {AWAIT_GO}; cat $OUTSIDE/text")
    rig.server.wait_for(lambda: len(rig.server.logs["stdout.0"]) == len(text))
    with rig.server.changed:
        del rig.server.logs["stdout.0"][100_000:]
    (rig.outside / "go").touch()
    rig.finish()
    assert rig.server.logs["stdout.0"] == text * 2


def test_a_full_spool_drops_the_oldest_and_says_how_much(rig):
    line = b"%07d " + b"y" * 91 + b"\n"
    (rig.outside / "text").write_bytes(b"".join(line % n for n in range(30000)))
    rig.begin(
        f"echo first; {AWAIT_GO}; cat $OUTSIDE/text; echo done > $OUTSIDE/done;"
        "for _ in $(seq 6000); do [ -e $OUTSIDE/end ] && break; sleep 0.05; done; echo last",
        spool_bytes=1_000_000,
    )
    rig.server.wait_for(lambda: rig.server.logs["stdout.0"] == b"first\n")
    rig.server.stop()
    (rig.outside / "go").touch()
    rig.wait_for_file("done")
    rig.server.start()
    (rig.outside / "end").touch()
    rig.finish()
    lines = bytes(rig.server.logs["stdout.0"]).splitlines(keepends=True)
    notices = [text.split() for text in lines if text.startswith(b"[oarlock] ")]
    dropped = [(int(words[1]), int(words[3].strip(b"("))) for words in notices]  # bytes, lines
    assert (lines[0], lines[-1]) == (b"first\n", b"last\n")
    kept = [int(text.split()[0]) for text in lines[1:-1] if len(text) == 100 and not text.startswith(b"[")]
    assert len(kept) + sum(count for _, count in dropped) == 30000
    for size, count in dropped:  # more than once, where the server comes back while the program still prints
        assert (count - 1) * 100 < size <= count * 100, "one line may have been sent in part"
    assert sum(size for size, _ in dropped) >= 1_000_000
    gaps = [later - earlier - 1 for earlier, later in itertools.pairwise([-1, *kept])]
    told = []  # by place: a slow machine may drop twice in the same place, and tells each
    for is_notice, texts in itertools.groupby(lines[1:-1], lambda text: text.startswith(b"[oarlock] ")):
        told += [sum(int(text.split()[3].strip(b"(")) for text in texts)] if is_notice else []
    assert [gap for gap in gaps if gap] == told, "the oldest are left out, in one piece each"
    assert kept[-1] == 29999, "the newest are not"


def test_a_program_that_truncates_its_own_output_goes_on_being_heard(rig):
    """`echo text > /dev/stderr` is a common idiom, and truncates the file behind it."""
    rig.begin(
        f"for i in $(seq 100); do echo before $i >&2; done; {AWAIT_GO};"
        "echo truncating > /dev/stderr; for _ in $(seq 6000); do [ -e $OUTSIDE/end ] && break; sleep 0.05; done;"
        "echo after >&2"
    )
    rig.server.wait_for(lambda: rig.server.logs["stderr.0"].endswith(b"before 100\n"))
    (rig.outside / "go").touch()
    rig.server.wait_for(lambda: b"truncating" in rig.server.logs["stderr.0"])
    (rig.outside / "end").touch()
    rig.finish()
    text = rig.server.logs["stderr.0"].decode()
    assert text.endswith("before 100\n[oarlock] the program truncated its own output here\ntruncating\nafter\n")


def test_a_million_lines_arrive(rig):
    script = "import sys\nfor n in range(1000000): sys.stdout.write('step %d loss 0.5\\n' % n)"
    record = rig.run([sys.executable, "-c", script], env={"PYTHONUNBUFFERED": ""})
    assert record["code"] == 0
    assert rig.server.logs["stdout.0"] == b"".join(b"step %d loss 0.5\n" % n for n in range(1000000))


def test_a_line_is_one_write_and_outlives_its_process(rig):
    """Not one for each argument of `print`; and not left in a buffer by a process that is killed right after."""
    script = (
        "import os, sys\n"
        "def writes(): return int(open('/proc/self/io').read().partition('syscw: ')[2].split()[0])\n"
        "before = writes()\n"
        "for n in range(100): print('line', n, 'of', 100)\n"
        "os.write(2, b'%d' % (writes() - before))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    rig.run([sys.executable, "-c", script])
    assert rig.server.logs["stdout.0"] == b"".join(b"line %d of 100\n" % n for n in range(100))
    assert rig.server.logs["stderr.0"] == b"100"


def test_a_server_that_refuses_the_bytes_does_not_keep_the_agent_for_ever(rig):
    rig.server.refuse_logs = True
    record = rig.run("echo hello; exit 3")
    assert record["code"] == 3
    assert rig.server.exits() == [record]
    assert "was refused with 413" in (rig.directory / "agent.log").read_text()


# Secrets

SECRET = "hunter2-" + "s" * 24 + "/+é%"


def test_secrets_are_blanked_in_every_form_and_across_batches(rig):
    """The secret is written in two halves, with time for a batch to go out between them."""
    rig.server.secrets = {"TOKEN": {"as": "env", "value": SECRET}, "PIN": {"as": "env", "value": "123"}}
    script = (
        "import os, sys, time, json, base64, urllib.parse\n"
        "s = os.environ['TOKEN']; b = s.encode()\n"
        "for at in range(1, len(b), 5):\n"
        "    os.write(1, b'<' + b[:at]); time.sleep(0.15); os.write(1, b[at:] + b'>')\n"
        "for text in (json.dumps(s), urllib.parse.quote(s), urllib.parse.quote(s, safe=''), repr(s)):\n"
        "    os.write(1, b'\\n' + text.encode())\n"
        "for before in (b'', b'a', b'ab'):\n"
        "    os.write(1, b'\\n' + base64.b64encode(before + b + b'tail'))\n"
        "sys.stderr.write(s); sys.exit('failed with ' + s)\n"
    )
    record = rig.run([sys.executable, "-c", script])
    told = bytes(rig.server.logs["stdout.0"])
    raw = (rig.directory / "stdout.0").read_bytes()
    assert len(told) == len(raw)
    secret = SECRET.encode()
    blanked = b"<" + b"*" * len(secret) + b">"
    assert told.startswith(blanked * len(range(1, len(secret), 5)))
    everything = told + bytes(rig.server.logs["stderr.0"]) + json.dumps([record, rig.server.reports]).encode()
    for form in (SECRET, json.dumps(SECRET)[1:-1], urllib.parse.quote(SECRET), urllib.parse.quote(SECRET, safe="")):
        assert form.encode() not in everything
        assert form.encode() in raw + secret
    for line in told.splitlines()[-3:]:
        assert line.count(b"*") >= 4 * (len(secret) - 2) // 3 - 4
        assert base64.b64encode(secret)[:16] not in line
    assert record["processes"][0]["last_lines"][-1].endswith("*" * len(secret))


@st.composite
def outputs(draw):
    secrets = draw(st.lists(st.text("ab", min_size=4, max_size=7), min_size=1, max_size=3))
    pieces = draw(st.lists(st.one_of(st.sampled_from(secrets), st.text("abc", max_size=4)), max_size=12))
    return secrets, "".join(pieces).encode()


def oracle(secrets: list[str], data: bytes) -> bytes:
    """Every position that lies in some occurrence of some secret is a star."""
    hidden = {
        at + step
        for secret in secrets
        for at in range(len(data))
        if data.startswith(secret.encode(), at)
        for step in range(len(secret))
    }
    return bytes(ord("*") if at in hidden else byte for at, byte in enumerate(data))


@given(outputs(), st.randoms(use_true_random=False), st.integers(1, 9))
def test_blanking_does_not_depend_on_where_the_batches_are_cut(tmp_path_factory, output, chance, batch_bytes):
    """Whatever was written when, and however small the batches, what is shipped is what the oracle blanks."""
    secrets, data = output
    path = tmp_path_factory.getbasetemp() / "stream"
    path.write_bytes(b"")
    file = stream.Stream("stdout.0", str(path), blanking.Blanker(secrets))
    shipped, before = bytearray(), stream.BATCH_BYTES
    stream.BATCH_BYTES = batch_bytes
    try:
        with path.open("ab", buffering=0) as out:
            left = data
            while left or file.unsent():
                step = chance.randint(0, 4)
                out.write(left[:step])
                left = left[step:]
                batch = file.batch(final=not left)
                shipped += batch
                file.acknowledge(len(shipped))
    finally:
        stream.BATCH_BYTES = before
        os.close(file._fd) if file._fd >= 0 else None
    assert bytes(shipped) == oracle(secrets, data)


@given(st.integers(0, 10_000))
def test_any_offset_can_be_asked_for_again(tmp_path_factory, seed):
    """Drops, truncations and a server that forgets: its copy in the end is one consistent stream."""
    chance = random.Random(seed)
    path = tmp_path_factory.getbasetemp() / "asked-again"
    path.write_bytes(b"")
    file = stream.Stream("stdout.0", str(path), None)
    stored, lines = bytearray(), 0
    with path.open("ab", buffering=0) as out:
        for _ in range(30):
            for _ in range(chance.randint(0, 5)):
                out.write(b"%06d\n" % lines)
                lines += 1
            if chance.random() < 0.2:
                file.drop(chance.randint(1, 40))
            batch = file.batch(final=False)[: chance.randint(0, 50)]
            if chance.random() < 0.8:
                assert file.acknowledged == len(stored)
                stored += batch
            file.acknowledge(len(stored))
        while batch := file.batch(final=True):
            stored += batch
            file.acknowledge(len(stored))
    os.close(file._fd) if file._fd >= 0 else None
    dropped = 0
    whole = []
    for text in bytes(stored).splitlines():
        if text.startswith(b"[oarlock]"):
            words = text.split()
            dropped += int(words[3].strip(b"("))
            assert int(words[1]) <= int(words[3].strip(b"(")) * 7
        elif len(text) == 6:
            whole.append(int(text))
    assert whole == sorted(set(whole))
    assert lines - dropped - len(whole) in range(2 + dropped)


def test_each_longer_line_of_a_secret_is_blanked_by_itself():
    """A key's or a certificate's: programs print them line by line."""
    line = "0123456789abcdef"
    assert len(line) == blanking.SHORTEST_LINE
    key = f"-----BEGIN KEY-----\n{line}\n{line[1:]}\n"
    blanker = blanking.Blanker([key])
    assert blanker.cover(f"a {line} b".encode()) == b"a " + b"*" * 16 + b" b"
    assert blanker.cover(f"a {line[1:]} b".encode()) == f"a {line[1:]} b".encode(), "too short to be sure"


def test_a_server_that_has_more_than_was_written_makes_nothing_up(tmp_path):
    """It is of another life of the stream: nothing was truncated, and the next output is offered."""
    path = tmp_path / "stdout.0"
    path.write_bytes(b"one\n")
    file = stream.Stream("stdout.0", str(path), None)
    file.acknowledge(100)
    assert (file.acknowledged, file.batch(final=False)) == (4, b"")
    with path.open("ab") as out:
        out.write(b"two\n")
    assert file.batch(final=True) == b"two\n"
    os.close(file._fd)
