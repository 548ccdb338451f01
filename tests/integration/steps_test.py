"""Start and stop, step by step: a failure at every step of the start, signals at every time, the supervisor's protocol."""

import json
import os
import re
import signal
import socket
import subprocess
import unittest

import harness
import peer

STEPS = ("loop", "log", "http", "serve", "validate", "assemble", "collector", "sequencer", "rpc", "stopper", "service")
FEED = {"name": "default", "seq_len": 128, "window": 32}


def run_failing(step, directory):
    return subprocess.run(
        [harness.PACKD_FAILING, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", os.path.join(directory, "data"), "--ports-file",
         os.path.join(directory, "ports.json")],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PACKD_TEST_FAIL_STEP": step})


def kill_with_samples(packd):
    """Ends packd with 100 samples in its log, to be replayed."""
    push = peer.Push(packd.address, stream="a")
    push.welcome()
    push.block([[1] * 100] * 100)
    push.wait_durable(100)
    push.close()
    packd.kill()


class NotifySocket:
    """What systemd listens on."""

    def __init__(self):
        self.path = f"@packd-test-{os.getpid()}"  # an abstract one: "@" stands for the zero byte
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path.replace("@", "\0"))
        self.socket.settimeout(harness.DEADLINE_S)

    def next(self):
        return self.socket.recv(4096).decode().split("\n")

    def until(self, line):
        while True:
            lines = self.next()
            if line in lines:
                return lines

    def close(self):
        self.socket.close()


class StepsTest(unittest.TestCase):
    def test_every_step_may_fail(self):
        directory = harness.scratch()
        for step in STEPS:
            with self.subTest(step):
                done = run_failing(step, directory)
                self.assertEqual(done.returncode, 1, done.stderr)
                said = [line for line in done.stderr.splitlines() if line.startswith("packd: ")]
                self.assertEqual(said, [f"packd: step {step} was made to fail"], done.stderr)
                self.assertNotIn("Sanitizer", done.stderr)
                self.assertFalse(os.path.exists(os.path.join(directory, "ports.json")))
        # Nothing of it is in the way of a real start in the same directory.
        with harness.Daemon(feeds=[FEED], directory=directory) as packd:
            self.assertEqual(packd.http("/readyz")[0], 200)

    def test_steps_are_all_known(self):
        """Every step of the table is in the list above: an unknown name starts the daemon instead of failing."""
        with open(os.path.join("server", "packd.c")) as file:
            names = re.findall(r'^    \{"(\w+)", start_\w+, stop_\w+\},$', file.read(), re.M)
        self.assertEqual(tuple(names), STEPS)

    def test_bad_start_says_one_line(self):
        blocker = socket.socket()
        blocker.bind(("127.0.0.1", 0))
        blocker.listen()
        taken = "127.0.0.1:%d" % blocker.getsockname()[1]
        not_a_directory = os.path.join(harness.scratch(), "file")
        open(not_a_directory, "w").close()
        for arguments, words in ((["--http", taken], taken),
                                 (["--listen", taken, "--http", "127.0.0.1:0"], taken),
                                 (["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", not_a_directory], not_a_directory),
                                 (["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ports-file", "/nonexistent/p"],
                                  "/nonexistent/p")):
            with self.subTest(arguments):
                full = ["--listen", "127.0.0.1:0", "--data-dir", os.path.join(harness.scratch(), "d"), *arguments]
                if arguments[0] == "--listen":
                    full = full[2:]
                done = subprocess.run([harness.PACKD, *full], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 1, done.stderr)
                lines = [line for line in done.stderr.splitlines() if line.startswith("packd: ")]
                self.assertEqual(len(lines), 1, done.stderr)
                self.assertIn(words, lines[0])
                self.assertNotIn(" grpc file=", done.stderr, "gRPC's own words beside packd's")
                if arguments[0] == "--listen" and taken in arguments:
                    self.assertEqual(lines[0], f"packd: cannot listen on {taken}: Address already in use; choose another with --listen, or in `listen`")
        blocker.close()

    def test_closed_standard_descriptors(self):
        """As some supervisors start a daemon: what packd opens must not get their numbers."""
        directory = harness.scratch()
        ports = os.path.join(directory, "ports.json")
        process = subprocess.Popen(["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", harness.PACKD, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                                    "--data-dir", os.path.join(directory, "data"), "--ports-file", ports])
        harness.wait_for("it listens", lambda: os.path.exists(ports) or process.poll() is not None)
        self.assertIsNone(process.poll())
        self.assertEqual([os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in (1, 2)], ["/dev/null"] * 2)  # 0: a library's, from before main
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(harness.DEADLINE_S), 0)

    def test_wrong_usage(self):
        for arguments in (["--listen"], ["--nonsense"], ["stray"], ["--check-config=yes"], ["-x"]):
            done = subprocess.run([harness.PACKD, *arguments], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("see packd --help", done.stderr)
        done = subprocess.run([harness.PACKD, "--version"], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PACKD_LOG_LEVEL": "loud"})
        self.assertEqual(done.returncode, 0)
        done = subprocess.run([harness.PACKD, "--check-config"], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PACKD_LOG_LEVEL": "loud"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("PACKD_LOG_LEVEL", done.stderr)

    def test_precedence(self):
        directory = harness.scratch()
        path = os.path.join(directory, "c.yaml")
        with open(path, "w") as file:
            file.write("http: 127.0.0.1:1\ndrain: 1s\nlog: {path: /file, max_bytes: 1GiB}\n")
        done = subprocess.run([harness.PACKD, "--check-config", "--data-dir", "/flag"], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PACKD_CONFIG": path, "PACKD_DATA_DIR": "/variable", "PACKD_HTTP": "127.0.0.1:2"})
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in ("path: /flag", 'http: "127.0.0.1:2"', "drain: 1s", "max_bytes: 1GiB", "durability: fsync"):
            self.assertIn(line, done.stdout)

    def test_supervisor(self):
        notify = NotifySocket()
        environment = {"NOTIFY_SOCKET": notify.path, "WATCHDOG_USEC": "100000"}
        packd = harness.Daemon(feeds=[FEED], environment=environment).start()
        self.assertIn("STATUS=serving", notify.until("READY=1"))
        notify.until("WATCHDOG=1")
        packd.process.send_signal(signal.SIGTERM)
        notify.until("STOPPING=1")
        self.assertEqual(packd.process.wait(harness.DEADLINE_S), 0, packd.log())
        packd.stop()
        notify.close()

    def test_http_answers_while_the_log_is_replayed(self):
        """Held at the end of the replay: alive, not ready, and it says how far it is; then it serves."""
        directory, notify = harness.scratch(), NotifySocket()
        fifo = os.path.join(directory, "hold")
        with harness.Daemon(feeds=[FEED], directory=directory) as packd:
            kill_with_samples(packd)
            packd.spawn_held(fifo, NOTIFY_SOCKET=notify.path)
            self.assertEqual(packd.http("/readyz")[0], 503)
            self.assertEqual(packd.http("/livez")[0], 200)
            self.assertEqual(packd.http("/")[0], 200)
            metrics = packd.metrics()
            self.assertEqual(metrics["packd_ready"], 0)
            self.assertIn("process_open_fds", metrics)
            page = json.loads(packd.http("/status.json")[1])
            self.assertEqual((page["readiness"], page["feeds"]), ("replaying", []))
            self.assertRegex(page["starting"], r"^record \d+ of \d+$")
            self.assertFalse(os.path.exists(packd.ports_path()))
            notify.until("EXTEND_TIMEOUT_USEC=60000000")
            with open(fifo, "w"):
                packd.wait_listening()
            packd.wait_ready()
            notify.until("READY=1")
            self.assertEqual(packd.metrics()["packd_ready"], 1)
            self.assertEqual(packd.status()["feeds"][0]["ingest"]["samples"], 100)
        notify.close()

    def test_a_replay_ends_when_asked(self):
        """TERM is heard while the log is read: alive, not ready, stopping; then it ends in order without ever having served, and the next start
        has all. A second signal ends it at once."""
        directory = harness.scratch()
        fifo = os.path.join(directory, "hold")
        with harness.Daemon(feeds=[FEED], directory=directory) as packd:
            kill_with_samples(packd)
            packd.spawn_held(fifo)
            packd.process.send_signal(signal.SIGTERM)
            harness.wait_for("it stops", lambda: packd.http("/readyz")[1].startswith("stopping"))
            self.assertEqual(packd.http("/livez")[0], 200)
            with open(fifo, "w"):
                self.assertEqual(packd.process.wait(harness.DEADLINE_S), 0, packd.log())
            self.assertTrue(packd.log().rstrip().endswith('stopped text="as asked, while starting"'), packd.log())
            self.assertEqual(packd.log().count(" ready version="), 1)
            os.unlink(fifo)
            packd.spawn_held(fifo)
            for number in (signal.SIGTERM, signal.SIGINT):
                packd.process.send_signal(number)
                harness.wait_for("it is heard", lambda: packd.process.poll() is not None or packd.http("/readyz", quiet=True)[1][:4] == "stop")
            self.assertEqual(packd.process.wait(harness.DEADLINE_S), 1, packd.log())
            packd.program, packd.environment = harness.PACKD, {}
            packd.start()
            self.assertEqual(packd.status()["feeds"][0]["ingest"]["samples"], 100)

    def test_second_signal_ends_at_once(self):
        packd = harness.Daemon(feeds=[FEED], extra={"drain": "10m"}).start()
        os.kill(packd.process.pid, signal.SIGSTOP)  # so that both signals are there when it looks
        packd.process.send_signal(signal.SIGTERM)
        packd.process.send_signal(signal.SIGINT)
        packd.process.send_signal(signal.SIGCONT)
        self.assertEqual(packd.process.wait(harness.DEADLINE_S), 1)
        self.assertIn("second signal", packd.log())
        packd.start()
        packd.stop()

    def test_the_same_signal_twice_at_once_is_one(self):
        """timeout(1) and some supervisors signal the process, and then its group."""
        packd = harness.Daemon(feeds=[FEED]).start()
        for _ in range(3):
            packd.process.send_signal(signal.SIGTERM)
        self.assertEqual(packd.process.wait(harness.DEADLINE_S), 0)
        self.assertIn("as asked", packd.log())
        packd.start()
        packd.stop()

    def test_stop_with_idle_calls_is_quick_and_tidy(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            packd = harness.Daemon(feeds=[FEED], extra={"drain": "20s"}).start()
            push = peer.Push(packd.address, stream="idle")
            push.welcome()
            fetch = peer.Fetch(packd.address, peer.open_job(packd.address))
            harness.wait_for("both calls", lambda: [packd.metrics()[f"packd_{n}_calls"] for n in ("push", "fetch")] == [1, 1])
            ports = os.path.join(packd.directory, "ports.json")
            self.assertEqual(json.load(open(ports))["pid"], packd.process.pid)
            packd.stop(number, deadline_s=10)
            self.assertFalse(os.path.exists(ports))
            self.assertIn("stopped text=", packd.log())
            with self.assertRaises(peer.grpc.RpcError) as caught:
                fetch.next()
            self.assertEqual(caught.exception.code(), peer.grpc.StatusCode.UNAVAILABLE)
            self.assertEqual(push.fails().code(), peer.grpc.StatusCode.UNAVAILABLE)

    def test_hangup_without_a_change(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            packd.process.send_signal(signal.SIGHUP)
            harness.wait_for("the log line", lambda: " reloaded applied=0 ignored=0" in packd.log())
            self.assertEqual(packd.http("/readyz")[0], 200)

    def test_log_lines_as_json(self):
        packd = harness.Daemon(feeds=[FEED], environment={"PACKD_LOG_FORMAT": "json"}).start()
        packd.stop()
        events = [json.loads(line)["event"] for line in packd.log().splitlines()]
        self.assertEqual((events[0], events[-1]), ("limits", "stopped"))
        self.assertIn("ready", events)

    def test_scrapes_see_the_planner(self):
        with harness.Daemon(feeds=[FEED]) as packd:
            push = peer.Push(packd.address, stream="a")
            push.welcome()
            push.block([[1] * 100] * 100)
            push.wait_durable(100)
            harness.wait_for("packs in a later second's status", lambda: packd.metrics().get('packd_feed_packs{feed="default"}', 0) > 0)
            values = packd.metrics()
            self.assertEqual(values['packd_streams{feed="default",state="open"}'], 1)
            self.assertEqual(values['packd_ingest_samples_total{feed="default"}'], 100)
            self.assertEqual(values["packd_ready"], 1)
            page = json.loads(packd.http("/status.json")[1])
            self.assertEqual((page["readiness"], page["feeds"][0]["name"], page["feeds"][0]["streams_total"]), ("ready", "default", 1))
            push.close()

    def test_batches_are_probed(self):
        for validate, probed in (({"backend": "cpu"}, True), ({"backend": "cpu", "fraction": 0}, False), ({"backend": "off"}, False)):
            with self.subTest(validate), harness.Daemon(feeds=[FEED], extra={"validate": validate}) as packd:
                push = peer.Push(packd.address, stream="a")
                push.welcome()
                push.block([[1] * (1 + i % 100) for i in range(100)])
                push.wait_durable(100)
                fetch = peer.Fetch(packd.address, peer.open_job(packd.address))
                self.assertIsNotNone(fetch.next())
                values = packd.metrics()
                self.assertEqual(values['packd_validation_batches_total{backend="cpu",result="passed"}'] > 0, probed)
                if probed:  # then the self-test was first
                    device = packd.status()["validator"]["device"]
                    harness.wait_for("the validator's state of a later second", lambda: packd.metrics().get(
                        'packd_validator_info{backend="cpu",device="%s"}' % device) == 1)
                self.assertFalse([k for k, v in values.items() if k.startswith("packd_validation_violations_total") and v])
                fetch.close()
                push.close()


if __name__ == "__main__":
    unittest.main()
