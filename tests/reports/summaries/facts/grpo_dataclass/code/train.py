import argparse, re
from dataclasses import dataclass, field
from trl import GRPOConfig, GRPOTrainer
from transformers import HfArgumentParser

@dataclass
class Hyper:
    lr: float = 1e-6
    bs: int = 8
    gens: int = field(default=4)

H = Hyper()

def reward_fn(completions, answer, **kw):
    """1.0 if the number after #### is right"""
    out = []
    for c, a in zip(completions, answer):
        m = re.search(r"####\s*(-?[\d,.]+)", c)
        out.append(1.0 if m and m.group(1).replace(",", "") == a else 0.0)
    return out

def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", required=True)
    ap.add_argument("--max-steps", type=int, default=200)
    ap.add_argument("--beta", type=float, default=0.0)
    args = ap.parse_args()
    cfg = GRPOConfig(output_dir="output/grpo", learning_rate=H.lr, per_device_train_batch_size=H.bs,
                     num_generations=H.gens, max_steps=args.max_steps, beta=args.beta, temperature=0.9)
    trainer = GRPOTrainer(model=args.model, args=cfg, reward_funcs=reward_fn, train_dataset=load())
    trainer.train()
    trainer.save_model("output/grpo")

if __name__ == "__main__":
    main()
