import os
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer
from peft import LoraConfig, get_peft_model

MODEL_PATH = os.environ["MODEL_PATH"]
OUTPUT_DIR = os.environ.get("OUTPUT_DIR", "output")
LR = 5e-6


def build_pairs(path):
    """chosen/rejected pairs from train.jsonl"""
    rows = load_dataset("json", data_files=path)["train"]
    return rows.map(lambda r: {"prompt": r["question"], "chosen": r["answer"], "rejected": r["wrong"]})


def main():
    tok = AutoTokenizer.from_pretrained(MODEL_PATH)
    model = AutoModelForCausalLM.from_pretrained(MODEL_PATH, torch_dtype=torch.bfloat16)
    peft_config = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear")
    config = DPOConfig(
        output_dir=OUTPUT_DIR,
        learning_rate=LR,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=8,
        num_train_epochs=2,
        beta=0.1,
        bf16=True,
    )
    trainer = DPOTrainer(model=model, args=config, train_dataset=build_pairs("data/train.jsonl"), processing_class=tok, peft_config=peft_config)
    trainer.train()
    merged = trainer.model.merge_and_unload()
    merged.save_pretrained(OUTPUT_DIR + "/v1")
    tok.save_pretrained(OUTPUT_DIR + "/v1")


if __name__ == "__main__":
    main()
