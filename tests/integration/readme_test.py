"""The README says nothing that does not work: its C lines are those of the examples, which run; its commands run."""

import re
import subprocess
import textwrap
import unittest

import harness


def example(name):
    with open(f"client/examples/{name}.c") as file:
        code = re.search(rf"    /\* README: {name} \*/\n(.*?)    /\* README: end \*/\n", file.read(), re.S).group(1)
    return textwrap.dedent(code)


class ReadmeTest(unittest.TestCase):
    def test_snippets_are_the_examples(self):
        with open("README.md") as file:
            readme = file.read()
        for name in ("push", "train"):
            self.assertIn("```c\n" + example(name) + "```\n", readme, name)

    def test_examples_run(self):
        with harness.Daemon(feeds=[{"name": "default"}]) as packd:
            done = subprocess.run(["client/examples/push", packd.address], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            packd.packctl("end-feed")
            done = subprocess.run(["client/examples/train", packd.address], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout, "step 0: 12 tokens, the first is 17\n")

    def test_flags_and_commands_exist(self):
        with open("README.md") as file:
            readme = file.read()
        for command in set(re.findall(r"packctl ([a-z-]+)", readme)):
            done = subprocess.run([harness.PACKCTL, command, "--help"], capture_output=True, text=True, timeout=30)
            self.assertEqual(done.returncode, 0, command)


if __name__ == "__main__":
    unittest.main()
