"""deploy/install/install.sh: everything lands where Debian puts it, and each piece works from there."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

import harness


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


C_PROGRAM = """
#include <packd.h>
#include <stdio.h>
int main(void)
{
    struct packd_error error = {0};
    struct packd_producer *producer;
    struct packd_producer_options options = {.server = "unix:/nowhere/packd.sock", .stream = "s", .timeout_ms = 200};
    int rc = packd_producer_open(&options, &producer, &error);
    printf("%d %s\\n", rc, error.text);
    return rc == 0;
}
"""


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="packd-install-")
        cls.addClassCleanup(shutil.rmtree, cls.root)
        cls.environment = {**os.environ, "PACKD_BIN": harness.TOP}
        cls.install()
        cls.multiarch = run("gcc", "-print-multiarch").stdout.strip()

    @classmethod
    def install(cls):
        done = run("deploy/install/install.sh", "--prefix", "/usr", "--destdir", cls.root, env=cls.environment)
        assert done.returncode == 0, done.stderr

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def test_files_are_in_place(self):
        lib = f"usr/lib/{self.multiarch}"
        for name in ("usr/bin/packd", "usr/bin/packctl", "usr/bin/packd_replay", f"{lib}/libpackd.so.0", f"{lib}/libpackd.so", f"{lib}/pkgconfig/packd.pc", "usr/include/packd.h",
                     "usr/share/man/man1/packctl.1", "usr/share/man/man8/packd.8", "usr/share/man/man5/packd.yaml.5",
                     "usr/share/bash-completion/completions/packctl", "usr/share/zsh/site-functions/_packctl", "usr/lib/systemd/system/packd.service",
                     "usr/share/doc/packd/README.md", "usr/share/doc/packd/docs/CONFIGURATION.md", "etc/packd/packd.yaml"):
            self.assertTrue(os.path.exists(self.path(name)), name)
        self.assertEqual(run(self.path("usr/bin/packctl"), "version").returncode, 0)
        asked = run(self.path("usr/bin/packd_replay"), "--help")
        self.assertEqual((asked.returncode, asked.stderr), (0, ""))
        self.assertIn("usage: packd_replay DIR", asked.stdout)

    def test_the_installed_pages_link_to_what_is_there(self):
        pages = self.path("usr/share/doc/packd")
        with open(os.path.join(pages, "README.md")) as file:
            targets = re.findall(r"\]\(([^)#:]+)", file.read())
        self.assertIn("proto/packd.proto", targets)
        for target in targets:
            self.assertTrue(os.path.exists(os.path.join(pages, target)), target)

    def test_in_a_home_everything_is_the_users_own(self):
        with tempfile.TemporaryDirectory() as home:
            done = run("deploy/install/install.sh", "--prefix", f"{home}/.local", "--sysconfdir", f"{home}/.config", env={**self.environment, "HOME": home})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{home}/.local/bin/packd --config {home}/.config/packd/packd.yaml", done.stdout)
            with open(f"{home}/.config/packd/packd.yaml") as file:
                text = file.read()
            self.assertIn(f"path: {home}/.local/state/packd\n", text)
            self.assertNotRegex(text, "unix:|/var/|/run/")
            self.assertTrue(os.path.isdir(f"{home}/.local/state"))  # packd makes the last level
            self.assertFalse(os.path.exists(f"{home}/.local/lib/systemd"))
            done = run(f"{home}/.local/bin/packd", "--config", f"{home}/.config/packd/packd.yaml", "--check-config")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_configuration_is_kept(self):
        config = self.path("etc/packd/packd.yaml")
        with open(config, "a") as file:
            file.write("# mine\n")
        self.install()
        with open(config) as file:
            self.assertTrue(file.read().endswith("# mine\n"))

    def built_by(self, **environment):
        """The command by which root's install.sh builds; it is not carried out."""
        with tempfile.TemporaryDirectory() as tools:
            for name, line in (("id", "echo 0"), ("bazel", 'echo "bazel $@"; exit 9'), ("sudo", 'echo "sudo $@"; exit 9')):
                with open(os.path.join(tools, name), "w") as file:
                    file.write(f"#!/bin/sh\n{line}\n")
                os.chmod(file.name, 0o755)
            inherited = {k: v for k, v in os.environ.items() if k not in ("PACKD_BIN", "SUDO_USER")}
            done = run("deploy/install/install.sh", "--destdir", tools, env={**inherited, "PATH": f"{tools}:{os.environ['PATH']}", **environment})
            self.assertEqual(done.returncode, 9, done.stderr)
            return done.stdout

    def test_with_sudo_the_caller_builds(self):
        self.assertRegex(self.built_by(SUDO_USER="somebody"), r"^sudo -H -u somebody bazel build .*//client:libpackd\.so")
        for environment in ({}, {"SUDO_USER": "root"}):
            self.assertRegex(self.built_by(**environment), r"^bazel build ")

    def test_help_is_the_whole_comment(self):
        done = run("deploy/install/install.sh", "--help")
        self.assertRegex(done.stdout, r"(?s)^# Installs packd.*ldconfig where programs shall find libpackd\.\n$")

    def test_a_program_builds_and_runs_against_it(self):
        source = self.path("program.c")
        with open(source, "w") as file:
            file.write(C_PROGRAM)
        environment = {**os.environ, "PKG_CONFIG_PATH": self.path("usr/lib", self.multiarch, "pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": self.root}
        flags = run("pkg-config", "--cflags", "--libs", "packd", env=environment)
        self.assertEqual(flags.returncode, 0, flags.stderr)
        program = self.path("program")
        done = run("gcc", "-Wall", "-Wextra", "-Werror", "-std=c11", "-o", program, source, *flags.stdout.split())
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run(program, env={**os.environ, "LD_LIBRARY_PATH": self.path("usr/lib", self.multiarch)})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^-\d+ .*nowhere")
        needed = run("readelf", "-d", program).stdout
        self.assertIn("libpackd.so.0", needed)

    def test_manual_pages_are_pages(self):
        if not shutil.which("groff"):
            print("SKIP: manual pages: groff is not installed")
            self.skipTest("no groff")
        for page, words in (("man1/packctl.1", ["packctl push", "--end-feed", "PACKD_SERVER", "SEE ALSO"]),
                            ("man8/packd.8", ["--check-config", "Signals"]),
                            ("man5/packd.yaml.5", ["log.max_bytes", "seq_len", "over_length"])):
            done = run("groff", "-man", "-ww", "-Tascii", "-P-cbou", self.path("usr/share/man", page))
            self.assertEqual((done.returncode, done.stderr), (0, ""), page)
            for word in words:
                self.assertIn(word, done.stdout, page)

    def complete(self, program, *words):
        """What bash offers for the last of `words`."""
        script = f"""
            PATH={self.path('usr/bin')}:$PATH
            source {self.path('usr/share/bash-completion/completions/packctl')}
            COMP_WORDS=({program} {' '.join(repr(w) for w in words)}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _packd_complete {program} "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
            printf '%s\\n' "${{COMPREPLY[@]}}" """
        done = run("bash", "-c", script)
        return done.stdout.split()

    def test_bash_completion(self):
        self.assertEqual(self.complete("packctl", "pu"), ["push"])
        self.assertIn("explain", self.complete("packctl", "--server", "x:1", ""))
        self.assertIn("--end-feed", self.complete("packctl", "push", "--e"))
        self.assertEqual(self.complete("packctl", "--server", "x:1", "log", "ver"), ["verify"])
        self.assertEqual(self.complete("packd", "--check"), ["--check-config"])

    def test_zsh_completion_parses(self):
        if not shutil.which("zsh"):
            print("SKIP: zsh completion: zsh is not installed")
            self.skipTest("no zsh")
        done = run("zsh", "-n", self.path("usr/share/zsh/site-functions/_packctl"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_unit(self):
        with open(self.path("usr/lib/systemd/system/packd.service")) as file:
            unit = file.read()
        for line in ("Type=notify", "WatchdogSec=30s", "DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes",
                     "ExecStart=/usr/bin/packd --config /etc/packd/packd.yaml"):
            self.assertRegex(unit, "(?m)^" + re.escape(line) + "$")
        if not shutil.which("systemd-analyze"):
            print("SKIP: systemd unit: systemd-analyze is not installed")
            self.skipTest("no systemd-analyze")
        tried = self.path("packd.service")
        for text, clean in ((unit, True), (unit.replace("WatchdogSec", "WatchdogSecs"), False)):
            with open(tried, "w") as file:
                file.write(text.replace("/usr/bin/packd", self.path("usr/bin/packd")))
            done = run("systemd-analyze", "verify", "--man=no", tried)
            self.assertEqual("packd.service:" in done.stderr, not clean, done.stderr)


if __name__ == "__main__":
    unittest.main()
