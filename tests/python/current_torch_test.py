"""Adapters through the attention functions of a current PyTorch, and through transformers, where they are installed.

The system's torch may lack them: $PACKD_TORCH_PYTHON is another interpreter to run this file with. What is missing is skipped by name.
"""

import importlib.util
import os
import sys
import unittest

OTHER = os.environ.get("PACKD_TORCH_PYTHON")
if OTHER and os.path.abspath(sys.executable) != os.path.abspath(OTHER):
    os.execv(OTHER, [OTHER, "-B", *sys.argv])

import numpy  # noqa: E402
import torch  # noqa: E402

import models  # noqa: E402
from packd import adapters, testing, verify  # noqa: E402
from packd.adapters import flash_attn, flex  # noqa: E402

torch.set_num_threads(1)
LISTS = models.samples(14, seed=2, longest=24)


class CurrentTorchTest(unittest.TestCase):
    """The real attention functions, where the installed torch has them."""

    def setUp(self):
        self.batch = testing.make_batch(LISTS, width=32, seg_align=4)
        self.q, self.k, self.v = torch.randn(3, 1, 2, self.batch["tokens"].size, 16, generator=torch.Generator().manual_seed(1))
        cu, longest = torch.from_numpy(self.batch["cu_seqlens"]), self.batch.max_seqlen
        q, k, v = (x[0].transpose(0, 1) for x in (self.q, self.k, self.v))
        self.expected = models.varlen(q, k, v, cu, cu, longest, longest, causal=True)
        self.real = torch.from_numpy(self.batch["segment_ids"].reshape(-1) > 0)

    def test_sdpa(self):
        if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
            self.skipTest(f"torch {torch.__version__} has no scaled_dot_product_attention")
        rows, width = self.batch["tokens"].shape
        q, k, v = (x[0].reshape(2, rows, width, 16).transpose(0, 1) for x in (self.q, self.k, self.v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=adapters.get("sdpa")(self.batch)["attn_mask"])
        out = out.transpose(1, 2).reshape(rows * width, 2, 16)
        torch.testing.assert_close(out[self.real], self.expected[self.real])

    def test_flex(self):
        try:
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        except ImportError:
            self.skipTest(f"torch {torch.__version__} has no flex_attention")
        total = self.batch["tokens"].size
        mask_mod = flex.mask_mod(adapters.get("flex")(self.batch)["document_id"])
        mask = create_block_mask(mask_mod, B=None, H=None, Q_LEN=total, KV_LEN=total, device="cpu")
        out = flex_attention(self.q, self.k, self.v, block_mask=mask)[0].transpose(0, 1)
        torch.testing.assert_close(out[self.real], self.expected[self.real])

    def test_flash_attn_signature(self):
        if importlib.util.find_spec("flash_attn") is None:
            self.skipTest("flash_attn is not installed")
        from flash_attn import flash_attn_varlen_func
        flash_attn.check(flash_attn_varlen_func)

    def test_transformers(self):
        """Losses of a real Llama, packed through the hf adapter and alone; hf and trl inputs isolate, bare tokens do not."""
        if importlib.util.find_spec("transformers") is None:
            self.skipTest("transformers is not installed")
        import transformers
        config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                                          max_position_embeddings=256)
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa").eval().requires_grad_(False)
        inputs = adapters.get("hf")(self.batch)
        output = model(**inputs, use_cache=False)
        losses = models.token_losses(output.logits, inputs["labels"], shifted=False)
        self.assertAlmostEqual(float(output.loss), float(losses.sum() / (inputs["labels"] != -100).sum()), places=5)
        for segment in numpy.flatnonzero(self.batch["seq_lens"] > 1):
            begin, end = self.batch["cu_seqlens"][segment:segment + 2]
            alone = torch.tensor([LISTS[self.batch.samples.seq[self.batch["sample_index"][segment]]]])
            summed = float(model(input_ids=alone, labels=alone, use_cache=False).loss) * (alone.numel() - 1)
            self.assertAlmostEqual(float(losses[begin:end].sum()), summed, delta=1e-4)
        for name in ("hf", "trl"):
            self.assertTrue(verify.isolation(lambda batch: model(**adapters.get(name)(batch), use_cache=False), self.batch))
        with self.assertRaisesRegex(verify.NotIsolated, "causal over the whole row"):
            verify.isolation(lambda batch: model(input_ids=adapters.get("hf")(batch)["input_ids"], use_cache=False), self.batch)


if __name__ == "__main__":
    unittest.main()
