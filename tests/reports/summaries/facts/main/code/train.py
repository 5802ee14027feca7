"""GRPO with TRL: an epoch, a checkpoint, a submission."""

import os
import re

import requests
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

OUTPUT_DIR = os.environ["OUTPUT_DIR"]
MODEL_PATH = os.environ["MODEL_PATH"]


def load_data():
    rows = load_dataset("json", data_files=os.environ["DATA_PATH"] + "/train.jsonl")["train"]
    return rows.map(lambda row: {"prompt": row["question"], "gold": row["answer"].split("####")[-1]})


def gsm8k_reward_func(completions, gold, **kwargs):
    rewards = []
    for completion, answer in zip(completions, gold, strict=True):
        match = re.search(r"####\s*(-?[\d.,]+)", completion)
        pred = float(match.group(1).replace(",", "")) if match else None
        right = pred is not None and abs(pred - float(answer)) < 1e-6
        rewards.append(1.0 if right else -1.0)
    return rewards


def submit(path):
    reply = requests.post(os.environ["GRADING_SERVER_URL"] + "/submit", json={"model_path": path})
    print(reply.json())


def main():
    config = GRPOConfig(
        output_dir=OUTPUT_DIR,
        max_steps=20,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        learning_rate=1e-5,
        max_completion_length=256,
        num_generations=4,
        bf16=True,
    )
    trainer = GRPOTrainer(
        model=MODEL_PATH, reward_funcs=gsm8k_reward_func, args=config, train_dataset=load_data()
    )
    trainer.train()
    trainer.save_model(OUTPUT_DIR + "/v1")
    submit("output/v1")


if __name__ == "__main__":
    main()
