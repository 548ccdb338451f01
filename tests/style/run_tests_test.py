"""tools/run_tests.py as test.sh starts it, with a bazel that only says what the real one would: what is counted, and what is printed last."""

import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

RUN_TESTS = os.path.realpath("tools/run_tests.py")

BAZEL = """\
#!/bin/sh
case $1 in
test) echo "$@" >>arguments; cat listed; exit $(cat status) ;;
query) echo //tests/fuzz:fuzz_one ;;
build) ;;
info) pwd ;;
esac
"""

CMOCKA = "[==========] tests: Running {0} test(s).\n[  PASSED  ] {0} test(s).\n"


class RunTestsTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.top = scratch.name
        self.write("bin/bazel", BAZEL, 0o755)
        self.write("tools/lint.py", "print('0 findings')\n")
        self.write("tests/fuzz/fuzz_one", "#!/bin/sh\necho 'stat::number_of_executed_units: 7'\n", 0o755)

    def write(self, path, text, mode=0o644):
        path = os.path.join(self.top, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)

    def bazel_arguments(self):
        with open(os.path.join(self.top, "arguments"), encoding="utf-8") as file:
            return file.read().splitlines()

    def run_tests(self, listed, status=0, full=False, parts=()):
        self.write("listed", textwrap.dedent(listed))
        self.write("status", str(status))
        done = subprocess.run([sys.executable, RUN_TESTS, *(["--full"] if full else []), *parts], cwd=self.top, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False,
                              env={"PATH": os.path.join(self.top, "bin") + ":/usr/bin:/bin"})
        return done.returncode, done.stdout

    def test_all_pass(self):
        self.write("bazel-testlogs/tests/unit/base_test/test.log", CMOCKA.format(5))
        self.write("bazel-testlogs/tests/integration/peer_test/test.log", "SKIP: no key\n" + "-" * 70 + "\nRan 4 tests in 1.0s\n\nOK (skipped=1)\n")
        status, output = self.run_tests("""\
            //tests/unit:base_test                       (cached) PASSED in 0.1s
            //tests/integration:peer_test                         PASSED in 3.0s
            //tests/fuzz:fuzz_one_smoke                           PASSED in 3.0s
            """)
        self.assertEqual(output.splitlines()[-1], "11 passed, 0 failed, 1 skipped")  # 5, 3, one target that counts nothing, lint, one fuzzer
        self.assertIn("skipped in //tests/integration:peer_test: no key", output)
        self.assertEqual(status, 0, output)

    def test_a_flaky_target_cannot_be_overlooked(self):
        folder = "bazel-testlogs/tests/integration/peer_test/"
        self.write(folder + "test.log", "Ran 4 tests in 1.0s\n\nOK\n")
        self.write(folder + "test_attempts/attempt_1.log", "first line\nthe reason\nRan 4 tests in 1.0s\n\nFAILED (failures=1)\n")
        status, output = self.run_tests("//tests/integration:peer_test    FLAKY, failed in 1 out of 2 in 3.0s\n")
        self.assertEqual(output.splitlines()[-2:], ["1 flaky: //tests/integration:peer_test, see FLAKY above", "6 passed, 0 failed, 1 flaky"])
        self.assertRegex(output, r"(?s)== FLAKY //tests/integration:peer_test.*first line\nthe reason\n.*FAILED \(failures=1\)")
        self.assertEqual(status, 0, output)

    def test_only_tests_of_real_processes_get_a_second_attempt(self):
        self.run_tests("//tests/unit:base_test   PASSED in 0.1s\n")
        arguments = self.bazel_arguments()
        self.assertEqual(len(arguments), 1)
        self.assertIn("--flaky_test_attempts=//tests/(integration|hostile|python|deploy).*@2 ", arguments[0])
        self.assertNotIn("PACKD_FULL", arguments[0])

    def test_full(self):
        """Long forms once, without a sanitizer; the other two suites as they are every day."""
        self.write("tests/deploy/image_test.py", "")
        _, output = self.run_tests("//tests/unit:base_test   PASSED in 0.1s\n", full=True)
        self.assertEqual([("asan" in a, "tsan" in a, "PACKD_FULL" in a, "--test_timeout=" in a) for a in self.bazel_arguments()],
                         [(False, False, True, True), (True, False, False, False), (False, True, False, False)])
        self.assertEqual(output.splitlines()[-1], "5 passed, 0 failed")
        self.assertIn("== fuzz: 600 s each", output)

    def test_parts(self):
        status, output = self.run_tests("//tests/unit:base_test   PASSED in 0.1s\n", full=True, parts=["tsan", "lint"])
        self.assertEqual((status, output.splitlines()[-1]), (0, "2 passed, 0 failed"))
        self.assertEqual([("--config=tsan" in a) for a in self.bazel_arguments()], [True])
        self.assertNotIn("== fuzz", output)
        status, output = self.run_tests("", parts=["asan"])
        self.assertEqual(status, 2)
        self.assertIn("no such part: asan", output)

    def test_failures(self):
        self.write("bazel-testlogs/tests/unit/base_test/test.log", "[  PASSED  ] 3 test(s).\n[  FAILED  ] base_test: 2 test(s), listed below:\n")
        self.write("bazel-testlogs/tests/unit/old_test/test.log", CMOCKA.format(9))
        status, output = self.run_tests("""\
            //tests/unit:base_test      FAILED in 0.1s
            //tests/unit:late_test      TIMEOUT in 60.0s
            //tests/unit:old_test       FAILED TO BUILD
            //tests/unit:other_test     NO STATUS
            """, status=3)
        self.assertEqual(output.splitlines()[-1], "5 passed, 5 failed")  # the log of a target that was not run is of another day
        self.assertEqual(status, 1)

    def test_a_bazel_that_does_not_start(self):
        status, output = self.run_tests("ERROR: no such package\n", status=1)
        self.assertEqual(output.splitlines()[-1], "2 passed, 1 failed")
        self.assertEqual(status, 1)

    def test_findings_fail(self):
        self.write("tools/lint.py", "print('a.c:1: bad'); raise SystemExit(1)\n")
        status, output = self.run_tests("//tests/unit:base_test   PASSED in 0.1s\n")
        self.assertIn("a.c:1: bad", output)
        self.assertEqual((status, output.splitlines()[-1]), (1, "2 passed, 1 failed"))


if __name__ == "__main__":
    unittest.main()
