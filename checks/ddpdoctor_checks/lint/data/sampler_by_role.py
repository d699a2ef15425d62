"""DAT009 and DAT001: a sampler shards along dimensions of a mesh that share a batch, or not along all of the others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.facts.strategies import CONTEXT, DATA, PIPELINE, TENSOR, UNKNOWN, find_role
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import SAMPLERS
from ddpdoctor.source.resolve.kinds import kinds_of
from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import find_keyword
from ddpdoctor.source.training.mesh_roles import WORLD, Mesh, find_dimensions, find_meshes
from ddpdoctor.source.training.train_loops import batches_of, samplers_of, training_loops
from ddpdoctor_checks.common.wording import join_words
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

TOGETHER = {
    TENSOR: "compute the same layers together",
    PIPELINE: "compute one batch stage by stage",
    CONTEXT: "each take a part of the same sequence",
}
"""What ranks along a dimension of a role do with a batch, for which it has to be the same."""


@lint_rule("sampler-across-model", "sampler-partial", reads="files")
def find_samplers_by_role(files: Files) -> Iterator[SourceFact]:
    """Yield samplers of a training that do not shard by the dimensions of the program's mesh that divide the batch.

    ``sampler-across-model``: ranks that compute one batch together get different samples (names, role: of the
    dimensions). ``sampler-partial``: ranks along a data-parallel dimension get the same ones (names: of it). The mesh
    is beside. Dimensions have their usual roles by name (`ddpdoctor.facts.strategies`); silent where a name says
    nothing, where meshes have different names, and where the sampler's ranks are not followed.
    """
    kinds = kinds_of(files)
    told: set[ast.AST] = set()
    for loop in training_loops(kinds):
        meshes = find_meshes(loop.scope.module, kinds)
        if len({mesh.names for mesh in meshes}) != 1 or UNKNOWN in map(find_role, meshes[0].names):
            continue
        for loader in batches_of(loop, kinds):
            for sampler in samplers_of(loader, kinds):
                if sampler.call not in told and sampler.name in SAMPLERS:
                    told.add(sampler.call)
                    yield from _judge(sampler, meshes[0], files)


def _judge(sampler: Value, mesh: Mesh, files: Files) -> Iterator[SourceFact]:
    scope = sampler.scope
    given = [find_keyword(sampler.call, name, place) for name, place in (("num_replicas", 1), ("rank", 2))]
    if scope is None:
        return
    along = {
        find_dimensions(each, scope, files) if each is not None else frozenset({WORLD}) for each in given
    }
    shared = along.pop()
    if along or shared is None:
        return  # the number of the rank and that of the ranks are of different dimensions, or of none that is seen
    dimensions = {name: find_role(name) for name in mesh.list_dimensions()}
    if shared != {WORLD} and not shared <= set(mesh.names):
        return
    wrong = [
        name
        for name, role in dimensions.items()
        if role in TOGETHER and (shared == {WORLD} or name in shared)
    ]
    left = [
        name for name, role in dimensions.items() if role == DATA and shared != {WORLD} and name not in shared
    ]
    beside = (RelatedPlace("noticed", mesh.place),)
    if wrong:
        details = {"names": " ".join(wrong), "role": dimensions[wrong[0]]}
        yield SourceFact("sampler-across-model", scope.place(sampler.call), beside, details)
    elif left and set(dimensions.values()) <= {DATA, *TOGETHER}:
        yield SourceFact("sampler-partial", scope.place(sampler.call), beside, {"names": " ".join(left)})


_FIX = Fix(
    "shard across the data-parallel ranks only",
    code='dp = mesh["dp"]\n'
    "sampler = DistributedSampler(dataset, num_replicas=dp.size(), rank=dp.get_local_rank())",
)


@check("DAT009", family="source", needs=NEEDS, id="lint.sampler_across_model", commands=LINT)
def tell_across_model(evidence: Evidence) -> Iterable[Finding]:
    """A sampler gives ranks that compute one batch together different samples."""
    for fact in facts_of(evidence, "sampler-across-model"):
        names = fact.details["names"].split()
        yield tell_fact(
            fact,
            f"The DistributedSampler at {name_line(fact.place)} also shards across the dimension"
            f"{'s' if len(names) > 1 else ''} {join_words(names)} of the mesh at "
            f"{name_line(fact.related[0].place)}: ranks that {TOGETHER[fact.details['role']]} get different samples.",
            _FIX,
            why="the mesh has a dimension whose ranks need the same batch, and the sampler counts its ranks as well",
            severity="warning",
        )


@check("DAT001", family="source", needs=NEEDS, id="lint.sampler_partial", commands=LINT)
def tell_partial(evidence: Evidence) -> Iterable[Finding]:
    """A sampler shards across some of the data-parallel dimensions of a mesh."""
    for fact in facts_of(evidence, "sampler-partial"):
        names = join_words(fact.details["names"].split())
        yield tell_fact(
            fact,
            f"The DistributedSampler at {name_line(fact.place)} does not shard across {names} of the mesh at "
            f"{name_line(fact.related[0].place)}: data-parallel ranks along it train on the same samples.",
            Fix(
                "shard across all data-parallel ranks",
                code="sampler = DistributedSampler(dataset)   # all ranks, where no dimension splits the model",
            ),
            why="sharding and replicating dimensions both divide the batch, and the sampler counts the ranks of one",
            severity="warning",
        )
