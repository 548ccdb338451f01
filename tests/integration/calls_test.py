"""More calls than an address serves: each address counts its own, and those whose callers are not asked who they are take no place from the rest."""

import contextlib
import unittest

import harness
import peer
from access_test import CODE, Case, channel, code_of, healthy, status

ANYONE = 1024  # health and reflection calls that an address serves (PD_RPC_ANYONE_CALLS_MAX)
FEED = {"name": "default", "seq_len": 64, "window": 32}


def watch(made):
    return peer.health_pb2_grpc.HealthStub(made).Watch(peer.health_pb2.HealthCheckRequest(), timeout=60)


class Watches:
    """`count` health Watch calls on some connections; with Watches(...): those that got a first answer stay open."""

    CONNECTIONS = 8  # none opens more streams at once than it may at a full address

    def __init__(self, address, count):
        self.address, self.count = address, count

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            channels = [stack.enter_context(channel(self.address)) for _ in range(self.CONNECTIONS)]
            calls = [watch(channels[n % self.CONNECTIONS]) for n in range(self.count)]
            for call in calls:
                stack.callback(call.cancel)
            codes = [code_of(lambda call=call: next(call)) for call in calls]
            self.served, self.refused = codes.count(CODE.OK), codes.count(CODE.RESOURCE_EXHAUSTED)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()


class CallsTest(Case):
    def serves(self, packd):
        """Somebody pushes and fetches."""
        push, opened = peer.Push(packd.address, stream="a"), peer.open_job(packd.address)
        push.welcome()
        push.block([[7] * 64] * 64)
        fetch = peer.Fetch(packd.address, opened)
        self.assertIsNotNone(fetch.next())
        fetch.close()
        push.close()

    def check_cap(self, watches):
        self.assertEqual(watches.served + watches.refused, watches.count)
        self.assertGreaterEqual(watches.served, ANYONE)
        self.assertLess(watches.served, ANYONE + 64, "a thread may pass the limit by one call")

    def test_watchers_at_the_probes_address_leave_listen_alone(self):
        with harness.Daemon(feeds=[FEED], extra={"listen_health": ["127.0.0.1:0"], "limits": {"push_calls": 1}}) as packd:
            probes = self.ports(packd)["health"][0]
            with Watches(probes, ANYONE + 200) as watches:
                self.check_cap(watches)
                self.serves(packd)
                with channel(packd.address) as made:
                    self.assertEqual(code_of(lambda: healthy(made)), CODE.OK)
            with channel(probes) as made:
                harness.wait_for("a place is free again", lambda: code_of(lambda: healthy(made)) == CODE.OK)

    def test_watchers_at_listen_take_no_place_from_trainers(self):
        with harness.Daemon(feeds=[FEED], extra={"listen_health": ["127.0.0.1:0"]}) as packd:
            with Watches(packd.address, ANYONE + 200) as watches, channel(packd.address) as made:
                self.check_cap(watches)
                with self.assertRaises(peer.grpc.RpcError) as refused:
                    healthy(made)
                self.assertEqual(peer.error_detail(refused.exception).reason, "TOO_MANY_CALLS")
                self.assertIn("health and reflection", refused.exception.details())
                self.assertEqual(code_of(lambda: status(made)), CODE.OK)
                self.serves(packd)
                with channel(self.ports(packd)["health"][0]) as probes:
                    self.assertEqual(code_of(lambda: healthy(probes)), CODE.OK)

    def test_posted_accepts_of_many_threads_are_no_calls(self):
        with harness.Daemon(feeds=[FEED], extra={"threads": {"rpc": 64}, "limits": {"push_calls": 1}}) as packd:
            self.serves(packd)


if __name__ == "__main__":
    unittest.main()
