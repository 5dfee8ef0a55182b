"""A campaign spread over a Ray cluster is the same campaign: same examples, same digest, same finding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ppsim.errors import UsageError
from ppsim.fuzz import round
from ppsim.fuzz.campaign import run_campaign
from ppsim.fuzz.cluster import connect
from ppsim.fuzz.round import Order

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield "local"
    ray.shutdown()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:1"])
def test_a_cluster_that_does_not_answer_is_one_clear_message(address: str) -> None:
    with pytest.raises(UsageError, match=f"--ray {address}: "):
        connect(address)


def test_the_cluster_runs_the_same_campaign_as_one_process(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round, "ROUND", 10)
    order = Order("plain", 5, 35)
    here, there = run_campaign(order), run_campaign(order, ray_address=cluster)
    assert (there.num_examples, there.digest) == (here.num_examples, here.digest)
    assert there.probes == here.probes


def test_a_failing_example_comes_back_as_a_reproduction(cluster: str) -> None:
    order = Order("abort", 0, 100, bugs=("free_at_abort",))
    result = run_campaign(order, ray_address=cluster)
    assert [f.repro.signature.invariant for f in result.findings] == ["INV-59"]
    repro = result.findings[0].repro
    assert repro.again(repro.run())


def test_a_plugin_travels_with_the_campaign(cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of a cluster do not have the folder in which the campaign was started."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import ppsim\n\n\nclass Policy(ppsim.Policy):\n"
        "    def eviction_key(self, node):\n        return -node.last_access if self.pp_rank else node.last_access\n"
    )
    result = run_campaign(Order("plain", 0, 60, plugin="mine.py"), ray_address=cluster, shrink=False)
    assert [f.repro.signature.invariant for f in result.findings] == ["INV-26"]
    assert result.findings[0].repro.plugin == "mine.py"
