"""Rules of this tree that can be read off its files: how large they are, how they begin, which words stay out.

It reads the source tree itself, found through a link in the runfiles, so it runs each time.
"""

import ast
import os
import re
import shutil
import subprocess
import unittest

ROOT = os.path.dirname(os.path.realpath("README.md"))
SKIPPED = {".git", "third_party", "__pycache__", "build"}
SKIPPED_AT_TOP = {"bench", "dist"}  # what bench.sh and build_wheel.sh leave

C_LINES, HEADER_LINES, PYTHON_LINES, FUNCTION_LINES = 800, 150, 600, 80
C_COLUMNS = 100

# Read as a whole: a contract that one would have to look up in two places, or a table.
LONG_HEADERS = {
    "client/include/packd.h", "packer/planner.h", "server/config.h", "server/metrics_table.h", "server/rpc/call.h",
    "server/sequencer_state.h", "server/serve_state.h",
}

# In pieces, so that this file keeps to the rule itself.
FORBIDDEN = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b|\bst" r"ub code\b|\bissue #\d+|(?<![\w.])/wo" r"rk/|\bpy" r"pi\.org\b|\bfiles\.python" r"hosted\.org\b")


def sources(*endings):
    """Paths below the root with one of these endings, and their text."""
    for folder, folders, names in os.walk(ROOT):
        skipped = SKIPPED | SKIPPED_AT_TOP if folder == ROOT else SKIPPED
        folders[:] = sorted(f for f in folders if f not in skipped and not f.startswith("bazel-"))
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(endings) and os.path.isfile(path):
                with open(path, encoding="utf-8") as file:
                    yield os.path.relpath(path, ROOT), file.read()


def c_functions(text):
    """(line, lines) of each function: from the brace in the first column to the one that closes it."""
    start = None
    for number, line in enumerate(text.split("\n"), 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            yield start, number - start
            start = None


def wide_lines(text):
    """(line, columns) of each line with more than C_COLUMNS characters."""
    return [(number, len(line)) for number, line in enumerate(text.split("\n"), 1) if len(line) > C_COLUMNS]


class StyleTest(unittest.TestCase):
    def test_the_tree_is_there(self):
        found = {path for path, _ in sources(".c", ".h", ".py", ".proto")}
        self.assertGreater(len(found), 300)
        self.assertLessEqual(LONG_HEADERS, found, "an exception names a file that is gone")

    def test_sizes_of_c(self):
        for path, text in sources(".c", ".cu", ".cc", ".h"):
            header = path.endswith(".h")
            lines = text.count("\n")
            if path not in LONG_HEADERS:
                self.assertLessEqual(lines, HEADER_LINES if header else C_LINES, f"{path}: split it where its parts are")
            for start, length in c_functions(text):
                self.assertLessEqual(length, FUNCTION_LINES, f"{path}:{start}: a function that needs scrolling is two")

    def test_layout_of_c(self):
        """As .clang-format has it, to the letter."""
        if not shutil.which("clang-format"):
            print("SKIP: layout of C: clang-format is not installed")
            self.skipTest("clang-format is not installed")
        paths = [path for path, _ in sources(".c", ".h")]
        done = subprocess.run(["clang-format", "-n", "--Werror", *paths], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"run clang-format -i on what it names:\n{done.stderr[:2000]}")

    def test_columns_of_c(self):
        full = "/*" + "─" * (C_COLUMNS - 4) + "*/"  # characters, not bytes
        self.assertEqual(wide_lines(f"{full}\n{full} \n{full}"), [(2, C_COLUMNS + 1)])
        for path, text in sources(".c", ".cu", ".cc", ".cuh", ".h"):
            self.assertEqual(wide_lines(text), [], f"{path}: (line, columns) of more than {C_COLUMNS}")

    def test_sizes_of_python(self):
        for path, text in sources(".py"):
            self.assertLessEqual(text.count("\n"), PYTHON_LINES, path)
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    self.assertLessEqual(node.end_lineno - node.lineno, FUNCTION_LINES, f"{path}:{node.lineno}: {node.name}")

    def test_each_file_says_what_it_is(self):
        for path, text in sources(".c", ".cu", ".cc", ".h"):
            self.assertRegex(text, r"\A(/\*|//)", path)
        for path, text in sources(".py"):
            self.assertTrue(not text.strip() or ast.get_docstring(ast.parse(text)), f"{path}: no docstring")

    def test_words(self):
        for path, text in sources(".c", ".cu", ".cc", ".h", ".py", ".sh", ".md", ".proto", ".bzl", ".yaml", ".toml", "BUILD"):
            found = FORBIDDEN.search(text)
            self.assertIsNone(found, f"{path}: {found and found.group()!r}")

    def test_public_functions_of_the_package(self):
        for path, text in sources(".py"):
            if not path.startswith("client/python/packd/"):
                continue
            for node in ast.parse(text).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                    self.assertTrue(ast.get_docstring(node), f"{path}:{node.lineno}: {node.name} has no docstring")


if __name__ == "__main__":
    unittest.main()
