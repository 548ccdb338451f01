"""What the guides tell people to type or to write exists: commands and their options, files, manifests, configurations, links."""

import glob
import os
import re
import shlex
import subprocess
import tempfile
import unittest

import harness

GUIDES = sorted(glob.glob("docs/*.md")) + ["README.md"]
OUR_PROGRAMS = {"packd": harness.PACKD, "packctl": harness.PACKCTL}


def blocks(path, *languages):
    with open(path) as file:
        text = file.read()
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.M | re.S)
    return ["\n".join(line[len(indent):] for line in body.split("\n")) for indent, language, body in found if language in languages]


def commands(path):
    """Each command of a guide's shell blocks, as words; continued lines joined, pipes and && taken apart."""
    for block in blocks(path, "sh", "bash", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.split(" #")[0].strip().removeprefix("$ ").rstrip("&").strip()
            for part in re.split(r"\||&&|;", line):
                words = [w for w in shlex.split(part) if not re.fullmatch(r"[A-Z_]+=\S*", w)]
                words = words[1:] if words[:1] == ["sudo"] else words
                if words:
                    yield words


def options_of(program, command=None):
    arguments = [program, command, "--help"] if command else [program, "--help"]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=30)


class DocsTest(unittest.TestCase):
    def check_ours(self, path, words):
        name = os.path.basename(words[0])
        command = None
        if name == "packctl":
            rest = words[1:]
            while rest and rest[0].startswith("-"):
                rest = rest[2:] if rest[0] in ("--server", "--timeout") else rest[1:]
            command = rest[0] if rest else None
        if command == "version":
            return
        done = options_of(OUR_PROGRAMS[name], command)
        self.assertEqual(done.returncode, 0, f"{path}: {' '.join(words)}")
        for word in words[1:]:
            if word.startswith("--"):
                self.assertRegex(done.stdout, re.escape(word.split("=")[0]) + r"\b", f"{path}: {' '.join(words)}")

    def test_commands(self):
        seen = 0
        for path in GUIDES:
            for words in commands(path):
                name = os.path.basename(words[0])
                seen += 1
                if name in OUR_PROGRAMS:
                    self.check_ours(path, words)
                elif words[0] == "kubectl":
                    self.assertTrue(os.path.exists(os.path.join(words[-1], "kustomization.yaml")), f"{path}: {' '.join(words)}")
                elif "/" in words[0] and not words[0].startswith(("/", "bazel-bin", "~")):
                    self.assertTrue(os.access(words[0], os.X_OK), f"{path}: {words[0]}")
        self.assertGreater(seen, 5)

    def test_links_and_named_files(self):
        for path in GUIDES:
            with open(path) as file:
                text = file.read()
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
                self.assertTrue(os.path.exists(os.path.join(os.path.dirname(path), target)), f"{path}: {target}")

    def test_anchors(self):
        for path in GUIDES:
            with open(path) as file:
                text = file.read()
            for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text):
                with open(os.path.join(os.path.dirname(path), target) if target else path) as file:
                    headings = re.findall(r"^#+ (.*)$", file.read(), re.M)
                names = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
                self.assertIn(anchor, names, f"{path}: {target}#{anchor}")

    def test_configurations(self):
        seen = 0
        for path in GUIDES:
            for block in blocks(path, "yaml"):
                if "apiVersion:" in block:
                    continue
                seen += 1
                with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                    file.write(block)
                    file.flush()
                    done = subprocess.run([harness.PACKD, "--config", file.name, "--check-config"], capture_output=True, text=True, timeout=30)
                    if "cannot open /" in done.stderr:  # a certificate or token file of the reader's machine
                        self.assertIn(done.stderr.split("cannot open ")[1].split(":")[0], block)
                        self.assertIn("feeds:", done.stdout)
                    else:
                        self.assertEqual(done.returncode, 0, f"{path}:\n{block}\n{done.stderr}")
        self.assertGreater(seen, 0)


if __name__ == "__main__":
    unittest.main()
