"""Where the rows come from. Runs once, in a process of its own; put your own rows in place of these."""

import json

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def prepare(target, *, source):
    """Write train.jsonl and test.jsonl into the folder `target`: one JSON object a line.

    Rows from elsewhere: `source.rows("org/data-set", None, "train")` gives those of a hub data set, or of
    $POSTTRAIN_DATA/<this task>/train.jsonl where there is one, so that the task also works offline.
    """
    rows = [
        {"question": f"Today is {day}. Which day is it in {days} days?", "answer": DAYS[(start + days) % 7]}
        for days in range(2, 182)
        for start, day in enumerate(DAYS)
    ]
    write(target / "test.jsonl", rows[::5])
    write(target / "train.jsonl", [row for number, row in enumerate(rows) if number % 5])


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
