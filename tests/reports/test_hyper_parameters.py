"""Hyper-parameters and train types out of scripts that are never executed."""

from __future__ import annotations

import pytest

from posttrain.reports.summaries.code import same
from posttrain.reports.summaries.hyper import read_script, read_scripts
from posttrain.reports.summaries.script import Script, names_in, spoken_of
from posttrain.reports.summaries.words import TrainType


def values(text: str, name: str, suffix: str = "py") -> set[object]:
    """What a script gives a hyper-parameter; an empty set where that cannot be known."""
    settings = read_script(Script(f"code/train.{suffix}", text)).settings.get(name, [])
    strong = [s for s in settings if s.strong] or settings
    if not strong or not all(setting.values.complete for setting in strong):
        return set()
    return {value for setting in strong for value in setting.values.found}


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ("GRPOConfig(learning_rate=1e-5)", "lr", 1e-5),
        ("trl.SFTConfig(per_device_train_batch_size=8)", "batch", 8),
        ("from trl import SFTConfig as C\nC(num_train_epochs=2)", "epochs", 2),
        ("LR = 3e-4\nTrainingArguments('out', learning_rate=LR)", "lr", 3e-4),
        ("LoraConfig(r=16, lora_alpha=2 * 16)", "lora_alpha", 32),
        ("torch.optim.AdamW(model.parameters(), 5e-6)", "lr", 5e-6),
        ("opt = SGD(p, lr=-(-0.1))", "lr", 0.1),
        ("for epoch in range(4):\n    pass", "epochs", 4),
        ("for ep in tqdm(range(1, 4)):\n    pass", "epochs", 3),
        ("DataLoader(rows, batch_size=BATCH)\nBATCH = 4", "batch", 4),
        ("def train(lr=1e-4):\n    AdamW(p, lr=lr)\ntrain()", "lr", 1e-4),
        ("def train(lr):\n    AdamW(p, lr=lr)\ntrain(lr=2e-4)", "lr", 2e-4),
        ("C = {'lr': 7e-5}\nAdamW(p, lr=C['lr'])", "lr", 7e-5),
        ("class H:\n    lr: float = 6e-5\nh = H()\nAdamW(p, lr=h.lr)", "lr", 6e-5),
        ("cfg = GRPOConfig()\ncfg.num_generations = 4", "num_generations", 4),
        ("a.add_argument('--lr', default=1e-3)\nx = a.parse_args()\nAdamW(p, lr=x.lr)", "lr", 1e-3),
        ("AdamW(p, lr=float(os.environ.get('LR', '1e-5')))", "lr", 1e-5),
        ("GRPOConfig(max_steps=int(os.getenv('S') or 20))", "max_steps", 20),
        ("TrainingArguments(bf16=True)", "bf16", True),
        ("C = dict(lr=2e-5, bs=4)\nAdamW(p, lr=C['lr'])", "lr", 2e-5),
        ("C = {}\nC['lr'] = 3e-5\nAdamW(p, lr=C['lr'])", "lr", 3e-5),
        ("H = SimpleNamespace(lr=4e-5)\nAdamW(p, lr=H.lr)", "lr", 4e-5),
        ("clip_grad_norm_(p, 1.0)", "max_grad_norm", 1.0),
    ],
)
def test_values_are_read_from_the_syntax_tree(text: str, name: str, found: object) -> None:
    assert values(text, name) == {found}


@pytest.mark.parametrize(
    "text",
    [
        "AdamW(p, lr=schedule())",
        "lr = 1e-5\nlr *= 2\nAdamW(p, lr=lr)",
        "AdamW(p, lr=json.load(f)['lr'])",
        "def train(lr):\n    AdamW(p, lr=lr)\ntrain(*sys.argv)",
        "AdamW(p, lr=1e-5 if big else other)",
        "with open('x') as lr:\n    AdamW(p, lr=lr)",
        "AdamW(p, lr='a' * 10**12)",
        "AdamW(p, lr=0x" + "f" * 60_000 + ")",
        "AdamW(p, lr=2**64 * 2**64 * 2**64)",
    ],
)
def test_what_cannot_be_known_is_not_guessed(text: str) -> None:
    assert values(text, "lr") == set()


def test_yaml_of_llama_factory_is_read() -> None:
    text = "stage: sft\nlearning_rate: 1.0e-4\nnum_train_epochs: 3.0\nlora_rank: 8\n"
    assert values(text, "lr", "yaml") == {1e-4}
    assert values(text, "r", "yaml") == {8}
    assert read_script(Script("code/a.yaml", text)).types == {TrainType.SFT}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("from trl import GRPOTrainer\nGRPOTrainer(m).train()", TrainType.GRPO),
        ("import trl\ntrl.SFTTrainer(m).train()", TrainType.SFT),
        ("from trl import PPOTrainer as T\nT(m).train()", TrainType.PPO),
        ("class Mine(GRPOTrainer):\n    pass\nMine(m).train()", TrainType.GRPO),
        ("# GRPOTrainer\nfrom trl import SFTTrainer, GRPOTrainer\nSFTTrainer(m)", TrainType.SFT),
        ("loss = cross_entropy(x, y)\nloss.backward()", TrainType.SFT),
        ("advantages = r - r.mean()\ngroup_size = 4\nloss.backward()", TrainType.GRPO),
        ("value_head = critic\nadvantage = 1\nloss.backward()", TrainType.PPO),
        ("DPOTrainer(m).train()", TrainType.UNKNOWN),
    ],
)
def test_the_train_type_is_what_the_code_calls(text: str, kind: TrainType) -> None:
    assert read_script(Script("code/train.py", text)).types == {kind}


def test_copying_is_no_training() -> None:
    types = read_script(Script("code/train.py", "import shutil\nshutil.copytree(a, b)")).types
    assert TrainType.COPY_MODEL in types
    assert TrainType.GRPO not in types


def test_a_script_brings_along_what_it_imports_and_reads() -> None:
    scripts = [
        Script("code/train.py", "import helper\nload('conf/a.yaml')"),
        Script("code/helper.py", "AdamW(p, lr=1e-4)"),
        Script("code/conf/a.yaml", "num_train_epochs: 2"),
        Script("code/other.py", "AdamW(p, lr=9e-4)"),
    ]
    chosen = spoken_of("the loop in train.py L1-L2", scripts)
    assert [script.name for script in chosen] == ["code/train.py", "code/helper.py", "code/conf/a.yaml"]
    assert set(read_scripts(chosen).config()) >= {"lr", "epochs"}


@pytest.mark.parametrize(
    ("claimed", "found", "equal"),
    [
        ("1e-5", 0.00001, True),
        ("1E-05", "1e-5", True),
        ("2", 2.0, True),
        ("`true`", True, True),
        ("cosine", "Cosine", True),
        ("1e-5", 1e-4, False),
        ("0", False, True),
        ("linear", "cosine", False),
    ],
)
def test_values_are_compared_by_what_they_mean(claimed: str, found: object, equal: bool) -> None:
    assert same(claimed, found) is equal


def test_a_huge_number_of_yaml_is_no_hyper_parameter() -> None:
    assert values("stage: sft\nlearning_rate: 0x" + "f" * 60_000 + "\n", "lr", "yaml") == set()


def test_names_of_scripts_are_found_in_time_and_in_any_text() -> None:
    assert names_in("x" * 200_000 + " 见code/train.py，./a/b.yaml 与 ../run.sh") == [
        "code/train.py",
        "a/b.yaml",
        "run.sh",
    ]
