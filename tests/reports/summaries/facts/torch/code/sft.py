"""Supervised fine-tuning in plain torch."""

import argparse

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

BATCH = 8


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--warmup-steps", type=int, default=None)
    return parser.parse_args()


def train(model, rows, args):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    loader = DataLoader(rows, batch_size=BATCH, shuffle=True)
    for epoch in range(args.epochs):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(**batch).logits, batch["labels"])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        print("epoch", epoch, float(loss))


if __name__ == "__main__":
    args = arguments()
    train(AutoModelForCausalLM.from_pretrained("models/base"), torch.load("rows.pt"), args)
