"""Do OpenCompass and we read the same answers from the same model?

    python benchmarks/opencompass_agreement.py --model FOLDER [--limit 64] [--out FILE.json]

Grades a folder twice on the same GSM8K items, by `opencompass:gsm8k_gen_1d7fe4` and by our `gsm8k:4shot`, and
holds the two beside each other item by item: the texts, what OpenCompass extracted, what its rule gives on
our texts, and what our rule reads. The tool environment `opencompass` has to be installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from posttrain.cli.context import open_lab
from posttrain.cli.terminal import Console
from posttrain.evaluators.numeric import gold_value, opencompass_reads, plain
from posttrain.runs.standalone import FolderGrade, GradeRequest, grade_folder

THEIRS, OURS = "opencompass:gsm8k_gen_1d7fe4", "gsm8k:4shot"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lab, terminal = open_lab(writable=True), Console(beside_json=True)
    grades: dict[str, FolderGrade] = {}
    for task in (THEIRS, OURS):
        begun = time.monotonic()
        request = GradeRequest(
            task=task, model_path=arguments.model.absolute(), limit=arguments.limit, engine=arguments.engine
        )
        grades[task] = grade_folder(request, lab=lab, terminal=terminal)
        print(f"{task}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    rows = compared(grades[THEIRS], grades[OURS])
    told = summary(rows, grades)
    if arguments.out:
        arguments.out.write_text(json.dumps({"summary": told, "items": rows}, indent=1, ensure_ascii=False))
    print(json.dumps(told, indent=1, ensure_ascii=False))
    return 0


def compared(theirs: FolderGrade, ours: FolderGrade) -> list[dict[str, object]]:
    """One row an item."""
    rows = []
    for item, tool, own in zip(ours.items, theirs.records, ours.records, strict=True):
        assert tool.result.id == own.result.id == item.id
        text = own.outputs[0].text
        rows.append(
            {
                "id": item.id[:12],
                "gold": plain(gold_value(item.fields["answer"])),
                "same_text": tool.outputs[0].text == text,
                "tool": tool.result.extracted,
                "its_rule_here": opencompass_reads(text),
                "its_rule_there": opencompass_reads(tool.outputs[0].text),
                "ours": own.result.extracted,
                "our_rule": own.result.rule,
                "tool_right": bool(tool.result.value),
                "ours_right": bool(own.result.value),
                "text": text,
                "tool_text": tool.outputs[0].text,
            }
        )
    return rows


def summary(rows: list[dict[str, object]], grades: dict[str, FolderGrade]) -> dict[str, object]:
    """Counts, scores and the items that differ."""
    differ = [row for row in rows if row["tool"] != row["its_rule_here"]]
    return {
        "items": len(rows),
        "same_texts": sum(bool(row["same_text"]) for row in rows),
        "extracted_agree": len(rows) - len(differ),
        "rule_agrees_on_tools_texts": sum(row["tool"] == row["its_rule_there"] for row in rows),
        "right_by_tool": sum(bool(row["tool_right"]) for row in rows),
        "right_by_ours": sum(bool(row["ours_right"]) for row in rows),
        "scores": {task: grade.assessment.evaluation.score.value for task, grade in grades.items()},
        "secondary_of_ours": grades[OURS].assessment.evaluation.score.secondary,
        "warnings": {task: grade.assessment.evaluation.score.warnings for task, grade in grades.items()},
        "seconds": {
            task: [round(grade.assessment.total_s, 1), round(grade.assessment.generation_s, 1)]
            for task, grade in grades.items()
        },
        "differ": [{key: row[key] for key in row if key not in {"text", "tool_text"}} for row in differ],
        "judged_differently": [
            {key: row[key] for key in row if key not in {"text", "tool_text"}}
            for row in rows
            if row["tool_right"] != row["ours_right"]
        ],
    }


if __name__ == "__main__":
    raise SystemExit(main())
