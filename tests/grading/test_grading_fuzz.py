"""What nobody thought of: random bodies and random folders get a stated answer, never a fault of ours."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from grading_kit import Bench, served
from posttrain.checkpoints.snapshot import SnapshotLimits, take_snapshot
from posttrain.core.errors import SubmissionFault
from posttrain.core.grading import SubmitRequest
from posttrain.grading.requests import BadRequest, locate, parse_submit

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
REQUESTS = st.fixed_dictionaries(
    {"model_path": st.text(max_size=40) | JSON},
    optional={"gpu": JSON, "note": JSON, "final": JSON, "wait": JSON, "other": JSON},
)
BODIES = st.binary(max_size=300) | (JSON | REQUESTS).map(lambda value: json.dumps(value).encode())
WEIGHTS = ("model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json")
OTHERS = ("config.json", "adapter_config.json", "pytorch_model.bin", "x\n", "optimizer.pt", "tokenizer.json")


def _safetensors(data: bytes, *, claimed: int) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [claimed], "data_offsets": [0, claimed]}}).encode()
    return len(header).to_bytes(8, "little") + header + data


CONTENTS = (
    st.binary(max_size=64)
    | st.builds(_safetensors, st.binary(max_size=16), claimed=st.integers(-1, 1 << 40))
    | st.binary(max_size=16).map(lambda data: _safetensors(data, claimed=len(data)))
    | st.sampled_from([b'{"weight_map": {"w": "model-00001-of-00002.safetensors"}}', b"{}", b"[]"])
)
KINDS = st.sampled_from(["file", "file", "file", "folder", "link", "pipe"])
FOLDERS = st.dictionaries(st.sampled_from(WEIGHTS + OTHERS), st.tuples(KINDS, CONTENTS), max_size=5)


@given(BODIES)
@settings(max_examples=120, deadline=None)
def test_any_body_is_a_request_or_a_bad_request(body: bytes) -> None:
    try:
        request = parse_submit(body)
    except BadRequest as refused:
        json.dumps([refused.reason, refused.field]).encode()
    else:
        assert isinstance(request, SubmitRequest)
        request.model_dump_json()


@given(st.text(max_size=60) | st.lists(st.sampled_from(["..", ".", "output", "a", ""])).map("/".join))
@settings(max_examples=120, deadline=None)
def test_any_path_is_below_output_or_refused(path: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "output" / "a").mkdir(parents=True)
        try:
            found = locate(path.replace("\0", ""), workspace=Path(root))
        except BadRequest:
            return
        assert found == "output" or found.startswith("output/")
        assert ".." not in found.split("/")


def _check_folder(files: dict[str, tuple[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "workspace" / "output" / "v1"
        folder.mkdir(parents=True)
        for name, (kind, content) in files.items():
            _put(folder / name, kind, content)
        target = Path(root) / "submissions" / "1"
        target.parent.mkdir()
        limits = SnapshotLimits(weight_bytes=1 << 20, settle_s=0.0)
        fault = snapshot = None
        try:
            snapshot = take_snapshot(Path(root) / "workspace", "output/v1", target, limits=limits)
        except SubmissionFault as found:
            fault = found
        if snapshot is None:
            assert fault is not None
            assert fault.reason
            assert fault.hint
            assert list(target.parent.iterdir()) == []
        else:
            assert sorted(path.name for path in target.iterdir()) == sorted(snapshot.files)
            assert all(path.is_file() and not path.is_symlink() for path in target.iterdir())


def _put(path: Path, kind: str, content: bytes) -> None:
    match kind:
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to("/etc/passwd")
        case "pipe":
            os.mkfifo(path)
        case _:
            path.write_bytes(content)


@given(FOLDERS)
@settings(max_examples=200, deadline=None)
def test_any_folder_is_copied_whole_or_blamed_with_a_hint(files: dict[str, tuple[str, bytes]]) -> None:
    _check_folder(files)


@pytest.mark.slow
@given(FOLDERS)
@settings(max_examples=2000, deadline=None)
def test_two_thousand_folders_are_copied_whole_or_blamed(files: dict[str, tuple[str, bytes]]) -> None:
    _check_folder(files)


def test_any_body_over_the_wire_gets_json_and_no_server_fault(tmp_path: Path) -> None:
    with served(tmp_path, max_submissions=1) as made:
        made.save("v1")
        made.post({"model_path": "output/v1"})

        @given((JSON | REQUESTS).filter(lambda body: body is not None))
        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        def ask(body: Any) -> None:
            assert made.post(body).status in (400, 429)

        ask()


def _follow_the_document(made: Bench, *, examples: int) -> None:
    """Requests made from the server's own description, valid and not, against that description."""
    schema = schemathesis.openapi.from_url(f"{made.url}/openapi.json")
    checks = [not_a_server_error, status_code_conformance, content_type_conformance]
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(operation.as_strategy())
        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
        def ask(case: Any) -> None:
            case.call_and_validate(base_url=made.url, checks=checks, timeout=20)

        ask()


def test_answers_are_those_that_the_api_document_states(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        _follow_the_document(made, examples=15)


@pytest.mark.slow
def test_two_thousand_requests_get_answers_that_the_api_document_states(tmp_path: Path) -> None:
    with served(tmp_path) as made:
        _follow_the_document(made, examples=300)
