"""Who may call what: TLS and its refusals, principals by token, certificate and socket, doors of their own, reload without a dropped stream."""

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import unittest

import harness
import peer
from certificates import SERVER_NAME, Authority, read

grpc, pb, rpc = peer.grpc, peer.pb, peer.rpc
CODE = grpc.StatusCode


@contextlib.contextmanager
def channel(address, ca=None, cert=None, key=None):
    """Plain without `ca`."""
    with peer.channel(peer.Secure(address, ca, cert, key) if ca else address, [("grpc.enable_retries", 0)]) as made:
        yield made


def bearer(token):
    return [("authorization", "Bearer " + token)] if token else None


def code_of(call):
    """The status code a call ends with; OK where it does not fail."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return CODE.OK


def status(made, token=None, feed=""):
    return rpc.AdminStub(made).Status(pb.StatusRequest(feed=feed), timeout=10, metadata=bearer(token))


def open_job(made, token=None, feed="default"):
    return rpc.FeedStub(made).OpenJob(pb.OpenJobRequest(feed=feed, job="j", dp_size=1, rows=1), timeout=10, metadata=bearer(token))


def push(made, token=None, feed="default"):
    hello = pb.PushRequest(hello=pb.Hello(feed=feed, stream="s"))
    return next(iter(rpc.IngestStub(made).Push(iter([hello]), timeout=10, metadata=bearer(token))))


def drain(made, token=None):
    return rpc.AdminStub(made).Drain(pb.DrainRequest(undo=True), timeout=10, metadata=bearer(token))


def healthy(made):
    return peer.health_pb2_grpc.HealthStub(made).Check(peer.health_pb2.HealthCheckRequest(), timeout=10)


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = harness.scratch()

    def file(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def ports(self, packd):
        with open(os.path.join(packd.directory, "ports.json")) as file:
            return json.load(file)


class TlsTest(Case):
    def setUp(self):
        super().setUp()
        self.ca, self.other = Authority(self.directory, "ca"), Authority(self.directory, "other")
        self.cert, self.key = self.ca.issue(SERVER_NAME)
        self.client_cert, self.client_key = self.ca.issue("trainer")

    def daemon(self, **extra):
        tls = {"cert": self.cert, "key": self.key, "client_ca": self.ca.cert, "reload": "1s", **extra.pop("tls", {})}
        return harness.Daemon(extra={"tls": tls, "auth": [{"name": "trainer", "certificate": "trainer", "roles": ["read"]}], **extra})

    def refused_handshake(self, packd, why, **credentials):
        """Refused before any call, with one line in the log that tells why."""
        before = len(packd.log())
        with channel(packd.address, **credentials) as made:
            self.assertEqual(code_of(lambda: open_job(made)), CODE.UNAVAILABLE)
        harness.wait_for("the refusal is told", lambda: why in packd.log()[before:])
        self.assertEqual(packd.log()[before:].count("Handshake failed"), 1, packd.log()[before:])

    def test_matrix(self):
        with self.daemon() as packd:
            with channel(packd.address, self.ca.cert, self.client_cert, self.client_key) as made:
                self.assertEqual(code_of(lambda: open_job(made)), CODE.OK)
                self.assertEqual(code_of(lambda: push(made)), CODE.PERMISSION_DENIED, "a role that is not his")
                self.assertEqual(code_of(lambda: status(made)), CODE.PERMISSION_DENIED)
            self.refused_handshake(packd, "wrong version number")  # plaintext to a TLS port
            self.refused_handshake(packd, "did not return a certificate", ca=self.ca.cert)  # no client certificate
            wrong = self.other.issue("trainer")
            self.refused_handshake(packd, "certificate verify failed", ca=self.ca.cert, cert=wrong[0], key=wrong[1])  # of another authority
            old = self.ca.issue("trainer", days="-1")
            self.refused_handshake(packd, "certificate verify failed", ca=self.ca.cert, cert=old[0], key=old[1])  # expired
            with channel(packd.address, self.other.cert, self.client_cert, self.client_key) as made:
                self.assertEqual(code_of(lambda: open_job(made)), CODE.UNAVAILABLE, "the client expects another server")
            stranger = self.ca.issue("stranger")
            with channel(packd.address, self.ca.cert, *stranger) as made:
                self.assertEqual(code_of(lambda: open_job(made)), CODE.UNAUTHENTICATED, "a good certificate of nobody in `auth`")
            lines = [line for line in packd.log().splitlines() if "access_refused" in line]
            self.assertEqual(len(lines), 3, "each refusal once:\n" + "\n".join(lines))
            self.assertNotIn("PRIVATE", packd.log())

    def test_reload_revokes_without_dropping_streams(self):
        with self.daemon() as packd:
            with channel(packd.address, self.ca.cert, self.client_cert, self.client_key) as made:
                open_job(made)
                health = peer.health_pb2_grpc.HealthStub(made).Watch(peer.health_pb2.HealthCheckRequest(), timeout=120)
                stream = iter(health)
                self.assertEqual(next(stream).status, peer.health_pb2.HealthCheckResponse.SERVING)
                shutil.copy(self.other.cert, self.ca.cert + ".new")
                ours = self.ca.cert + ".ours"
                shutil.copy(self.ca.cert, ours)
                os.rename(self.ca.cert + ".new", self.ca.cert)  # the authority of clients is another one now

                def revoked():
                    with channel(packd.address, ours, self.client_cert, self.client_key) as late:
                        return code_of(lambda: open_job(late)) == CODE.UNAVAILABLE
                harness.wait_for("clients of the former authority are refused", revoked)
                self.assertEqual(code_of(lambda: open_job(made)), CODE.OK, "an open connection goes on")
                health.cancel()

    def test_a_new_server_certificate_is_taken(self):
        with self.daemon() as packd:
            fresh = self.other.issue(SERVER_NAME)
            both = self.file("both.crt", read(self.ca.cert).decode() + read(self.other.cert).decode())
            os.rename(fresh[1], self.key)
            os.rename(fresh[0], self.cert)

            def taken():
                with channel(packd.address, self.other.cert, self.client_cert, self.client_key) as made:
                    return code_of(lambda: open_job(made)) == CODE.OK
            harness.wait_for("the new certificate is shown", taken)
            with channel(packd.address, both, self.client_cert, self.client_key) as made:
                self.assertEqual(code_of(lambda: open_job(made)), CODE.OK)

    def test_files_that_cannot_serve_change_nothing(self):
        """Caught while they are replaced, or wrong: the former ones serve on, the log says why, and good ones are taken again."""
        with self.daemon() as packd:
            ours = self.file("ours.crt", read(self.ca.cert).decode())
            good = {path: read(path).decode() for path in (self.cert, self.key, self.ca.cert)}
            stranger = read(self.ca.issue("stranger")[1]).decode()

            def connects():
                with channel(packd.address, ours, self.client_cert, self.client_key) as made:
                    return code_of(lambda: open_job(made)) == CODE.OK
            self.assertTrue(connects())
            for path, text, word in ((self.cert, "", "tls_reload_failed"), (self.cert, good[self.cert][:200], "tls_reload_failed"), (self.cert, None, "cannot open"),
                                     (self.key, "", "tls_reload_failed"), (self.key, stranger, "Invalid private key"), (self.ca.cert, "", "tls_reload_failed")):
                with self.subTest(file=path, text=text and text[:9]):
                    before = len(packd.log())
                    if text is None:
                        os.unlink(path)
                    else:
                        self.file(path, text)

                    def told():
                        self.assertTrue(connects(), packd.log()[before:])
                        return word in packd.log()[before:]
                    harness.wait_for("the log tells " + word, told)
                    self.file(path, good[path])
            fresh = self.ca.issue(SERVER_NAME, days="1")
            before = len(packd.log())
            os.rename(fresh[1], self.key)
            os.rename(fresh[0], self.cert)
            harness.wait_for("new files are taken", lambda: connects() and "tls_files_changed" in packd.log()[before:])
            self.assertNotIn("BEGIN", packd.log())

    def test_a_key_of_another_certificate_is_a_start_error(self):
        packd = self.daemon(tls={"key": self.client_key})
        with self.assertRaises(AssertionError) as caught:
            packd.start()
        self.assertIn("cannot be used together", str(caught.exception))

    def test_much_of_it(self):
        """Blocks of megabytes in messages of one, and their batches back, between ends that both have certificates: every token, and nobody cut off."""
        auth = [{"name": "trainer", "certificate": "trainer", "roles": ["produce", "read", "admin"]}]
        samples = [[(seq * 31 + i) % 50000 for i in range(1024)] for seq in range(2048)]
        with harness.Daemon([{"name": "default", "seq_len": 4096, "window": 16}], extra={"auth": auth, "tls": {"cert": self.cert, "key": self.key,
                                                                                                          "client_ca": self.ca.cert}}) as packd:
            address = peer.Secure(packd.address, self.ca.cert, self.client_cert, self.client_key)
            push = peer.Push(address)
            push.welcome()
            for first in range(0, len(samples), 1024):
                push.block(samples[first:first + 1024])
            push.wait_durable(len(samples))
            push.end_stream()
            push.close()
            peer.end_feed(address)
            fetch = peer.Fetch(address, peer.open_job(address, rows=4))
            got = {seq: tokens for batch in fetch.all() for (_, seq, _), tokens in batch.samples()}
            fetch.close()
            self.assertTrue(got == dict(enumerate(samples)), f"{len(got)} samples, not all as they were pushed")
            self.assertEqual({key: value for key, value in packd.metrics().items() if key.startswith("packd_connections_refused_total") and value}, {})

    def test_packctl_speaks_tls(self):
        token = self.file("token", "an operator's long token\n")
        auth = [{"name": "operator", "token_file": token, "roles": ["admin", "produce"]}]
        with self.daemon(auth=auth, tls={"client_certificate": "optional"}) as packd:
            environment = {**os.environ, "PACKD_CA": self.ca.cert, "PACKD_TLS_NAME": SERVER_NAME, "PACKD_TOKEN": "an operator's long token"}

            def packctl(**changes):
                return subprocess.run([harness.PACKCTL, "--server", packd.address, "--timeout", "2s", "status"],
                                      env={**environment, **changes}, capture_output=True, text=True, timeout=60)
            self.assertEqual(packctl().returncode, 0, packctl().stderr)
            self.assertIn("bearer token", packctl(PACKD_TOKEN="some other long token").stderr)
            self.assertNotEqual(packctl(PACKD_TLS_NAME="another.name").returncode, 0)
            missing = packctl(PACKD_CA="/nowhere/ca.crt")
            self.assertIn("/nowhere/ca.crt", missing.stderr)
            half = packctl(PACKD_CERT=self.client_cert)
            self.assertIn("PACKD_KEY", half.stderr)
            both = packctl(PACKD_CERT=self.client_cert, PACKD_KEY=self.client_key)
            self.assertEqual(both.returncode, 0, both.stderr)
            plain = packctl(PACKD_CA="")
            self.assertEqual(plain.returncode, 4, plain.stderr)
            self.assertIn("the server may speak TLS: set PACKD_CA", plain.stderr)
        with harness.Daemon() as packd:
            wrong = packctl()
            self.assertEqual(wrong.returncode, 4, wrong.stderr)
            self.assertIn("does not speak TLS: unset PACKD_TLS, PACKD_CA", wrong.stderr)

    def test_files_that_cannot_serve_are_a_start_error(self):
        for tls, word in (({"cert": "/nowhere.crt"}, "/nowhere.crt"), ({"key": self.cert}, "PRIVATE KEY"), ({"client_ca": self.key}, "CERTIFICATE"),
                          ({"key": ""}, "tls.key is not set")):
            packd = self.daemon(tls=tls)
            with self.assertRaises(AssertionError) as caught:
                packd.start()
            self.assertIn(word, str(caught.exception))


class PrincipalTest(Case):
    PRODUCER, READER, OPERATOR = "producer-token-0123456789", "reader-token-0123456789", "operator-token-0123456789"

    def auth(self):
        return [
            {"name": "web", "token_file": self.file("web", self.PRODUCER + "\n"), "roles": ["produce"], "feeds": ["web"]},
            {"name": "train", "token_file": self.file("train", self.READER), "roles": ["read", "observe"], "feeds": ["web"]},
            {"name": "operator", "token_file": self.file("operator", self.OPERATOR), "roles": ["admin"]},
        ]

    def daemon(self, **extra):
        feeds = [{"name": name, "seq_len": 64, "window": 32} for name in ("web", "code")]
        return harness.Daemon(feeds=feeds, extra={"auth": self.auth(), **extra})

    def test_packctl_without_the_role_to_end_a_feed(self):
        with self.daemon() as packd:
            done = subprocess.run([harness.PACKCTL, "--server", packd.address, "push", "--feed", "web", "--stream", "s", "--end-feed", "-"],
                                  input='{"tokens": [1]}\n', env={**os.environ, "PACKD_TOKEN": self.PRODUCER}, capture_output=True, text=True,
                                  timeout=60)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("all samples of it are stored in stream s, only the feed is not ended: that takes the role admin", done.stderr)
            self.assertIn("packctl end-feed --feed web", done.stderr)
            self.assertNotIn("same input again", done.stderr)

    def test_roles_and_feeds(self):
        with self.daemon() as packd, channel(packd.address) as made:
            for call, token, feed, expected in (
                    (push, self.PRODUCER, "web", CODE.OK), (push, self.PRODUCER, "code", CODE.PERMISSION_DENIED),
                    (push, self.READER, "web", CODE.PERMISSION_DENIED), (push, None, "web", CODE.UNAUTHENTICATED),
                    (push, "not a token of this server", "web", CODE.UNAUTHENTICATED), (push, self.PRODUCER[:-1], "web", CODE.UNAUTHENTICATED),
                    (open_job, self.READER, "web", CODE.OK), (open_job, self.READER, "code", CODE.PERMISSION_DENIED),
                    (open_job, self.PRODUCER, "web", CODE.PERMISSION_DENIED), (open_job, self.OPERATOR, "web", CODE.PERMISSION_DENIED),
                    (status, self.OPERATOR, "code", CODE.OK), (status, self.READER, "code", CODE.PERMISSION_DENIED),
                    (status, self.READER, "web", CODE.OK), (status, self.PRODUCER, "web", CODE.PERMISSION_DENIED)):
                with self.subTest(call=call.__name__, token=token, feed=feed):
                    self.assertEqual(code_of(lambda: call(made, token, feed=feed)), expected)
            self.assertEqual([f.name for f in status(made, self.READER).feeds], ["web"], "other feeds are not shown")
            self.assertEqual([f.name for f in status(made, self.OPERATOR).feeds], ["web", "code"])
            self.assertEqual(code_of(lambda: drain(made, self.READER)), CODE.PERMISSION_DENIED)
            self.assertEqual(code_of(lambda: drain(made, self.OPERATOR)), CODE.OK)
            self.assertEqual(code_of(lambda: healthy(made)), CODE.OK, "health asks nobody")
            unknown = made.unary_unary("/packd.v1.Admin/Nothing", request_serializer=bytes, response_deserializer=bytes)
            self.assertEqual(code_of(lambda: unknown(b"", timeout=10)), CODE.UNAUTHENTICATED, "what is not listed needs admin")
            for token in (self.PRODUCER, self.READER, self.OPERATOR):
                self.assertNotIn(token, packd.log())
                self.assertNotIn(token, str(status(made, self.OPERATOR)))
            check = subprocess.run([harness.PACKD, "--config", os.path.join(packd.directory, "packd.yaml"), "--check-config"],
                                   capture_output=True, text=True, timeout=30)
            self.assertEqual(check.returncode, 0, check.stderr)
            self.assertNotIn(self.OPERATOR, check.stdout)
            self.assertIn("roles: [read, observe]", check.stdout)

    def test_fetch_is_for_its_feed_only(self):
        with self.daemon() as packd, channel(packd.address) as made:
            opened = open_job(made, self.READER, feed="web")
            request = pb.FetchRequest(open=pb.FetchOpen(feed="code", job="j", log_id=opened.log_id, generation=opened.generation, credit_batches=1))
            call = rpc.FeedStub(made).Fetch(iter([request]), timeout=10, metadata=bearer(self.READER))
            self.assertEqual(code_of(lambda: next(iter(call))), CODE.PERMISSION_DENIED)

    def test_tokens_are_reloaded(self):
        with self.daemon() as packd, channel(packd.address) as made:
            fresh = "a fresh operator token"
            self.assertEqual(code_of(lambda: status(made, self.OPERATOR)), CODE.OK)
            self.file("operator", fresh)
            packd.process.send_signal(signal.SIGHUP)
            harness.wait_for("the new token counts", lambda: code_of(lambda: status(made, fresh)) == CODE.OK)
            self.assertEqual(code_of(lambda: status(made, self.OPERATOR)), CODE.UNAUTHENTICATED)
            self.file("operator", "short")
            packd.process.send_signal(signal.SIGHUP)
            harness.wait_for("the refusal is told", lambda: "reload_failed" in packd.log())
            self.assertEqual(code_of(lambda: status(made, fresh)), CODE.OK)

    def test_bad_entries_are_start_errors(self):
        token = self.file("token", "a token that is long enough")
        fifo = os.path.join(self.directory, "fifo")
        os.mkfifo(fifo)
        for entry, word in (({"token_file": fifo}, "is not a regular file"), ({"token_file": self.directory}, "is not a regular file"),
                            ({"token_file": "/nowhere/token"}, "/nowhere/token"), ({"token_file": self.file("short", "x")}, "1 bytes"),
                            ({"token_file": self.file("bytes", "a token\twith a tab in it")}, "byte 7 of the token"),
                            ({}, "nothing tells"), ({"token_file": token, "feeds": ["missing"]}, "missing"),
                            ({"token_file": token, "roles": ["king"]}, "no role"), ({"certificate": "trainer"}, "tls.client_ca")):
            packd = harness.Daemon(extra={"auth": [{"name": "somebody", "roles": ["read"], **entry}]})
            with self.assertRaises(AssertionError) as caught:
                packd.start()
            self.assertIn(word, str(caught.exception))


class Held(peer.Push):
    """A Push whose blocks stop before their last message until the gate is open."""

    def __init__(self, address, gate, total, **hello):
        self.gate, self.total = gate, total
        super().__init__(address, **hello)

    def send(self, message):
        if message.HasField("chunk") and self.sent_bytes == self.total:
            self.gate.wait(harness.DEADLINE_S)
        super().send(message)


class PeerTest(Case):
    def test_one_host_may_have_so_many_bytes(self):
        """Streams of one host that send large blocks without ending them: together they get what one host may have, and another one feels
        nothing. Once their blocks are in the log they all go on."""
        samples, pieces, count = [[1] * 256] * 4096, 64, 8  # 4 MiB of body a block
        total = len(pb.BlockHead(first_seq=0, lengths=[256] * 4096, body_bytes=4 << 20).SerializeToString()) + (4 << 20)
        most = (8 << 20) + count * (64 << 20) // 4 // 64  # peer_bytes and the floors
        path, gate = os.path.join(self.directory, "packd.sock"), threading.Event()
        extra = {"memory": {"ingest": "64MiB"}, "limits": {"peer_bytes": "8MiB", "push_calls": 64}}
        with harness.Daemon(feeds=[{"name": "default", "seq_len": 256, "window": 32}], extra=extra, arguments=["--listen", "unix:" + path]) as packd:
            pushes = [Held(packd.address, gate, total, stream=f"s{i}") for i in range(count)]
            for one in pushes:
                self.assertGreater(one.welcome().max_piece_bytes, (4 << 20) // pieces)
            threads = [threading.Thread(target=one.block, args=(samples,), kwargs={"pieces": pieces}) for one in pushes]
            for thread in threads:
                thread.start()
            waits = 'packd_ingest_throttled_seconds_total{feed="default",reason="peer_bytes"}'
            harness.wait_for("they wait for it", lambda: packd.metrics()[waits] > 0.5)
            self.assertLessEqual(sum(one.sent_bytes for one in pushes), most + (4 << 20), "and what one waits to be granted")
            self.assertLessEqual(packd.metrics()["packd_ingest_reserved_bytes"], most)
            other = peer.Push("unix:" + path, stream="other")
            other.welcome()
            for _ in range(3):
                other.block(samples, pieces=pieces)
                other.wait_durable(other.next_seq)
            self.assertEqual(sum(one.durable_seq for one in pushes), 0)
            gate.set()
            for thread in threads:
                thread.join(harness.DEADLINE_S)
            for one in pushes:
                one.wait_durable(4096)
                one.close()
            other.close()

    def test_one_host_may_have_so_many_calls(self):
        with harness.Daemon(extra={"limits": {"peer_calls": 3}, "listen_health": ["127.0.0.1:0"]}) as packd, channel(packd.address) as made:
            pushes = [peer.Push(packd.address, stream=f"s{i}") for i in range(3)]
            for one in pushes:
                one.welcome()
            self.assertEqual(code_of(lambda: open_job(made)), CODE.RESOURCE_EXHAUSTED)
            self.assertRegex(packd.log(), r"peer_limited peer=ipv4:127.0.0.1:\d+ .*peer_calls is 3")
            with channel(self.ports(packd)["health"][0]) as health:
                self.assertEqual(code_of(lambda: healthy(health)), CODE.OK, "probes are not counted")
            pushes[0].close()
            harness.wait_for("a place is free again", lambda: code_of(lambda: open_job(made)) == CODE.OK)
            for one in pushes[1:]:
                one.close()

    def test_one_host_may_begin_so_many_calls_a_second(self):
        with harness.Daemon(extra={"limits": {"peer_rate": 20}}) as packd, channel(packd.address) as made:
            codes = [code_of(lambda: healthy(made)) for _ in range(400)]
            self.assertEqual(set(codes), {CODE.OK, CODE.RESOURCE_EXHAUSTED})
            harness.wait_for("the next second", lambda: code_of(lambda: healthy(made)) == CODE.OK)


class DoorTest(Case):
    def test_admin_and_health_have_addresses_of_their_own(self):
        with harness.Daemon(extra={"listen_admin": ["127.0.0.1:0"], "listen_health": ["127.0.0.1:0"]}) as packd:
            ports = self.ports(packd)
            with channel(packd.address) as main, channel(ports["admin"][0]) as admin, channel(ports["health"][0]) as health:
                self.assertEqual([code_of(lambda: status(c)) for c in (main, admin, health)], [CODE.PERMISSION_DENIED, CODE.OK, CODE.PERMISSION_DENIED])
                self.assertEqual([code_of(lambda: push(c)) for c in (main, admin, health)], [CODE.OK, CODE.PERMISSION_DENIED, CODE.PERMISSION_DENIED])
                self.assertEqual([code_of(lambda: healthy(c)) for c in (main, admin, health)], [CODE.OK] * 3)

    def test_health_is_plain_beside_tls(self):
        ca = Authority(self.directory, "ca")
        cert, key = ca.issue(SERVER_NAME)
        with harness.Daemon(extra={"tls": {"cert": cert, "key": key}, "listen_health": ["127.0.0.1:0"]}) as packd:
            with channel(self.ports(packd)["health"][0]) as plain, channel(packd.address, ca.cert) as secure:
                self.assertEqual([code_of(lambda: healthy(c)) for c in (plain, secure)], [CODE.OK] * 2)
                self.assertEqual(code_of(lambda: status(secure)), CODE.OK, "TLS without `auth` asks nobody")

    def test_unix_sockets(self):
        path = os.path.join(self.directory, "packd.sock")
        auth = [{"name": "pod", "unix": True, "roles": ["produce", "read"]}]
        with harness.Daemon(extra={"listen_mode": "0600", "auth": auth}, arguments=["--listen", "unix:" + path]) as packd:
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
            with channel("unix:" + path) as local, channel(packd.address) as remote:
                self.assertEqual([code_of(lambda: push(c)) for c in (local, remote)], [CODE.OK, CODE.UNAUTHENTICATED])
                self.assertEqual(code_of(lambda: status(local)), CODE.PERMISSION_DENIED)
            self.assertRegex(packd.log(), r"access_refused.*principal=pod")
            self.assertFalse(re.search("plain_tokens", packd.log()))


if __name__ == "__main__":
    unittest.main()
