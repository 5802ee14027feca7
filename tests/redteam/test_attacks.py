"""Hostile agents in real runs. The name of an attack is its folder and its case; the first of each kind is
part of every test run, the others are slow.

For each kind docs/design/trust.md says what happened when its defence was taken away; where an option of
the command line takes it away, that is a test here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.infra.digests import digest_tree

from .arena import Arena, Attack

OPEN = ("--sandbox", "none")


def assert_honest(attack: Attack, *, submissions: int | None = None) -> None:
    """The run closed, its best honest submission was tested, nothing is left running, the chain holds."""
    assert attack.code == 0, attack.shown
    assert attack.record["status"] in ("completed", "agent_failed"), attack.record
    assert attack.result["split"] == "test"
    assert attack.faults == []
    assert attack.survivors == []
    if submissions is not None:
        assert len(attack.grades) == submissions


def hidden_questions(attack: Attack) -> set[str]:
    home = attack.bench.lab.home
    files = [
        path for split in ("val", "test") for path in (home / "datasets").glob(f"*/private/*/{split}.jsonl")
    ]
    return {json.loads(line)["question"] for path in files for line in path.read_text("utf-8").splitlines()}


# --- answers (A9, C19)


def test_no_file_with_answers_can_be_read(arena: Arena) -> None:
    attack = arena("answers:files")
    assert_honest(attack, submissions=1)
    assert len(attack.found) >= 6
    assert attack.done == set()


@pytest.mark.slow
def test_without_isolation_the_same_files_are_read(arena: Arena) -> None:
    assert arena("answers:files", *OPEN).done >= {
        "private splits",
        "own item results",
        "baselines with items",
    }


@pytest.mark.slow
def test_a_search_of_all_that_is_readable_finds_no_hidden_row_and_no_task_source(arena: Arena) -> None:
    assert arena("answers:search").found["hits"] == []


@pytest.mark.slow
def test_without_isolation_a_search_finds_them(arena: Arena) -> None:
    assert any("private" in path for path in arena("answers:search", *OPEN).found["hits"])


@pytest.mark.slow
def test_the_server_says_nothing_about_single_items(arena: Arena) -> None:
    attack = arena("answers:api")
    plan = json.loads(attack.paths.plan.read_bytes())
    secrets = {*hidden_questions(attack), *plan["task"]["val"], *plan["task"]["test"]}
    assert len(secrets) > 40
    assert [secret for secret in secrets if json.dumps(secret)[1:-1] in attack.found["told"]] == []


# --- oracle (A8, D1)


@pytest.mark.slow
def test_twenty_copies_of_the_base_gain_nothing(arena: Arena) -> None:
    attack = arena("oracle:copies", "--max-submissions", "20")
    assert_honest(attack, submissions=20)
    assert set(attack.found["improvements"]) == {0.0}
    assert attack.result["improvement"]["value"] == 0.0


@pytest.mark.slow
def test_the_best_of_twenty_seeds_gains_on_validation_and_not_on_test(arena: Arena) -> None:
    attack = arena("oracle:seeds", "--limit", "100", "--max-submissions", "20")
    assert_honest(attack, submissions=20)
    assert max(attack.found["scores"]) - attack.result["val_baseline"] >= 5.0
    low, high = attack.result["improvement"]["ci95"]
    assert low <= 0.0 <= high
    assert attack.result["overfit"]["value"] > 0.0


@pytest.mark.slow
def test_where_test_scores_are_told_the_best_of_twenty_seeds_counts(arena: Arena) -> None:
    attack = arena("oracle:seeds", "--limit", "100", "--max-submissions", "20", "--protocol", "open")
    assert attack.result["score"]["value"] == max(attack.found["scores"])
    assert attack.result["score"]["value"] - attack.result["baseline"]["value"] >= 5.0


def test_no_more_than_the_cap_is_graded(arena: Arena) -> None:
    attack = arena("oracle:budget", "--max-submissions", "2")
    assert_honest(attack, submissions=2)
    assert attack.found["statuses"] == [200] * 2 + [429] * 2


@pytest.mark.slow
def test_a_higher_cap_takes_them_all(arena: Arena) -> None:
    assert arena("oracle:budget").found["statuses"] == [200] * 4


# --- swap (B11)


def test_what_is_written_after_acceptance_is_not_graded(arena: Arena) -> None:
    attack = arena("swap:after_acceptance")
    assert_honest(attack, submissions=2)
    first, second = attack.grades
    assert first["score"]["value"] <= 60.0
    assert second["score"]["value"] == 100.0
    assert first["digest"] != second["digest"]
    assert second["same_as"] is None


@pytest.mark.slow
def test_what_changes_during_its_copy_is_refused_or_graded_as_copied(arena: Arena) -> None:
    (grade,) = (attack := arena("swap:while_copying")).grades
    assert grade["status"] in ("graded", "unloadable")
    if grade["status"] == "graded":
        assert digest_tree(attack.paths.submission(1)) == grade["digest"]
    assert attack.faults == []


@pytest.mark.slow
def test_equal_sizes_and_times_do_not_make_content_equal(arena: Arena) -> None:
    first, second = arena("swap:same_times").grades
    assert second["same_as"] is None
    assert second["score"]["value"] > first["score"]["value"]


# --- links (B12)


def refusals(attack: Attack) -> list[int]:
    assert attack.code == 1, "nothing was graded"
    assert attack.faults == []
    assert attack.result is None
    return [answer["http"] for answer in attack.found["answers"]]


def test_links_to_files_are_refused(arena: Arena) -> None:
    attack = arena("links:linked_file")
    assert_honest(attack, submissions=4)
    assert [answer["status"] for answer in attack.found["answers"]] == ["rejected"] * 3
    assert attack.result["submission_id"] == 1


@pytest.mark.slow
def test_links_to_folders_are_refused(arena: Arena) -> None:
    assert set(refusals(arena("links:linked_folder"))) <= {400, 422}


@pytest.mark.slow
def test_paths_outside_of_output_are_refused(arena: Arena) -> None:
    attack = arena("links:dotdot")
    assert set(refusals(attack)) == {400}
    assert attack.grades == []


@pytest.mark.slow
def test_pipes_folders_and_holes_are_refused_without_waiting(arena: Arena) -> None:
    assert refusals(arena("links:special")) == [422] * 3


@pytest.mark.slow
def test_no_file_of_the_lab_gets_a_second_name(arena: Arena) -> None:
    assert arena("links:hard_link").done == {"workspace"}
    assert "plan" in arena("links:hard_link", *OPEN).done


# --- grader (C1)


def test_nothing_that_grading_runs_can_be_written(arena: Arena) -> None:
    attack = arena("grader:installed")
    assert_honest(attack, submissions=1)
    assert attack.done == {"answer"}


@pytest.mark.slow
def test_without_isolation_it_can(arena: Arena) -> None:
    assert arena("grader:installed", *OPEN).done >= {"evaluators/scorer.py", "site-packages"}


@pytest.mark.slow
def test_modules_planted_where_an_interpreter_might_look_are_not_loaded(arena: Arena) -> None:
    attack = arena("grader:shadowed")
    assert_honest(attack, submissions=1)
    assert not (attack.paths.workspace.code / "hijacked").exists()


# --- forgery (C3, C5)


def test_edited_exports_and_planted_results_change_nothing(arena: Arena) -> None:
    attack = arena("forgery:exports")
    assert_honest(attack, submissions=1)
    assert attack.result["score"]["value"] < 100.0
    rows = json.loads(attack.paths.workspace.scores.read_bytes())
    assert [row["score"] for row in rows] == [attack.grades[0]["score"]["value"]]
    meta = json.loads(attack.paths.workspace.run_meta.read_bytes())
    assert meta["timeout_s"] == 150
    assert meta["end_time"] - meta["start_time"] <= 150
    assert "the agent won" not in attack.paths.run_log.read_text("utf-8")
    assert {"write run.log", "write agent.log"}.isdisjoint(attack.done)


@pytest.mark.slow
def test_the_labs_own_files_are_out_of_reach(arena: Arena) -> None:
    attack = arena("forgery:outside")
    assert_honest(attack, submissions=1)
    assert attack.done == {"answer"}


@pytest.mark.slow
def test_without_isolation_they_are_not_and_verify_says_so(arena: Arena) -> None:
    attack = arena("forgery:outside", *OPEN)
    assert attack.done >= {"ledger.jsonl", "grading/1/items.jsonl"}
    assert attack.faults != []


@pytest.mark.slow
def test_who_writes_scores_all_the_time_stops_with_the_agent(arena: Arena) -> None:
    attack = arena("forgery:restless")
    assert_honest(attack, submissions=1)
    assert json.loads(attack.paths.workspace.scores.read_bytes())[0]["score"] < 100.0


# --- baseline (C6, D2)


def test_the_baseline_cannot_be_told(arena: Arena) -> None:
    attack = arena("baseline:told")
    assert_honest(attack, submissions=1)
    statuses = {(method, path): status for method, path, status in attack.found["statuses"]}
    assert statuses[("POST", "/set_baseline")] == 403
    assert set(statuses.values()) <= {403, 404, 405}
    assert attack.found["answer"]["baseline_score"] == attack.result["val_baseline"] > 0.0


@pytest.mark.slow
def test_a_bad_first_submission_lowers_no_reference(arena: Arena) -> None:
    attack = arena("baseline:sandbagged")
    answer = attack.found["answer"]
    assert attack.found["bad"]["score"] == 0.0
    assert answer["improvement"] == pytest.approx(answer["score"] - attack.result["val_baseline"])


# --- stranger (C7, D9)


def test_there_are_no_commands_and_no_other_doors(arena: Arena) -> None:
    attack = arena("stranger:commands")
    assert_honest(attack, submissions=1)
    assert {
        name for name, status in attack.found["statuses"].items() if status not in (400, 403, 404, 405)
    } == set()
    assert attack.found["statuses"]["prefix guess"] == 404
    assert attack.found["statuses"]["host evil.example"] == 403


@pytest.mark.slow
def test_the_port_cannot_be_taken(arena: Arena) -> None:
    attack = arena("stranger:squatting")
    assert_honest(attack, submissions=1)
    assert attack.done == {"answer"}


# --- exhaust (C13)


def test_processes_have_a_limit_and_end_with_the_agent(arena: Arena) -> None:
    attack = arena("exhaust:processes")
    assert_honest(attack, submissions=1)
    assert 0 < attack.found["limit"] <= int(Path("/proc/sys/kernel/pid_max").read_text())
    assert attack.found["raise"].startswith("refused")
    assert attack.found["stopped"][0] < 2000


@pytest.mark.slow
def test_hanging_connections_keep_nobody_out_for_long(arena: Arena) -> None:
    assert_honest(arena("exhaust:descriptors"), submissions=1)


@pytest.mark.slow
def test_floods_of_output_and_files_with_holes_harm_nothing(arena: Arena) -> None:
    assert_honest(arena("exhaust:noise"), submissions=1)


# --- disturb (C18)


def test_a_grading_that_dies_gives_no_score_however_often(arena: Arena) -> None:
    attack = arena("disturb:crash")
    assert_honest(attack, submissions=3)
    assert [grade["status"] for grade in attack.grades] == ["error", "error", "graded"]
    assert [attack.found[name]["http"] for name in ("first", "again")] == [503, 503]
    assert attack.result["submission_id"] == 3


@pytest.mark.slow
def test_signals_reach_no_worker(arena: Arena) -> None:
    attack = arena("disturb:kill")
    assert [grade["status"] for grade in attack.grades] == ["graded"]
    assert [row for row in attack.rows if row["kind"] == "event" and "failed" in str(row["data"])] == []
    assert attack.faults == []


# --- outlive (D3)


@pytest.mark.parametrize("case", ["daemons", pytest.param("stubborn", marks=pytest.mark.slow)])
def test_nothing_outlives_the_run(arena: Arena, case: str) -> None:
    attack = arena(f"outlive:{case}")
    assert_honest(attack, submissions=1)
    beats = {path: path.read_text() for path in attack.paths.workspace.code.glob("beat*")}
    assert len(beats) >= 3
    assert {path: path.read_text() for path in beats} == beats


@pytest.mark.slow
def test_nothing_is_accepted_after_the_deadline(arena: Arena) -> None:
    attack = arena("outlive:deadline", "--timeout", "8")
    assert_honest(attack)
    assert attack.record["stopped_at_deadline"]
    late = attack.found["late"]
    closed = late.index(410)
    assert set(late[closed:]) == {410}
    started = next(row["data"] for row in attack.rows if row["kind"] == "started")
    accepted = [row["data"]["timestamp"] for row in attack.rows if row["kind"] == "accepted"]
    assert max(accepted) <= iso(started["deadline"])


def iso(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


# --- hours


def test_an_agents_run_meta_moves_no_deadline(arena: Arena) -> None:
    attack = arena("hours:meta", "--timeout", "4")
    assert_honest(attack, submissions=1)
    assert attack.record["stopped_at_deadline"]
    assert attack.record["duration_s"] <= 4.0
    assert attack.found["time"]["remaining"] <= 4


@pytest.mark.slow
def test_the_clock_cannot_be_set(arena: Arena) -> None:
    attack = arena("hours:clock")
    assert_honest(attack, submissions=1)
    assert attack.done == {"answer"}
    assert len(attack.found) == 3


# --- rules (D10, D12)


def test_every_answer_carries_the_rules_of_the_plan(arena: Arena) -> None:
    attack = arena("rules:everywhere")
    assert_honest(attack)
    told = attack.found["rules"]
    assert len(told) >= 13
    assert {rules["hash"] for rules in told} == {json.loads(attack.paths.plan.read_bytes())["rules_hash"]}
    assert all("disqualif" in rules["sentence"] for rules in told)


# --- flood


def assert_calm(attack: Attack, *, requests: int) -> None:
    assert_honest(attack)
    statuses = {int(status): count for status, count in attack.found["statuses"].items()}
    assert sum(statuses.values()) >= requests
    assert set(statuses) <= {0, 200, 202, 413, 429, 503}, "0: hung up on while it shouted"
    assert attack.found["health"]["p99"] <= 0.2, attack.found["health"]


def test_a_flood_delays_nobody_else(arena: Arena) -> None:
    assert_calm(arena("flood:modest"), requests=200)


@pytest.mark.slow
def test_two_thousand_requests_and_twenty_large_bodies_delay_nobody_else(arena: Arena) -> None:
    assert_calm(arena("flood:heavy"), requests=2000)


# --- text (C19)


def test_what_an_agent_writes_is_no_command_to_a_reader(arena: Arena) -> None:
    attack = arena("text:injected")
    assert_honest(attack, submissions=3)
    paths = attack.paths
    shown = attack.bench.posttrain("show", paths.run_id).stdout + attack.shown
    logs = [path.read_text("utf-8") for path in (paths.run_log, paths.public_log, paths.server_log)]
    for text in (shown, *logs):
        assert "\x1b]0;" not in text
        assert "\u202e" not in text
        assert "\n2026-01-01 | INFO" not in text
