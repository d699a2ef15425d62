import torch, torch.nn as nn
from torch.nn import functional as F
class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.tok_emb = nn.Embedding(config.vocab_size, config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
    def forward(self, idx, targets=None):
        logits = self.head(self.tok_emb(idx))
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1)) if targets is not None else None
        return logits, loss
def create_optimizer(model, opt_config):
    return torch.optim.AdamW(model.parameters(), lr=opt_config.learning_rate)
