import json, math, random, sys, time
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup

CFG = dict(lr=2e-5, batch_size=16, epochs=3, max_len=512, warmup_ratio=0.03, wd=0.01)

class Rows(torch.utils.data.Dataset):
    def __init__(self, path, tok):
        self.rows = [json.loads(l) for l in open(path)]
        self.tok = tok
    def __len__(self): return len(self.rows)
    def __getitem__(self, i): return self.rows[i]

def main():
    tok = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).cuda()
    loader = DataLoader(Rows("data/train.jsonl", tok), batch_size=CFG["batch_size"], shuffle=True)
    opt = torch.optim.AdamW(model.parameters(), lr=CFG["lr"], weight_decay=CFG["wd"])
    total = CFG["epochs"] * len(loader)
    sched = get_cosine_schedule_with_warmup(opt, int(total * CFG["warmup_ratio"]), total)
    for epoch in range(CFG["epochs"]):
        for step, batch in enumerate(loader):
            out = model(**batch)
            loss = F.cross_entropy(out.logits.view(-1, out.logits.size(-1)), batch["labels"].view(-1), ignore_index=-100)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step(); sched.step(); opt.zero_grad(set_to_none=True)
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
    model.save_pretrained("output/v2")
    tok.save_pretrained("output/v2")

main()
