"""What to do about replicas that differ."""

from __future__ import annotations

from ddpdoctor.judge import Fix

REWRAP = (
    Fix(
        "change the model first and wrap it last",
        code="model.fc = torch.nn.Linear(512, classes)   # or requires_grad_(True)\n"
        "model = DistributedDataParallel(model)     # after it, and again after each later change",
    ),
    Fix("a layer that is unfrozen later can be wrapped unfrozen, with its learning rate at 0 until then"),
)
UNUSED = (
    Fix("remove what the forward pass does not use, or use it"),
    Fix(
        "or let DistributedDataParallel search for it, which costs a walk through the graph in each step",
        code="model = DistributedDataParallel(model, find_unused_parameters=True)",
    ),
)
DIVERGED = (
    Fix("load checkpoints and initialize before wrapping, or identically on all ranks"),
    Fix(
        "or make the ranks equal again after the change",
        code="for tensor in model.state_dict().values():\n    dist.broadcast(tensor, src=0)",
    ),
)
REPLICATED = (
    Fix(
        "give fully_shard the whole mesh: its first dimension replicates, its second shards",
        code='mesh = init_device_mesh("cuda", (replicas, shards), mesh_dim_names=("replicate", "shard"))\n'
        'for layer in model.layers:\n    fully_shard(layer, mesh=mesh)   # not mesh["shard"]\n'
        "fully_shard(model, mesh=mesh)",
    ),
    Fix(
        "or average the gradients across the replicas between backward and step",
        code="for p in model.parameters():\n    grad = p.grad.to_local()\n"
        "    dist.all_reduce(grad, op=dist.ReduceOp.AVG, group=replicas)",
    ),
)
LOADED = (
    Fix("load the same checkpoint on every rank, or load it before the model is wrapped"),
    Fix(
        "where a rank's own loss or metric decides what is loaded, reduce it first, so that all ranks decide the same",
        code="loss = loss.detach().clone()\ndist.all_reduce(loss)   # then compare, keep and load",
    ),
)
VAIN = (
    Fix(
        "put the average back into the parameters that the optimizer steps, on every rank",
        code="for p in model.parameters():\n    dist.all_reduce(p.data)\n    p.data /= dist.get_world_size()\n"
        "# a flat copy: torch.nn.utils.vector_to_parameters(flat, model.parameters())",
    ),
    Fix("ranks that train models of their own on purpose can begin from seeds of their own"),
)
UNUSED = (
    Fix(
        "wait for asynchronous collectives and write what they give into .grad on every rank, before the step",
        code="for work in works:\n    work.wait()\nfor p, total in zip(model.parameters(), totals):\n"
        "    p.grad.copy_(total / dist.get_world_size())\noptimizer.step()",
    ),
    Fix("or wrap the model, and call the wrapper", code="model = DistributedDataParallel(model)"),
)
EXPERTS = (
    Fix(
        "average what is the same on all ranks, and each expert only across the ranks that hold it",
        code='for name, p in model.named_parameters():\n    if ".expert." not in name:\n'
        "        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)",
    ),
    Fix("ranks that are to hold the same parameters need one seed, or a broadcast before the first step"),
)
SEEDED = (
    Fix(
        "give ranks that hold the same part of the model one seed to build it, and seed by rank only afterwards",
        code="torch.manual_seed(seed + tensor_parallel_rank)   # not the global rank\nmodel = build()\n"
        "torch.manual_seed(seed + dist.get_rank())        # for dropout and augmentation",
    ),
    DIVERGED[1],
)
OVERDUE = (
    Fix("make the averaging due: count the steps of the whole training, not those since an epoch or a round began, and "
        "compare with a number of steps that it reaches"),
    Fix("ranks that train models of their own on purpose can begin from seeds of their own"),
)  # fmt: skip
SHARED = (
    Fix(
        "sum the gradients of replicated parameters (norms, routers, embeddings) across the ranks that each computed a "
        "part of them, between backward and step",
        code="for p in replicated_parameters:\n    dist.all_reduce(p.grad, group=tensor_parallel_group)",
    ),
    Fix("ranks that train models of their own on purpose can begin from seeds of their own throughout"),
)
BYPASSED = (
    Fix(
        "call the wrapper in training; move whatever else the step needs into the wrapped module's forward",
        code="loss = criterion(model(x), y)   # not model.module(x)",
    ),
)
UNSYNCED = (
    Fix(
        "run the last micro-batch before the step outside of no_sync()",
        code="last = (i + 1) % accumulate == 0\n"
        "with contextlib.nullcontext() if last else model.no_sync():\n"
        "    loss = criterion(model(x), y) / accumulate\n    loss.backward()\n"
        "if last:\n    optimizer.step()\n    optimizer.zero_grad()",
    ),
)
UNWRAPPED = (
    Fix("wrap the model, and call the wrapper", code="model = DistributedDataParallel(model)"),
    Fix(
        "averaging by hand must change .grad itself, on every rank, between backward pass and step",
        code="for p in model.parameters():\n    dist.all_reduce(p.grad)\n    p.grad /= dist.get_world_size()",
    ),
)
OPTIMIZER = (
    Fix("take the same steps of the same schedule on every rank: decide by values that are reduced first"),
    Fix("create the optimizer on every rank with the same settings, and change them identically"),
    Fix(
        "load the optimizer's state on every rank, not on one",
        code='optimizer.load_state_dict(torch.load(path, map_location="cpu")["optimizer"])   # on every rank',
    ),
)
