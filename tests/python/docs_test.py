"""docs/PYTHON.md says nothing that does not work: its snippets run, in order; its table of adapters is the adapters'."""

import importlib.util
import re
import unittest

import torch

import harness
import models
import packd
from packd import adapters

PAGE = "docs/PYTHON.md"


class Model:
    """What the page calls `model`: a transformer over the flattened batch, with its optimiser."""

    def __init__(self):
        torch.set_num_threads(1)
        self.net = models.Transformer(longest=4096)
        self.optimiser = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def run(self, tokens, positions, cu_seqlens):
        longest = int(cu_seqlens.diff().max())
        attend = models.flattened(lambda q, k, v: models.varlen(q, k, v, cu_seqlens, cu_seqlens, longest, longest, causal=True))
        return self.net(tokens.reshape(1, -1).long(), positions.reshape(1, -1).long(), attend)

    def losses(self, tokens, positions, cu_seqlens, labels):
        return models.token_losses(self.run(tokens, positions, cu_seqlens), labels, shifted=False).reshape(labels.shape)

    def logits(self, batch):
        with torch.no_grad():
            return self.run(*(torch.from_numpy(batch[name]) for name in ("tokens", "positions", "cu_seqlens")))

    def losses_of(self, batch):
        return models.token_losses(self.logits(batch), torch.from_numpy(batch["labels"]), shifted=False)

    @staticmethod
    def varlen_attention(q, k, v, cu_seqlens, max_seqlen):
        return models.varlen(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, causal=True)

    def step(self):
        self.optimiser.step()
        self.optimiser.zero_grad()

    def state_dict(self):
        return self.net.state_dict()

    def load_state_dict(self, state):
        self.net.load_state_dict(state)


class DocsTest(unittest.TestCase):
    def setUp(self):
        with open(PAGE) as file:
            self.page = file.read()

    def test_snippets_run(self):
        blocks = re.findall(r"(?:<!-- needs: (\w+) -->\n)?```python\n(.*?)```\n", self.page, re.S)
        self.assertGreater(len(blocks), 8)
        said = []
        with harness.Daemon(feeds=[{"name": "default", "seq_len": 32}]) as packd_server:
            names = {"server": packd_server.address, "model": Model(), "print": lambda *what: said.append(" ".join(map(str, what)))}
            for needs, code in blocks:
                if needs and importlib.util.find_spec(needs) is None:
                    print(f"SKIP: {needs} is not installed, so a snippet of {PAGE} was not run", flush=True)
                    continue
                line = self.page[:self.page.index(code)].count("\n")
                exec(compile("\n" * line + code, PAGE, "exec"), names)
        self.assertIn(f"print(report){' ' * 60}# {said[0]}\n", self.page, "the page shows what is printed")

    def test_table_of_adapters(self):
        rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| [^|]* \| ([^|]*) \| ([^|]*) \|$", self.page, re.M)
        named = {name: (keys, labels) for cell, keys, labels in rows for name in re.findall(r"`(\w+)`", cell)}
        self.assertEqual(list(named), adapters.names())
        for name, (keys, labels) in named.items():
            adapter = adapters.get(name)
            if name not in ("numpy", "jax"):
                self.assertEqual(tuple(re.findall(r"`(\w+)`", keys)), adapter.keys, name)
            self.assertEqual(labels, adapter.labels or ("none" if name in ("flash_attn", "pi0") else "as served"), name)


if __name__ == "__main__":
    unittest.main()
