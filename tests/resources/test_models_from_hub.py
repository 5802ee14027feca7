from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.core.errors import MissingExtra, UsageError
from posttrain.core.paths import LabPaths
from posttrain.infra.fetching import require
from posttrain.infra.models import Sources
from posttrain.testing.hub import SHA, FakeHub

from .conftest import Resolver

_RESOLVE = """
import json, sys
from pathlib import Path
from posttrain.core.paths import LabPaths
from posttrain.infra.models import Sources, resolve_model

home, endpoint = sys.argv[1:]
say = lambda line: print(line, flush=True)
sources = Sources(environment={"HF_ENDPOINT": endpoint, "PATH": "/usr/bin:/bin"})
model = resolve_model("org/tiny", lab=LabPaths(Path(home)), sources=sources, offline=False, progress=say)
print("model " + model.digest, flush=True)
"""


def _sources(hub: FakeHub) -> Sources:
    return Sources(environment={"HF_ENDPOINT": hub.url, "PATH": os.defpath})


def _start(lab: LabPaths, hub: FakeHub) -> subprocess.Popen[str]:
    """Another process that resolves org/tiny."""
    argv = [sys.executable, "-c", _RESOLVE, str(lab.home), hub.url]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited for 30 s"
        time.sleep(0.01)


def test_a_hub_model_is_fetched_once_and_pinned(resolve: Resolver, hub: FakeHub) -> None:
    model = resolve("org/tiny", sources=_sources(hub), offline=False)
    assert model.folder == resolve.lab.model("org/tiny")
    assert model.manifest.revision == SHA
    asked = len(hub.requests)
    again = resolve("org/tiny", sources=_sources(hub), offline=False)
    assert (again.digest, len(hub.requests)) == (model.digest, asked)


def test_only_what_a_loader_reads_is_fetched_and_nothing_else_stays(resolve: Resolver, hub: FakeHub) -> None:
    folder = resolve("org/tiny", sources=_sources(hub), offline=False).folder
    assert sorted(path.name for path in folder.iterdir()) == [
        ".manifest.json",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert not list(resolve.lab.incoming.iterdir())
    assert not any(path.stat().st_mode & 0o222 for path in folder.iterdir() if path.name[0] != ".")


def test_a_fetched_model_needs_no_hub_any_more(resolve: Resolver, hub: FakeHub) -> None:
    fetched = resolve("org/tiny", sources=_sources(hub), offline=False)
    asked = len(hub.requests)
    assert resolve("org/tiny", offline=True).digest == fetched.digest
    assert len(hub.requests) == asked


@pytest.mark.parametrize(
    ("model_id", "named"),
    [
        ("org/absent", "not found"),
        ("org/tiny@v9", "no such revision"),
        ("org/pickles", r"no safetensors weights \(only pytorch_model\.bin\)"),
    ],
)
def test_what_the_hub_lacks_is_one_line_and_leaves_nothing(
    resolve: Resolver, hub: FakeHub, model_id: str, named: str
) -> None:
    resolve.lab.home.rmdir()
    with pytest.raises(UsageError, match=named) as refused:
        resolve(model_id, sources=_sources(hub), offline=False)
    assert "\n" not in str(refused.value)
    assert not resolve.lab.home.exists()


def test_a_hub_that_does_not_answer_is_one_line_with_the_path_to_fill(
    resolve: Resolver, hub: FakeHub
) -> None:
    nobody = Sources(environment={"HF_ENDPOINT": "http://127.0.0.1:9", "PATH": os.defpath})
    with pytest.raises(UsageError, match="org/tiny") as refused:
        resolve("org/tiny", sources=nobody, offline=False)
    assert str(resolve.lab.model("org/tiny")) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(resolve.lab.home.iterdir())


def test_bytes_that_differ_from_what_the_hub_says_do_not_count(resolve: Resolver, hub: FakeHub) -> None:
    hub.damaged.add("model-00002-of-00002.safetensors")
    with pytest.raises(UsageError, match="model-00002-of-00002"):
        resolve("org/tiny", sources=_sources(hub), offline=False)
    assert not resolve.lab.model("org/tiny").exists()
    hub.damaged.clear()
    resolve("org/tiny", sources=_sources(hub), offline=False)
    assert hub.downloads("model-00001-of-00002.safetensors") == 1
    assert hub.downloads("model-00002-of-00002.safetensors") == 2


def test_a_killed_download_does_not_count_and_the_next_try_goes_on(resolve: Resolver, hub: FakeHub) -> None:
    hub.delay_s = 0.5
    killed = _start(resolve.lab, hub)
    _wait_for(lambda: hub.downloads("model-00002-of-00002.safetensors") > 0)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    hub.delay_s = 0.0
    with pytest.raises(UsageError, match="offline"):
        resolve("org/tiny", offline=True)
    model = resolve("org/tiny", sources=_sources(hub), offline=False)
    assert model.manifest.revision == SHA


def test_two_processes_at_once_fetch_once(resolve: Resolver, hub: FakeHub) -> None:
    hub.delay_s = 0.2
    first = _start(resolve.lab, hub)
    _wait_for(lambda: hub.downloads("tokenizer.json") > 0)
    second = _start(resolve.lab, hub)
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    digests = [output.splitlines()[-1] for output in outputs]
    assert digests[0] == digests[1]
    assert digests[0].startswith("model ")
    assert "waiting for another process that fetches org/tiny" in outputs[1]
    assert hub.downloads("tokenizer.json") == 1


def test_a_damaged_manifest_is_fetched_again(resolve: Resolver, hub: FakeHub) -> None:
    first = resolve("org/tiny", sources=_sources(hub), offline=False)
    resolve.lab.model_manifest("org/tiny").write_text("{", "utf-8")
    again = resolve("org/tiny", sources=_sources(hub), offline=False)
    assert again.digest == first.digest
    assert any("damaged" in line for line in resolve.lines)
    assert json.loads(resolve.lab.model_manifest("org/tiny").read_text("utf-8"))["revision"] == SHA


def test_a_hub_model_does_not_displace_one_put_there_by_hand(
    resolve: Resolver, hub: FakeHub, base: Path
) -> None:
    place = resolve.lab.model("org/tiny")
    place.mkdir(parents=True)
    (place / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes())
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        resolve("org/tiny", sources=_sources(hub), offline=False)
    assert (place / "model.safetensors").is_file()
    assert not hub.requests


def test_a_missing_extra_is_named() -> None:
    with pytest.raises(MissingExtra, match=r"posttrain\[train\]"):
        require("train", "no_such_module", needed_for="fetching a model")
