"""Every Python snippet of the documentation runs, in its order, against a real daemon; the names a trainer brings along are given here."""

import importlib.util
import re
import unittest

import harness
import packd

DOCUMENTS = ["README.md"]
LINES_MAX = 9  # "under ten lines"


def snippets():
    """(document, line, code) of each ```python block."""
    for name in DOCUMENTS:
        with open(name) as file:
            text = file.read()
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S):
            yield name, text.count("\n", 0, match.start()) + 1, match.group(1)


def torch_names():
    """device, model, optimizer: a loss per target that depends on a parameter."""
    import torch
    scale = torch.nn.Parameter(torch.ones(()))

    def model(tokens, positions, cu_seqlens, max_seqlen, labels):
        assert tokens.shape == positions.shape == labels.shape and cu_seqlens[-1] == tokens.numel() and type(max_seqlen) is int
        return scale * (labels != -100)

    return {"device": "cpu", "model": model, "optimizer": torch.optim.SGD([scale], 0.5), "scale": scale}


def jax_names():
    """state, train_step: counts the targets."""
    return {"state": 0, "train_step": lambda state, arrays: state + int((arrays["targets_segmentation"] != 0).sum())}


class SnippetsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Daemon(feeds=[{"name": "default", "seq_len": 64}]).start()
        cls.found = list(snippets())
        for name, line, code in cls.found:
            if "Producer(" in code:  # what the others read
                exec(compile(code.replace("127.0.0.1:7070", cls.server.address), f"{name}:{line}", "exec"), {})
        cls.server.packctl("end-feed")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def run_with(self, word, names):
        """Runs the snippets that have `word`; the names they leave behind."""
        chosen = [snippet for snippet in self.found if word in snippet[2]]
        self.assertTrue(chosen, word)
        for name, line, code in chosen:
            exec(compile(code.replace("127.0.0.1:7070", self.server.address), f"{name}:{line}", "exec"), names)
        return names

    def test_every_snippet_is_run_and_short(self):
        for name, line, code in self.found:
            with self.subTest(snippet=f"{name}:{line}"):
                self.assertTrue(any(word in code for word in ("Producer(", "import packd.torch", "import jax")))
                self.assertLessEqual(len([text for text in code.split("\n") if text.strip()]), LINES_MAX)

    def test_push(self):
        with packd.Job(self.server.address, job="look", reader=True) as job:
            keys = [sample.key for batch in job for sample in batch.samples]
        self.assertEqual(sorted(keys), [b"sample-3", b"sample-4", b"sample-5"])

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "torch is not installed")
    def test_torch(self):
        names = self.run_with("import packd.torch", torch_names())
        self.assertEqual(names["data"].state_dict()["step"], 0)
        self.assertEqual(names["scale"].item(), 0.5)  # the mean loss's gradient is 1: one step of 0.5

    @unittest.skipIf(importlib.util.find_spec("jax") is None, "jax is not installed")
    def test_jax(self):
        self.assertEqual(self.run_with("import jax", jax_names())["state"], 9)  # 12 tokens, three of them first ones


if importlib.util.find_spec("jax") is None:
    print("SKIP: readme_test: jax is not installed")

if __name__ == "__main__":
    unittest.main()
