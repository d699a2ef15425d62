from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor.errors import DoctorError
from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.gatherers import GathererRegistry, merge_extra, run_gatherers
from ddpdoctor.judge import Finding, Registry, check
from ddpdoctor.plugins import CHECKS, GATHERERS, RENDERERS, Entry, find_entries, load_plugins
from ddpdoctor.report import RendererRegistry
from ddpdoctor.report.builtin import BUILTIN
from ddpdoctor.testing import make_node


def declare(code: str, id: str, name: str = "thing-broken") -> Callable[..., Iterable[Finding]]:
    @check(code, name=name, title="t", severity="error", family="f", needs=(), since="1", id=id)
    def look(evidence: Evidence) -> Iterable[Finding]:
        """Look."""
        return ()

    return look


def checks_of(distribution: str, *functions: Callable[..., Iterable[Finding]]) -> Entry:
    def register(registry: Registry) -> None:
        registry.add(*functions)

    return Entry(distribution, CHECKS, "it", lambda: register)


OURS = checks_of("ddpdoctor", declare("NET001", "net.one"))


@pytest.fixture
def hang() -> Iterator[Callable[..., Any]]:
    """Blocks until the test has ended."""
    ended = threading.Event()

    def block(*_: object) -> Any:
        ended.wait(60)

    yield block
    ended.set()


def test_checks_of_a_plugin_carry_its_name() -> None:
    plugins = load_plugins([OURS, checks_of("my-dist", declare("X-my-dist-001", "my.one"))])
    assert [(each.id, each.source) for each in plugins.checks.checks] == [
        ("net.one", "ddpdoctor"),
        ("my.one", "my-dist"),
    ]
    assert plugins.checks.pages["X-my-dist-001"].source == "my-dist"
    assert plugins.problems == ()


def fail_import() -> Callable[[Any], object]:
    raise ImportError("libfoo.so is missing")


def fail_register(registry: Registry) -> None:
    registry.add(declare("X-bad-001", "bad.one"))
    raise RuntimeError("half-way")


def leave(registry: Registry) -> None:
    raise SystemExit(7)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (Entry("bad", CHECKS, "it", fail_import), "ImportError: libfoo.so is missing"),
        (Entry("bad", CHECKS, "it", lambda: fail_register), "RuntimeError: half-way"),
        (Entry("bad", CHECKS, "it", lambda: leave), "SystemExit: 7"),
        (Entry("bad", GATHERERS, "it", fail_import), "ImportError: libfoo.so is missing"),
        (Entry("bad", RENDERERS, "it", fail_import), "ImportError: libfoo.so is missing"),
        (Entry("bad", CHECKS, "it", lambda: 3), "TypeError: 'int' object is not callable"),  # type: ignore[arg-type,return-value]  # what a careless author may write
        (checks_of("bad", declare("NET999", "bad.one")), "code NET999 must be of the form X-bad-001"),
        (checks_of("bad", declare("X-other-001", "bad.one")), "must be of the form X-bad-001"),
        (
            checks_of("bad", declare("X-bad-001", "net.one")),
            "check id net.one is already registered by ddpdoctor",
        ),
    ],
)
def test_plugin_that_fails_is_named_and_harms_nothing(entry: Entry, text: str) -> None:
    good = checks_of("good", declare("X-good-001", "good.one"))
    plugins = load_plugins([OURS, entry, good])
    assert [each.id for each in plugins.checks.checks] == ["net.one", "good.one"]
    (problem,) = plugins.problems
    assert (problem.distribution, problem.group) == ("bad", entry.group)
    assert text in problem.text
    row = problem.to_row()
    assert (row.status, row.source, row.required) == ("error", "bad", False)
    assert row.reason is not None
    assert row.reason.startswith("bad: ")


def test_plugin_that_hangs_is_given_up(hang: Callable[..., Any]) -> None:
    plugins = load_plugins([OURS, Entry("slow", CHECKS, "it", hang)], limit_s=0.2)
    assert [each.id for each in plugins.checks.checks] == ["net.one"]
    assert "was not loaded within 0.2 s" in plugins.problems[0].text


def test_built_in_checks_have_no_limit_of_time() -> None:
    """A busy machine was told that the installation had no checks."""

    def register(registry: Registry) -> None:
        time.sleep(0.4)
        registry.add(declare("NET001", "net.one"))

    plugins = load_plugins([Entry("ddpdoctor", CHECKS, "builtin", lambda: register)], limit_s=0.05)
    assert [each.id for each in plugins.checks.checks] == ["net.one"]
    assert plugins.problems == ()


def test_installation_without_checks_says_why() -> None:
    def register(registry: Registry) -> None:
        raise ImportError("a family is missing")

    with pytest.raises(DoctorError) as caught:
        load_plugins([Entry("ddpdoctor", CHECKS, "builtin", lambda: register)])
    assert "a family is missing" in caught.value.render()


def test_what_a_hung_plugin_registers_later_goes_nowhere(hang: Callable[..., Any]) -> None:
    def register(registry: Registry) -> None:
        hang()
        registry.add(declare("X-slow-001", "slow.one"))

    plugins = load_plugins([OURS, Entry("slow", CHECKS, "it", lambda: register)], limit_s=0.1)
    assert len(plugins.checks.checks) == 1


def test_damage_in_our_own_checks_costs_the_verdict_but_not_the_rest() -> None:
    def register(registry: Registry) -> None:
        registry.add(declare("NET001", "net.one"))
        raise ImportError("a family is missing")

    plugins = load_plugins([Entry("ddpdoctor", CHECKS, "builtin", lambda: register)])
    assert [each.id for each in plugins.checks.checks] == ["net.one"]
    assert plugins.problems[0].to_row().required


def test_no_check_at_all_is_an_error() -> None:
    with pytest.raises(DoctorError, match="no checks"):
        load_plugins([])


class Format:
    def __init__(self, name: str) -> None:
        self.name, self.description = name, "d"

    def render(self, report: object, options: object) -> str:
        return ""


def test_renderers_are_added_and_cannot_take_a_name() -> None:
    def add(name: str) -> Callable[[RendererRegistry], None]:
        return lambda registry: registry.add(Format(name))

    entries = [
        OURS,
        Entry("a", RENDERERS, "it", lambda: add("csv")),
        Entry("b", RENDERERS, "it", lambda: add("json")),
    ]
    plugins = load_plugins(entries)
    builtin = tuple(name for name, _, _ in BUILTIN)
    assert plugins.renderers.names == (*builtin, "csv")
    assert plugins.renderers.source_of("csv") == "a"
    assert plugins.renderers.source_of("json") == "ddpdoctor"
    assert plugins.problems[0].distribution == "b"
    assert "json already comes from ddpdoctor" in plugins.problems[0].text


def test_gatherers_are_run_apart(hang: Callable[..., Any]) -> None:
    registry = GathererRegistry()
    registry.source = "my-dist"

    def boom(facts: object) -> dict[str, Any]:
        raise OSError("gone")

    registry.add("host", lambda facts: {"host": facts.host, "sizes": [1, 2]})
    registry.add("boom", boom)
    registry.add("hung", hang)
    registry.add("nonsense", lambda facts: [1])  # type: ignore[arg-type,return-value]  # what a careless author may write
    registry.add("not-json", lambda facts: {"x": {1, 2}})
    registry.add("nan", lambda facts: {"x": float("nan")})
    extra, failures = run_gatherers(registry, make_node(3), limit_s=0.3)
    assert extra == {"my-dist/host": {"3": {"host": "node-3", "sizes": [1, 2]}}}
    texts = {each.name: each.text for each in failures}
    assert set(texts) == {"boom", "hung", "nonsense", "not-json", "nan"}
    assert texts["boom"] == "OSError: gone"
    assert texts["hung"] == "no answer within 0.3 s"
    assert "instead of a dictionary" in texts["nonsense"]
    with pytest.raises(ValueError, match="my-dist/host is already registered"):
        registry.add("host", lambda facts: {})


def test_what_gatherers_saw_is_joined_over_nodes_and_survives_saving() -> None:
    one = merge_extra(Evidence(), {"d/g": {"0": {"x": 1}}})
    both = merge_extra(one, {"d/g": {"1": {"x": 2}}, "e/h": {"1": {}}})
    assert both.extra == {"d/g": {"0": {"x": 1}, "1": {"x": 2}}, "e/h": {"1": {}}}
    assert one.extra == {"d/g": {"0": {"x": 1}}}
    assert Evidence.from_dict(both.to_dict()).extra == both.extra


def test_installed_distributions_are_found_once_and_ours_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("one", "two"):  # the same distribution twice on the path, as editable installs may be
        info = tmp_path / folder / "a_plugin-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[ddpdoctor.checks]\nit = a_plugin_module:register\n")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    (tmp_path / "one" / "a_plugin_module.py").write_text("raise RuntimeError('broken on import')\n")
    importlib.invalidate_caches()
    entries = find_entries()
    assert entries[0].distribution == "ddpdoctor"
    assert [entry.distribution for entry in entries].count("a-plugin") == 1
    plugins = load_plugins(entries)
    assert ("a-plugin", "RuntimeError: broken on import") in {
        (p.distribution, p.text) for p in plugins.problems
    }
    assert len(plugins.checks.checks) > 0
