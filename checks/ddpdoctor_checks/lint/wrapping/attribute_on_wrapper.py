"""DDP014: an attribute of the model is asked of the wrapper, which has none of that name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TypeGuard

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import RelatedPlace, SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.kinds import Kinds, kinds_of
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.values import Value
from ddpdoctor.source.resolve.walking import own_nodes
from ddpdoctor.source.training.wraps import is_certain, wraps_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

OF_WRAPPER = frozenset("""
    T_destination add_module apply bfloat16 broadcast_bucket_size broadcast_buffers bucket_bytes_cap buffer_hook
    buffers call_super_init children compile cpu cuda device device_ids device_mesh device_type dim double
    dump_patches eval extra_repr find_unused_parameters float forward gather get_buffer get_extra_state
    get_parameter get_submodule gradient_as_bucket_view half ipu is_multi_device_module join join_device
    join_hook join_process_group load_state_dict logger mixed_precision module modules modules_buffers mtia
    named_buffers named_children named_module_buffers named_modules named_parameters no_sync output_device
    parameters parameters_to_ignore process_group reducer register_module register_parameter register_buffer
    require_backward_grad_sync require_forward_param_sync requires_grad_ scatter set_extra_state set_submodule
    share_memory skip_all_reduce_unused_params state_dict static_graph to to_empty to_kwargs train training type
    use_side_stream_for_tensor_copies will_sync_module_buffers xpu zero_grad
    """.split())  # fmt: skip
"""What DistributedDataParallel of torch 2.13 has of its own; hooks are told by their names."""
ASKS = re.compile(
    r"isinstance|hasattr|module|dist|ddp|world|rank|gpu|cuda|devices?\b|parallel|multi|wrap|main|master",
    re.IGNORECASE,
)
"""Tests that may ask whether the model is wrapped."""
WRAPPER = "DistributedDataParallel"
"""Whatever it is imported as, some line says so."""


@lint_rule("attribute-on-wrapper", reads="files")
def find_attributes_on_wrappers(files: Files) -> Iterator[SourceFact]:
    """Yield where an attribute is asked of a wrapper that only the model in it has (``attribute-on-wrapper``).

    owner: the expression. attribute: its name. model: the class. Nothing in a choice or below a test that may ask what
    it is, or whether there are several ranks; nothing where any file sets an attribute of that name on an object.
    """
    if not any(WRAPPER in line for module in files.modules for line in module.script.lines):
        return
    kinds = kinds_of(files)
    owners = {inner.owner for wrap in wraps_of(kinds) for inner in wrap.value.inner} - {None}
    named = {name for each in owners if each is not None for name in (*each.attributes, *each.functions)}
    if not named:
        return
    given = {each.attr for module in files.modules for each in ast.walk(module.node) if _is_given(each)}
    named -= given
    for module in files.modules:
        for scope in module.walk():
            asked = [
                each
                for each in own_nodes(scope.node)
                if isinstance(each, ast.Attribute) and each.attr in named
            ]
            choices = {id(each) for node in (own_nodes(scope.node) if asked else ())
                       if isinstance(node, (ast.IfExp, ast.BoolOp)) for each in ast.walk(node)}  # fmt: skip
            for node in asked:
                if id(node) in choices:
                    continue
                wrapper = _find_wrapper(node, scope, kinds)
                certain = is_certain(node, scope, kinds)
                if wrapper is None or wrapper.scope is None:
                    continue
                if certain or _is_meant(node, scope, kinds):
                    noticed = RelatedPlace("noticed", wrapper.scope.place(wrapper.call))
                    details = {
                        "owner": ast.unparse(node.value),
                        "attribute": node.attr,
                        "model": (wrapper.inner[0].owner or scope).name or "",
                    }
                    place = scope.place(node)
                    yield SourceFact("attribute-on-wrapper", place, (noticed,), details, certain=certain)


def _is_meant(node: ast.Attribute, scope: Scope, kinds: Kinds) -> bool:
    """Whether the tests around are about other things than what the object is, or how many ranks there are."""
    flow = kinds.flow(scope)
    spot = flow.spot(node)
    if spot is None or not spot.is_on:
        return False
    sides = {number for number, side in spot.blocks if side != "loop"}
    around = [statement for statement, own in flow.statements if own.number in sides]
    root = ast.unparse(node.value).split(".")[-1]
    return len(around) == len(sides) and all(
        isinstance(each, ast.If)
        and not ASKS.search(ast.unparse(each.test))
        and not re.search(rf"\b{re.escape(root)}\b", ast.unparse(each.test))
        for each in around
    )


def _is_given(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Whether a statement sets an attribute of something else than ``self``."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    )


def _find_wrapper(node: ast.Attribute, scope: Scope, kinds: Kinds) -> Value | None:
    """Return the wrapper that has no such attribute, where that of the model in it is surely meant."""
    if (
        not isinstance(node.ctx, ast.Load)
        or not isinstance(node.value, (ast.Name, ast.Attribute))
        or node.attr in OF_WRAPPER
        or node.attr.startswith(("_", "register_"))
    ):
        return None
    wrappers = kinds.all_of(node.value, scope, "wrapped")
    models = [inner for each in wrappers for inner in each.inner]
    plain = all(each.name.endswith(WRAPPER) for each in wrappers)
    own = [each.owner for each in models if each.owner is not None]
    if not plain or not own or len(own) != len(models):
        return None
    return wrappers[0] if all(node.attr in {*one.attributes, *one.functions} for one in own) else None


@check("DDP014", family="source", needs=NEEDS, id="lint.attributes", commands=LINT)
def tell_attribute_on_wrapper(evidence: Evidence) -> Iterable[Finding]:
    """An attribute of the model is asked of the wrapper."""
    for fact in facts_of(evidence, "attribute-on-wrapper"):
        owner, attribute, model = (fact.details[name] for name in ("owner", "attribute", "model"))
        line = fact.place.text
        whole = f"{owner}.{attribute}"
        yield tell_fact(
            fact,
            f"{whole} at {name_line(fact.place)} is an attribute of {model}, but {owner} is the "
            f"DistributedDataParallel wrapper ({name_line(fact.related[0].place)}), which has no such "
            "attribute.",
            Fix(
                "access it on the wrapped model",
                code=line.replace(whole, f"{owner}.module.{attribute}"),
            ),
            why=(
                "the wrapper was followed to the call that created it, and the class of the model to its "
                "definition"
            ),
        )
