"""More connections than there is room for: they are closed at once and counted, those that have a place feel nothing, and a place that is given
back is taken by the next one, be it of a client that has been trying meanwhile."""

import contextlib
import json
import os
import resource
import socket
import threading
import unittest

import access_test
import harness
import peer
from access_test import CODE, channel, code_of, healthy, status
from certificates import SERVER_NAME, Authority

# Runs packd with a seccomp filter under which accept4 fails with EINVAL (22) and all else is as it was.
DEAF = """#!/usr/bin/python3
import ctypes, os, struct, sys
NUMBER = {{"x86_64": 288, "aarch64": 242}}[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, NUMBER), (0x06, 0, 0, 0x00050000 | 22), (0x06, 0, 0, 0x7FFF0000)]
program = b"".join(struct.pack("HBBI", *line) for line in code)
class Filter(ctypes.Structure):
    _fields_ = [("size", ctypes.c_ushort), ("code", ctypes.c_char_p)]
prctl = ctypes.CDLL(None, use_errno=True).prctl
if prctl(38, 1, 0, 0, 0) != 0 or prctl(22, 2, ctypes.byref(Filter(len(code), program)), 0, 0) != 0:
    sys.exit("no seccomp filter: " + os.strerror(ctypes.get_errno()))
os.execv("{packd}", ["packd", *sys.argv[1:]])
"""
FLOOD = 3000
HELD_AT_ONCE = 400


def open_descriptors(packd):
    return len(os.listdir(f"/proc/{packd.process.pid}/fd"))


def connect(address, source=None):
    """A connected socket that says nothing."""
    if address.startswith("unix:"):
        made = socket.socket(socket.AF_UNIX)
        made.connect(address[len("unix:"):])
        return made
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=20, source_address=(source, 0) if source else None)


def was_refused(made):
    """Whether the server has closed it."""
    made.setblocking(False)
    try:
        return made.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class Flood:
    """Silent connections, `held` of them at a time, made again as they are refused; with Flood(...): it goes on."""

    def __init__(self, address, held=HELD_AT_ONCE, source=None):
        self.address, self.held, self.source = address, held, source
        self.made = 0
        self.over = threading.Event()
        self.error = None
        self.thread = threading.Thread(target=self.run)

    def run(self):
        sockets = []
        try:
            while not self.over.is_set():
                with contextlib.suppress(ConnectionError, TimeoutError):
                    sockets.append(connect(self.address, self.source))
                self.made += 1
                if len(sockets) >= self.held:
                    refused = [one for one in sockets if was_refused(one)]
                    sockets = [one for one in sockets if one not in refused]
                    for one in refused:
                        one.close()
                    self.over.wait(0.01)
        except OSError as error:
            self.error = error
        for one in sockets:
            one.close()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        if self.error:
            raise self.error


class Case(access_test.Case):
    def limited(self, descriptors):
        """A program that runs packd with so many descriptors."""
        program = os.path.join(self.directory, "packd")
        with open(program, "w") as file:
            file.write(f'#!/bin/sh\nulimit -n {descriptors}\nexec {harness.PACKD} "$@"\n')
        os.chmod(program, 0o755)
        return program

    def refused(self, packd, reason):
        return packd.metrics()[f'packd_connections_refused_total{{reason="{reason}"}}']

    def wait_refused(self, packd, reason, count):
        harness.wait_for(f"{count} refused: {reason}", lambda: self.refused(packd, reason) >= count)

    def wait_open(self, packd, count, door="main"):
        harness.wait_for(f"{count} connections at {door}", lambda: packd.metrics()[f'packd_connections{{door="{door}"}}'] == count)


class CapTest(Case):
    def test_a_flood_hurts_nobody_who_is_in(self):
        """With few descriptors: a job fetches, /metrics is read, and when the flood is over a new client gets in."""
        feed = {"name": "default", "seq_len": 64, "window": 32}
        with harness.Daemon(feeds=[feed], program=self.limited(512), extra={"limits": {"handshake": "1s", "peer_connections": 1000}}) as packd:
            most = packd.metrics()["packd_connections_max"]
            self.assertLess(most, 200, "by the descriptors it has")
            push, opened = peer.Push(packd.address, stream="a"), peer.open_job(packd.address)
            push.welcome()
            fetch = peer.Fetch(packd.address, opened)
            push.block([[7] * 64] * 64)  # two windows: one may stay in the planner
            with Flood(packd.address) as flood:
                while flood.made < FLOOD:
                    push.block([[7] * 64] * 16)
                    for _ in range(16):
                        self.assertIsNotNone(fetch.next())
                    self.assertLess(packd.metrics()["process_open_fds"], 512 - 100, "what packd keeps for itself is free")
                    self.assertEqual(packd.http("/livez")[0], 200)
                self.assertGreater(self.refused(packd, "limit"), FLOOD / 4)
                waiting = packd.start_packctl("--timeout", "60s", "--json", "status")
                harness.wait_for("it is refused, too", lambda: flood.made > FLOOD + 200 or waiting.poll() is not None)
            out, err = waiting.communicate(timeout=harness.DEADLINE_S)
            self.assertEqual(waiting.returncode, 0, err)
            self.assertEqual(json.loads(out)["state"], "STATE_SERVING")
            push.block([[7] * 64] * 16)
            self.assertIsNotNone(fetch.next(), "the same calls as before")
            self.assertIn("connection_refused door=main", packd.log())
            fetch.close()
            push.close()

    def test_a_client_that_is_refused_tries_again(self):
        """libpackd meets a full server, and gets in as soon as a place is free, within its deadline; without one it says so."""
        extra = {"limits": {"connections": 2, "peer_connections": 2, "handshake": "60s"}}
        with harness.Daemon(extra=extra) as packd, contextlib.ExitStack() as held:
            for _ in range(2):
                held.enter_context(connect(packd.address))
            self.wait_open(packd, 2)
            late = packd.packctl("--timeout", "2s", "status", check=False)
            self.assertNotEqual(late.returncode, 0)
            self.assertIn("UNAVAILABLE", late.stderr)
            before = self.refused(packd, "limit")
            waiting = packd.start_packctl("--timeout", "60s", "--json", "status")
            self.wait_refused(packd, "limit", before + 1)
            held.close()
            out, err = waiting.communicate(timeout=harness.DEADLINE_S)
            self.assertEqual(waiting.returncode, 0, err)
            self.assertEqual(json.loads(out)["state"], "STATE_SERVING")

    def test_a_host_has_its_share(self):
        with harness.Daemon(extra={"limits": {"connections": 64, "peer_connections": 8}}) as packd:
            with Flood(packd.address, held=40, source="127.0.0.2"):
                self.wait_refused(packd, "peer", 100)
                for _ in range(4):
                    with channel(packd.address) as made:
                        self.assertEqual(code_of(lambda: healthy(made)), CODE.OK, "another host feels nothing")
            self.assertEqual(self.refused(packd, "limit"), 0)
            self.assertRegex(packd.log(), r"connection_refused door=main peer=127\.0\.0\.2:\d+ reason=peer open=\d+ max=64")

    def test_doors_have_places_of_their_own(self):
        sock = os.path.join(self.directory, "packd.sock")
        extra = {"limits": {"connections": 3, "peer_connections": 3}, "listen_admin": ["127.0.0.1:0"], "listen_health": ["127.0.0.1:0"]}
        with harness.Daemon(extra=extra, arguments=["--listen", "unix:" + sock]) as packd, contextlib.ExitStack() as held:
            ports = self.ports(packd)
            for address in (packd.address, packd.address, "unix:" + sock):
                held.enter_context(connect(address))
            self.wait_open(packd, 3)
            for address in (packd.address, "unix:" + sock):
                with channel(address) as made:
                    self.assertEqual(code_of(lambda: healthy(made)), CODE.UNAVAILABLE)
            with channel(ports["admin"][0]) as admin, channel(ports["health"][0]) as health:
                self.assertEqual(code_of(lambda: status(admin)), CODE.OK)
                self.assertEqual(code_of(lambda: healthy(health)), CODE.OK)
            self.assertEqual(packd.http("/readyz")[0], 200)

    def test_who_says_nothing_loses_his_place(self):
        with harness.Daemon(extra={"limits": {"handshake": "1s"}}) as packd, connect(packd.address) as silent:
            silent.settimeout(harness.DEADLINE_S)
            while silent.recv(1 << 16):  # the server's own preface comes first
                pass
            self.wait_open(packd, 0)

    def test_who_calls_nothing_gives_his_place_back(self):
        """HTTP/2 has begun and no call comes: the connection ends. One with an open call stays, and who calls again after a pause does not notice."""
        feed = {"name": "default", "seq_len": 64, "window": 4}
        extra = {"limits": {"stall": "1s", "connections": 12, "peer_connections": 12}}
        with harness.Daemon([feed], extra=extra) as packd, channel(packd.address) as made:
            self.assertEqual(code_of(lambda: status(made)), CODE.OK)
            push = peer.Push(packd.address)
            push.welcome()
            with contextlib.ExitStack() as idle:
                for _ in range(9):
                    idle.enter_context(connect(packd.address)).sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
                self.wait_open(packd, 11)
                self.wait_open(packd, 1)  # the one of the Push call
                self.assertEqual(code_of(lambda: status(made)), CODE.OK)
            push.block([[1, 2, 3]])
            push.wait_durable(1)
            push.close()

    def test_more_than_descriptors_carry_is_a_start_error(self):
        packd = harness.Daemon(program=self.limited(256), extra={"limits": {"connections": 1000}})
        with self.assertRaises(AssertionError) as caught:
            packd.start()
        self.assertRegex(str(caught.exception), r"limits.connections is 1000; with 256 descriptors .* room for 64")

    def test_descriptors_for_nobody_are_a_start_error(self):
        with self.assertRaises(AssertionError) as caught:
            harness.Daemon(program=self.limited(28)).start()
        self.assertRegex(str(caught.exception), r"with 28 descriptors .* room for no connection .* at least 40")
        with harness.Daemon(program=self.limited(40)) as packd, channel(packd.address) as made:
            self.assertEqual(code_of(lambda: status(made)), CODE.OK)


class DescriptorsTest(Case):
    def test_want_of_descriptors_ends_no_listener(self):
        """None is left, taken by whatever: those who come are refused, and once there are some they get in."""
        with harness.Daemon() as packd, channel(packd.address) as made:
            self.assertEqual(code_of(lambda: status(made)), CODE.OK)
            before = resource.prlimit(packd.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(packd.process.pid, resource.RLIMIT_NOFILE, (open_descriptors(packd) - 4, before[1]))
            for _ in range(100):
                with contextlib.suppress(ConnectionError), connect(packd.address) as refused:
                    harness.wait_for("it is closed", lambda: was_refused(refused))
            self.assertEqual(code_of(lambda: status(made)), CODE.OK, "who is in feels nothing")
            resource.prlimit(packd.process.pid, resource.RLIMIT_NOFILE, before)
            with channel(packd.address) as late:
                self.assertEqual(code_of(lambda: healthy(late)), CODE.OK)
            self.assertGreaterEqual(self.refused(packd, "descriptors"), 100)

    def test_a_lost_address_ends_it(self):
        """Should gRPC give up an address all the same, packd says so and ends, to be started again. Here the kernel answers every accept as it does
        for a listener that has been taken away; HTTP accepts nobody either, so packd is not seen to be ready."""
        packd = harness.Daemon(program=self.file("deaf", DEAF.format(packd=harness.PACKD)), extra={"drain": "1s"})
        os.chmod(packd.program, 0o755)
        packd.spawn()
        packd.wait_listening()
        self.addCleanup(packd.process.kill)
        with connect(packd.address):
            self.assertEqual(packd.process.wait(harness.DEADLINE_S), 75, packd.log())
        self.assertIn("listener_lost", packd.log())


class TlsTest(access_test.Case):
    def test_half_open_handshakes(self):
        """They take places for limits.handshake, and no more; the cap holds as without TLS."""
        ca = Authority(self.directory, "ca")
        cert, key = ca.issue(SERVER_NAME)
        extra = {"tls": {"cert": cert, "key": key}, "limits": {"connections": 50, "peer_connections": 20, "handshake": "1s"}}
        with harness.Daemon(extra=extra) as packd, channel(packd.address, ca.cert) as made:
            self.assertEqual(code_of(lambda: status(made)), CODE.OK)
            with Flood(packd.address, held=100, source="127.0.0.2"):
                harness.wait_for("refused", lambda: packd.metrics()['packd_connections_refused_total{reason="peer"}'] > 200)
                self.assertEqual(code_of(lambda: status(made)), CODE.OK)
                with channel(packd.address, ca.cert) as other:
                    self.assertEqual(code_of(lambda: status(other)), CODE.OK, "another host feels nothing")
            with contextlib.ExitStack() as held:
                for _ in range(20):
                    half = held.enter_context(connect(packd.address, "127.0.0.3"))
                    half.sendall(b"\x16\x03\x01\x00\xc8\x01")  # a handshake record that never ends
                harness.wait_for("they are closed", lambda: packd.metrics()['packd_connections{door="main"}'] <= 1)


if __name__ == "__main__":
    unittest.main()
